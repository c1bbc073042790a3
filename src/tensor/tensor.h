// SPDX-License-Identifier: Apache-2.0
//
// Tensor: a view of row-major elements in some device's memory. Cheap to copy, owns nothing, valid while its Buffer lives.
// At most three dimensions; the last is contiguous; `row_stride` (elements) separates rows of a 2-d view.
// `data` is a device address: only code that runs on the device (kernels, host_visible devices) may follow it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/dtype.h"

namespace pointsman {

struct Tensor {
  void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t rows = 0;        // product of the leading dimensions
  int64_t cols = 0;        // the last dimension
  int64_t row_stride = 0;  // elements

  bool empty() const { return data == nullptr || rows == 0 || cols == 0; }
  explicit operator bool() const { return data != nullptr; }

  // Contiguous [rows, cols].
  static Tensor matrix(void* data, DType dtype, int64_t rows, int64_t cols) { return {data, dtype, rows, cols, cols}; }
  static Tensor vector(void* data, DType dtype, int64_t n) { return {data, dtype, 1, n, n}; }

  template <class T>
  T* row(int64_t r) const {
    return static_cast<T*>(data) + r * row_stride;
  }
  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }
  // Rows [begin, begin + n). Whole-byte types only.
  Tensor slice_rows(int64_t begin, int64_t n) const {
    Tensor t = *this;
    t.data = static_cast<std::byte*>(data) + begin * row_stride * (dtype_bits(dtype) / 8);
    t.rows = n;
    return t;
  }
  int64_t size_bytes() const { return rows * row_stride * dtype_bits(dtype) / 8; }
};

}  // namespace pointsman
