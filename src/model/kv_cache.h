// SPDX-License-Identifier: Apache-2.0
//
// Keys and values of one session: per layer K and V, each [kv_heads, capacity, head_dim], fp32 in the fp32 numerics mode, else bf16.
// One buffer, charged whole when the session is made: a long conversation cannot grow past its budget.
#pragma once

#include "checkpoint/model_config.h"
#include "device/device.h"
#include "pointsman/options.h"

namespace pointsman {

class KvCache {
 public:
  static DType dtype_for(Numerics n) { return n == Numerics::kFp32 ? DType::kF32 : DType::kBF16; }
  static uint64_t bytes(const ModelConfig& c, Numerics n, int64_t capacity) {
    return static_cast<uint64_t>(c.num_hidden_layers) * 2 * plane_bytes(c, n, capacity);
  }
  static Result<KvCache> make(Device& device, MemoryBudget& budget, const ModelConfig& c, Numerics n, int64_t capacity) {
    KvCache cache;
    cache.dtype_ = dtype_for(n);
    cache.capacity_ = capacity;
    cache.plane_bytes_ = plane_bytes(c, n, capacity);
    PM_ASSIGN_OR_RETURN(cache.buffer_, Buffer::make(device, budget, MemoryClass::kKvCache, bytes(c, n, capacity)));
    return cache;
  }

  void* k(int layer) const { return buffer_.bytes() + static_cast<uint64_t>(layer) * 2 * plane_bytes_; }
  void* v(int layer) const { return buffer_.bytes() + (static_cast<uint64_t>(layer) * 2 + 1) * plane_bytes_; }
  DType dtype() const { return dtype_; }
  int64_t capacity() const { return capacity_; }

 private:
  static uint64_t plane_bytes(const ModelConfig& c, Numerics n, int64_t capacity) {
    return static_cast<uint64_t>(c.num_key_value_heads * capacity * c.head_dim * (dtype_bits(dtype_for(n)) / 8));
  }
  Buffer buffer_;
  DType dtype_ = DType::kBF16;
  int64_t capacity_ = 0;
  uint64_t plane_bytes_ = 0;
};

}  // namespace pointsman
