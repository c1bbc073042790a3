// SPDX-License-Identifier: Apache-2.0
//
// y[tokens, out] = x[tokens, in] . W^T (+ bias) (+ y): the one matmul convention of the project. W keeps the checkpoint's
// orientation [out_features, in_features].
#pragma once

#include "ops/context.h"
#include "ops/panel_paths.h"
#include "tensor/block_format.h"

namespace pointsman::ops {

// One more product of the same x.
struct MatmulPart {
  Weight w;
  const float* bias = nullptr;
  Tensor y;
};
inline constexpr int kMaxMoreParts = 3;

struct MatmulArgs {
  Tensor x;                           // [*, in]  kF32 or kBF16; kI8: quantised rows (quant/quantise.h)
  const int32_t* x_rows = nullptr;    // device [rows], or null: row r of y reads row x_rows[r] of x (a gather without a copy)
  Weight w;                           // [out, in] kF32, kBF16, kF16, kF8E4M3, kF8E5M2, kI8 or kF4 with kF32 x; kBF16 with kBF16 x.
                                      // In panels also kI8 and kF4 with kI8 x, kF8E4M3 with kBF16 x
  const float* bias = nullptr;        // device [out], or null
  Tensor y;                           // [rows, out] kF32; may not alias x or w
  bool accumulate = false;            // y = y + (dot + bias), one rounding each
  // More products of the same rows of x, in the same step of the thread pool: q, k and v. Dtype and layout of their W, rows of y and
  // `accumulate` as above.
  int num_more = 0;
  MatmulPart more[kMaxMoreParts];

  const PanelPaths* paths = nullptr;  // host memory, W in panels only; null: the context's, or the built-in rule. Changes no bit

  const Weight& w_of(int part) const { return part == 0 ? w : more[part - 1].w; }
  const float* bias_of(int part) const { return part == 0 ? bias : more[part - 1].bias; }
  const Tensor& y_of(int part) const { return part == 0 ? y : more[part - 1].y; }

  template <class F>
  void each_address(F&& visit) {
    visit(x.data), visit(const_cast<void*&>(reinterpret_cast<const void*&>(x_rows))), visit(w.data), visit(const_cast<void*&>(w.scales));
    visit(const_cast<void*&>(reinterpret_cast<const void*&>(bias))), visit(y.data);
    for (int i = 0; i < num_more; ++i) {
      visit(more[i].w.data), visit(const_cast<void*&>(more[i].w.scales)), visit(more[i].y.data);
      visit(const_cast<void*&>(reinterpret_cast<const void*&>(more[i].bias)));
    }
  }
};

// Deterministic: every element of y is one dot product in the order of context.h, whatever the number of rows and threads.
// A coded W (FP8, FP4, INT8) counts as its elements decoded to fp32 (tensor/block_format.h), so the result is that of the decoded matrix, bit
// for bit; so is that of a W stored transposed (WeightLayout::kInOut). Panels (kPanel32) have an order of their own.
// Zero rows are fine. kInvalidArgument on shapes or dtypes that do not fit, naming both sides.
Status matmul(OpContext& ctx, const MatmulArgs& args);

}  // namespace pointsman::ops
