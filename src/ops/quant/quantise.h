// SPDX-License-Identifier: Apache-2.0
//
// Activations as 8-bit codes, for the integer dot products of packed weights. A quantised row of K values is a row of a Tensor of dtype kI8 with
// cols = K and row_stride = quantised_row_bytes(K):
//
//   K codes | K / 32 fp32 scales | K / 32 int32 offsets
//
//   scale = amax / 127 of a block of 32; code = x * (127 / amax), rounded to nearest even; value = code * scale
//   offset = -128 * the sum of the block's codes: what a dot product with codes that have 128 added starts from
// A block whose largest magnitude is below 2^-120 counts as zeros: codes and scale 0. A block with NaN or infinity has a NaN scale and codes 0, so
// that everything that meets it is NaN. No code is -128.
#pragma once

#include "ops/context.h"
#include "tensor/tensor.h"

namespace pointsman::ops {

inline constexpr int64_t kQuantBlock = 32;
constexpr int64_t quantised_row_bytes(int64_t cols) { return cols + cols / kQuantBlock * 8; }
// [rows, cols] at `data`. REQUIRES: cols is a multiple of kQuantBlock.
inline Tensor quantised_matrix(void* data, int64_t rows, int64_t cols) { return {data, DType::kI8, rows, cols, quantised_row_bytes(cols)}; }

struct QuantiseRowsArgs {
  Tensor x;    // [rows, cols] kF32 or kBF16; cols a multiple of kQuantBlock
  Tensor out;  // [rows, cols] kI8, quantised rows, 4-byte aligned; may not alias x

  template <class F>
  void each_address(F&& visit) {
    visit(x.data), visit(out.data);
  }
};
// Deterministic, each block by itself. Zero rows are fine.
Status quantise_rows(OpContext& ctx, const QuantiseRowsArgs& args);

}  // namespace pointsman::ops
