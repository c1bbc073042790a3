// SPDX-License-Identifier: Apache-2.0
#include "ops/activation/swiglu.h"

#include "ops/dispatch.h"

namespace pointsman::ops {

Status swiglu_ffn(OpContext& ctx, const SwigluFfnArgs& a) {
  if (a.rows == 0) return ok_status();
  const bool interleaved = !a.w_up;
  const int64_t hidden = a.w_gate.cols, intermediate = interleaved ? a.w_gate.rows / 2 : a.w_gate.rows;
  if (a.x.cols != hidden || (interleaved ? a.w_gate.rows % 2 != 0 : a.w_up.cols != hidden || a.w_up.rows != intermediate) || a.w_down.rows != a.out.cols ||
      a.w_down.cols != intermediate || a.act.cols != intermediate || a.act.rows < a.rows || (a.x_rows == nullptr && a.x.rows < a.rows) ||
      (a.out_rows == nullptr && a.out.rows < a.rows)) {
    return error(StatusCode::kInvalidArgument,
                 "swiglu_ffn: {} rows, x [{}, {}], gate [{}, {}], up [{}, {}], down [{}, {}], act [{}, {}], out [{}, {}] do not fit", a.rows, a.x.rows,
                 a.x.cols, a.w_gate.rows, a.w_gate.cols, a.w_up.rows, a.w_up.cols, a.w_down.rows, a.w_down.cols, a.act.rows, a.act.cols, a.out.rows,
                 a.out.cols);
  }
  const DType x = a.x.dtype, w = a.w_gate.dtype;
  const WeightLayout layout = a.w_gate.layout;
  if ((!interleaved && (a.w_up.dtype != w || a.w_up.layout != layout)) || a.w_down.dtype != w || a.w_down.layout != layout || a.act.dtype != x ||
      a.out.dtype != DType::kF32) {
    return error(StatusCode::kInvalidArgument, "swiglu_ffn: gate {}, up {}, down {} must agree, act {} must be as x {}, out {} F32", dtype_name(w),
                 dtype_name(a.w_up.dtype), dtype_name(a.w_down.dtype), dtype_name(a.act.dtype), dtype_name(x), dtype_name(a.out.dtype));
  }
  if (!is_computable(a.w_gate) || (!interleaved && !is_computable(a.w_up)) || !is_computable(a.w_down)) {
    return error(StatusCode::kInvalidArgument, "swiglu_ffn: W {} with blocks of {} x {} and {} scales is not defined", dtype_name(w),
                 a.w_gate.format.block_rows, a.w_gate.format.block_cols, dtype_name(a.w_gate.format.scale_dtype));
  }
  if (a.act_block < 0 || (a.act_block > 0 && (x != DType::kF32 || !is_coded(w) || layout != WeightLayout::kOutIn))) {
    return error(StatusCode::kInvalidArgument, "swiglu_ffn: act in blocks of {} with x {} and W {}: only F32 with coded weights", a.act_block, dtype_name(x),
                 dtype_name(w));
  }
  if (a.w_gate.layout == WeightLayout::kPanel32) {
    return error(StatusCode::kUnsupported, "swiglu_ffn: x {} with W {} in panels has no kernel", dtype_name(a.x.dtype), dtype_name(a.w_gate.dtype));
  }
  if (x == DType::kF32 && layout == WeightLayout::kInOut) return PM_DISPATCH(ctx, swiglu_ffn_f32_in_out, a);
  if (x == DType::kF32 && is_coded(w)) return PM_DISPATCH(ctx, swiglu_ffn_f32_coded, a);
  if (interleaved || layout == WeightLayout::kInOut) {
    return error(StatusCode::kInvalidArgument, "swiglu_ffn: x {} with interleaved or transposed W {} is not defined", dtype_name(x), dtype_name(w));
  }
  if (x == DType::kBF16 && w == DType::kBF16) return PM_DISPATCH(ctx, swiglu_ffn_bf16_bf16, a);
  if (x == DType::kF32 && w == DType::kBF16) return PM_DISPATCH(ctx, swiglu_ffn_f32_bf16, a);
  if (x == DType::kF32 && w == DType::kF16) return PM_DISPATCH(ctx, swiglu_ffn_f32_f16, a);
  if (x == DType::kF32 && w == DType::kF32) return PM_DISPATCH(ctx, swiglu_ffn_f32_f32, a);
  return error(StatusCode::kInvalidArgument, "swiglu_ffn: x {} with W {} is not defined", dtype_name(x), dtype_name(w));
}

}  // namespace pointsman::ops
