// SPDX-License-Identifier: Apache-2.0
#include "ops/norm/rms_norm.h"

#include "ops/dispatch.h"

namespace pointsman::ops {

Status rms_norm(OpContext& ctx, const RmsNormArgs& a) {
  const auto fits = [&](const Tensor& out, DType dtype) { return !out || (out.dtype == dtype && out.rows == a.x.rows && out.cols == a.x.cols); };
  if (a.x.dtype != DType::kF32 || a.weight == nullptr || !fits(a.out_f32, DType::kF32) || !fits(a.out_bf16, DType::kBF16)) {
    return error(StatusCode::kInvalidArgument, "rms_norm: x [{}, {}] {}, out_f32 [{}, {}], out_bf16 [{}, {}] do not fit", a.x.rows, a.x.cols,
                 dtype_name(a.x.dtype), a.out_f32.rows, a.out_f32.cols, a.out_bf16.rows, a.out_bf16.cols);
  }
  if (a.x.rows == 0) return ok_status();
  return PM_DISPATCH(ctx, rms_norm, a);
}

}  // namespace pointsman::ops
