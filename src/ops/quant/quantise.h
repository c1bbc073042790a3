// SPDX-License-Identifier: Apache-2.0
//
// Activations as 8-bit codes, for the integer dot products of packed weights. A quantised row of K values is a row of a Tensor of dtype kI8 with
// cols = K and row_stride = quantised_row_bytes(K, block):
//
//   K codes | an fp32 scale for every block | an int32 offset for every block
//
// Blocks are 32 values, or 128 (the last one: what is left). Which of them, row_stride says: rows of blocks of 128 are shorter than rows of blocks of 32.
//
//   scale = amax / 127 of a block; code = x * (127 / amax), rounded to nearest even; value = code * scale
//   offset = -128 * the sum of the block's codes: what a dot product with codes that have 128 added starts from
// A block whose largest magnitude is below 2^-120 counts as zeros: codes and scale 0. A block with NaN or infinity has a NaN scale and codes 0, so
// that everything that meets it is NaN. No code is -128.
#pragma once

#include "ops/context.h"
#include "tensor/block_format.h"

namespace pointsman::ops {

inline constexpr int64_t kQuantBlock = 32, kWideQuantBlock = 128;
constexpr int64_t quantised_row_bytes(int64_t cols, int64_t block = kQuantBlock) { return cols + (cols + block - 1) / block * 8; }
// [rows, cols] at `data`. REQUIRES: cols is a multiple of kQuantBlock, block is one of the two.
inline Tensor quantised_matrix(void* data, int64_t rows, int64_t cols, int64_t block = kQuantBlock) {
  return {data, DType::kI8, rows, cols, quantised_row_bytes(cols, block)};
}
// The blocks of quantised rows. With one block of 32 there is no difference.
inline int64_t quant_block_of(const Tensor& t) { return t.row_stride >= quantised_row_bytes(t.cols) ? kQuantBlock : kWideQuantBlock; }

// The blocks that x must have to be multiplied by W.
inline int64_t quant_block_for(const Weight& w) {
  return w.format.block_rows == 1 && w.format.block_cols == kWideQuantBlock && w.cols > kQuantBlock ? kWideQuantBlock : kQuantBlock;
}
// Are the rows of x quantised as W needs them?
inline bool is_quantised_for(const Tensor& x, const Weight& w) {
  return x.dtype == DType::kI8 && x.row_stride >= quantised_row_bytes(x.cols, kWideQuantBlock) && quant_block_of(x) == quant_block_for(w);
}

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
