// SPDX-License-Identifier: Apache-2.0
#include "ops/matmul/matmul.h"

#include "ops/dispatch.h"
#include "ops/quant/quantise.h"

namespace pointsman::ops {

namespace {

Status check_part(const MatmulArgs& a, int part) {
  const Weight& w = a.w_of(part);
  const Tensor& y = a.y_of(part);
  if (a.x.cols != w.cols || y.cols != w.rows || (a.x_rows == nullptr && a.x.rows < y.rows)) {
    return error(StatusCode::kInvalidArgument, "matmul: x [{}, {}], W [{}, {}], y [{}, {}] do not fit", a.x.rows, a.x.cols, w.rows, w.cols, y.rows, y.cols);
  }
  if (y.dtype != DType::kF32) return error(StatusCode::kInvalidArgument, "matmul: y is {}, expected F32", dtype_name(y.dtype));
  if (w.dtype != a.w.dtype || w.layout != a.w.layout || y.rows != a.y.rows) {
    return error(StatusCode::kInvalidArgument, "matmul: products of one x: W {} with {} rows of y against W {} with {}", dtype_name(w.dtype), y.rows,
                 dtype_name(a.w.dtype), a.y.rows);
  }
  if (y.rows > 0 && !is_computable(w)) {
    return error(StatusCode::kInvalidArgument, "matmul: W {} with blocks of {} x {} and {} scales is not defined", dtype_name(w.dtype), w.format.block_rows,
                 w.format.block_cols, dtype_name(w.format.scale_dtype));
  }
  return ok_status();
}

}  // namespace

Status matmul(OpContext& ctx, const MatmulArgs& a) {
  if (a.num_more < 0 || a.num_more > kMaxMoreParts) {
    return error(StatusCode::kInvalidArgument, "matmul: {} more products, expected 0 to {}", a.num_more, kMaxMoreParts);
  }
  for (int part = 0; part <= a.num_more; ++part) PM_RETURN_IF_ERROR(check_part(a, part));
  if (a.y.rows == 0) return ok_status();
  if (a.w.layout == WeightLayout::kPanel32) {
    if (a.paths == nullptr && ctx.paths != nullptr) {
      MatmulArgs with = a;
      with.paths = ctx.paths;
      return matmul(ctx, with);
    }
    const OpIndex counted = a.x.dtype == DType::kI8 ? OpIndex::k_matmul_panel_i8 : OpIndex::k_matmul_panel_bf16;
    for (int part = 0; part <= a.num_more && a.x.dtype != DType::kF32; ++part) note_paths(ctx, counted, a.paths, a.w.dtype, a.y.rows);
    if (a.x.dtype == DType::kI8 && (a.w.dtype == DType::kI8 || a.w.dtype == DType::kF4)) {
      for (int part = 0; part <= a.num_more; ++part) {
        if (is_quantised_for(a.x, a.w_of(part))) continue;
        return error(StatusCode::kInvalidArgument, "matmul: x of {} columns in rows of {} bytes, blocks of {}; W {} needs blocks of {}", a.x.cols,
                     a.x.row_stride, quant_block_of(a.x), dtype_name(a.w.dtype), quant_block_for(a.w_of(part)));
      }
      return PM_DISPATCH(ctx, matmul_panel_i8, a);
    }
    if (a.x.dtype == DType::kBF16 && (a.w.dtype == DType::kBF16 || a.w.dtype == DType::kF8E4M3)) return PM_DISPATCH(ctx, matmul_panel_bf16, a);
    if (a.x.dtype == DType::kF32) return PM_DISPATCH(ctx, matmul_panel_f32, a);
    return error(StatusCode::kInvalidArgument, "matmul: x {} with W {} in panels is not defined", dtype_name(a.x.dtype), dtype_name(a.w.dtype));
  }
  if (a.x.dtype == DType::kF32 && a.w.layout == WeightLayout::kInOut) return PM_DISPATCH(ctx, matmul_f32_in_out, a);
  if (a.x.dtype == DType::kF32 && is_coded(a.w.dtype)) return PM_DISPATCH(ctx, matmul_f32_coded, a);
  if (a.w.layout == WeightLayout::kInOut) return error(StatusCode::kInvalidArgument, "matmul: x {} with a transposed W is not defined", dtype_name(a.x.dtype));
  if (a.x.dtype == DType::kBF16 && a.w.dtype == DType::kBF16) return PM_DISPATCH(ctx, matmul_bf16_bf16, a);
  if (a.x.dtype == DType::kF32 && a.w.dtype == DType::kBF16) return PM_DISPATCH(ctx, matmul_f32_bf16, a);
  if (a.x.dtype == DType::kF32 && a.w.dtype == DType::kF16) return PM_DISPATCH(ctx, matmul_f32_f16, a);
  if (a.x.dtype == DType::kF32 && a.w.dtype == DType::kF32) return PM_DISPATCH(ctx, matmul_f32_f32, a);
  return error(StatusCode::kInvalidArgument, "matmul: x {} with W {} is not defined", dtype_name(a.x.dtype), dtype_name(a.w.dtype));
}

}  // namespace pointsman::ops
