// SPDX-License-Identifier: Apache-2.0
//
// Keys and values of one session: per layer K and V of every key/value head, fp32 in the fp32 numerics mode, else bf16, unless
// asked otherwise (KvCacheType; layouts: ops/attention/attention.h).
// Latent attention keeps one key per position, which is the value too, or in its naive form keys and values of every head.
// Layers with compressed attention have rings and entries instead (compressed_cache.h). One buffer, charged whole when the session is
// made: a long conversation cannot grow past its budget.
//
// Planes keep every position, so that stepping back costs nothing. Rings forget; snapshots of them are taken on the way, and a
// session resumes from the nearest one.
#pragma once

#include <array>

#include "checkpoint/model_config.h"
#include "device/device.h"
#include "model/compressed_cache.h"
#include "ops/attention/attention.h"
#include "pointsman/options.h"

namespace pointsman {

class KvCache {
 public:
  // Snapshots are spread over the capacity: one for each stretch of capacity / (kNumSnapshots + 1) tokens but the first.
  static constexpr int64_t kNumSnapshots = 4;

  static DType dtype_for(Numerics n) { return n == Numerics::kFp32 ? DType::kF32 : DType::kBF16; }
  static DType dtype_for(Numerics n, KvCacheType t);
  // kUnsupported: eight-bit codes where keys are latent or compressed; another type than the numerics' where they are compressed.
  static Status check(const ModelConfig& c, Numerics n, KvCacheType t);
  // bf16 keys of their own are in tiles, latent ones in rows.
  static ops::CacheLayout layout_of(const ModelConfig& c, DType dtype) {
    return dtype == DType::kBF16 && !c.latent ? ops::CacheLayout::kTiles : ops::CacheLayout::kRows;
  }
  static uint64_t bytes(const ModelConfig& c, DType dtype, int64_t capacity);
  // What one more position takes, on average.
  static uint64_t bytes_per_token(const ModelConfig& c, DType dtype);
  // `config` outlives the cache.
  static Result<KvCache> make(Device& device, MemoryBudget& budget, const ModelConfig& config, DType dtype, int64_t capacity);

  void* k(int layer) const { return buffer_.bytes() + static_cast<uint64_t>(layer) * (k_bytes_ + v_bytes_); }
  void* v(int layer) const { return buffer_.bytes() + static_cast<uint64_t>(layer) * (k_bytes_ + v_bytes_) + k_bytes_; }
  const CompressedLayerCache& compressed_layer(int layer) const { return layout_.layers[static_cast<size_t>(layer)]; }
  DType dtype() const { return dtype_; }
  ops::CacheLayout layout() const { return layout_of(*config_, dtype_); }
  int64_t capacity() const { return capacity_; }

  // True when rings may have to be rebuilt from tokens: the session remembers them.
  bool forgets() const { return !layout_.layers.empty(); }
  // Before a pass that writes [first, end). Snapshots of what is overwritten are void.
  void begin_pass(int64_t first, int64_t end);
  // Can the token at `position` be computed from what is here?
  bool reaches(int64_t position) const { return !forgets() || rings_reach(*config_, position, written_); }
  // Takes a snapshot at `position`, the end of the last pass, when the stretch has none.
  Status snapshot(Stream& stream, int64_t position);
  // Goes back to the last snapshot at or before `position`, or to 0. Returns where that is.
  Result<int64_t> restore(Stream& stream, int64_t position);

 private:
  std::byte* slot(int64_t i) const { return snapshots_ + static_cast<size_t>(i) * layout_.ring_bytes; }

  Buffer buffer_;
  DType dtype_ = DType::kBF16;
  int64_t capacity_ = 0;
  uint64_t k_bytes_ = 0, v_bytes_ = 0;  // of one layer

  const ModelConfig* config_ = nullptr;
  CompressedCacheLayout layout_;
  int64_t written_ = 0;                           // rings hold nothing older than a ring's length before this
  std::byte* snapshots_ = nullptr;                // [kNumSnapshots, ring_bytes]
  struct Snapshot {
    int64_t position = 0;  // 0: none
    int64_t written = 0;   // written_ of its rings
  };
  std::array<Snapshot, kNumSnapshots> taken_{};
};

}  // namespace pointsman
