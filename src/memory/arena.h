// SPDX-License-Identifier: Apache-2.0
//
// Carves named pieces out of one region. The same carving code runs twice: over nothing, to learn the size for the plan, and over
// the real buffer. So the plan cannot disagree with what is used.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "base/checked_math.h"
#include "tensor/tensor.h"

namespace pointsman {

class Arena {
 public:
  Arena() = default;  // counts only: every piece is null
  Arena(void* base, size_t bytes) : base_(static_cast<std::byte*>(base)), limit_(bytes) {}

  void* take(size_t bytes) {
    const size_t begin = used_;
    used_ += align_up(bytes, 64);
    if (base_ == nullptr) return nullptr;
    PM_CHECK(used_ <= limit_, "arena of %zu bytes is too small", limit_);
    return base_ + begin;
  }
  template <class T>
  T* take_array(int64_t n) {
    return static_cast<T*>(take(static_cast<size_t>(n) * sizeof(T)));
  }
  Tensor take_matrix(DType dtype, int64_t rows, int64_t cols) {
    return Tensor::matrix(take(static_cast<size_t>(rows * cols) * static_cast<size_t>(dtype_bits(dtype) / 8)), dtype, rows, cols);
  }
  size_t used_bytes() const { return used_; }

 private:
  std::byte* base_ = nullptr;
  size_t limit_ = 0;
  size_t used_ = 0;
};

}  // namespace pointsman
