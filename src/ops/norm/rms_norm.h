// SPDX-License-Identifier: Apache-2.0
//
// RMSNorm (Zhang & Sennrich 2019): out = x * rsqrt(mean(x^2) + eps) * weight, statistics and product in fp32.
#pragma once

#include "ops/context.h"
#include "tensor/tensor.h"

namespace pointsman::ops {

struct RmsNormArgs {
  Tensor x;                        // [rows, cols] kF32
  const float* weight = nullptr;   // device [cols]
  float eps = 1e-6f;
  Tensor out_f32;                  // [rows, cols], or empty; may alias x
  Tensor out_bf16;                 // [rows, cols], or empty: the fp32 result rounded to nearest even

  template <class F>
  void each_address(F&& visit) {
    visit(x.data), visit(const_cast<void*&>(reinterpret_cast<const void*&>(weight))), visit(out_f32.data), visit(out_bf16.data);
  }
};
Status rms_norm(OpContext& ctx, const RmsNormArgs& args);

}  // namespace pointsman::ops
