// SPDX-License-Identifier: Apache-2.0
#include "ops/activation/swiglu.h"

#include "ops/dispatch.h"
#include "ops/quant/quantise.h"

namespace pointsman::ops {

namespace {

// Does expert `e` fit x, act and out, and the first expert with rows (`like`)?
Status check_expert(const SwigluFfnArgs& a, int index, const FfnExpert& e, const FfnExpert& like) {
  const bool interleaved = !e.w_up;
  const int64_t hidden = e.w_gate.cols, intermediate = interleaved ? e.w_gate.rows / 2 : e.w_gate.rows;
  if (a.x.cols != hidden || (interleaved ? e.w_gate.rows % 2 != 0 : e.w_up.cols != hidden || e.w_up.rows != intermediate) || e.w_down.rows != a.out.cols ||
      e.w_down.cols != intermediate || a.act.cols != intermediate || e.first < 0 || (a.x_rows == nullptr && a.x.rows < e.first + e.rows) ||
      (a.out_rows == nullptr && a.out.rows < e.first + e.rows)) {
    return error(StatusCode::kInvalidArgument,
                 "swiglu_ffn: expert {} of the group: rows {} to {}, x [{}, {}], gate [{}, {}], up [{}, {}], down [{}, {}], act [{}, {}], out [{}, {}] do "
                 "not fit",
                 index, e.first, e.first + e.rows, a.x.rows, a.x.cols, e.w_gate.rows, e.w_gate.cols, e.w_up.rows, e.w_up.cols, e.w_down.rows,
                 e.w_down.cols, a.act.rows, a.act.cols, a.out.rows, a.out.cols);
  }
  const DType w = like.w_gate.dtype;
  const WeightLayout layout = like.w_gate.layout;
  const auto differs = [&](const Weight& o) { return o.dtype != w || o.layout != layout; };
  if (differs(e.w_gate) || (!interleaved && differs(e.w_up)) || differs(e.w_down) || interleaved != !like.w_up) {
    return error(StatusCode::kInvalidArgument, "swiglu_ffn: expert {} of the group: gate {}, up {}, down {} must agree, and all experts of a group ({})",
                 index, dtype_name(e.w_gate.dtype), dtype_name(e.w_up.dtype), dtype_name(e.w_down.dtype), dtype_name(w));
  }
  for (const Weight* m : {&e.w_gate, &e.w_up, &e.w_down}) {
    if (m->data == nullptr || is_computable(*m)) continue;
    return error(StatusCode::kInvalidArgument, "swiglu_ffn: W {} with blocks of {} x {} and {} scales is not defined", dtype_name(w), m->format.block_rows,
                 m->format.block_cols, dtype_name(m->format.scale_dtype));
  }
  return ok_status();
}

}  // namespace

Status swiglu_ffn(OpContext& ctx, const SwigluFfnArgs& a) {
  if (a.num_experts < 0 || a.num_experts > kMaxFfnExperts) {
    return error(StatusCode::kInvalidArgument, "swiglu_ffn: a group of {}, expected 0 to {}", a.num_experts, kMaxFfnExperts);
  }
  const FfnExpert* like = nullptr;
  int64_t rows = 0;
  for (int i = 0; i < a.num_experts; ++i) {
    const FfnExpert& e = a.experts[i];
    if (e.rows == 0) continue;
    if (e.rows < 0) return error(StatusCode::kInvalidArgument, "swiglu_ffn: expert {} of the group has {} rows", i, e.rows);
    if (like == nullptr) like = &e;
    rows += e.rows;
    PM_RETURN_IF_ERROR(check_expert(a, i, e, *like));
  }
  if (rows == 0) return ok_status();
  const DType x = a.x.dtype, w = like->w_gate.dtype;
  const WeightLayout layout = like->w_gate.layout;
  const bool interleaved = !like->w_up;
  if (a.act.rows < rows) return error(StatusCode::kInvalidArgument, "swiglu_ffn: act has {} rows, the group {}", a.act.rows, rows);
  if (a.act.dtype != x || a.out.dtype != DType::kF32) {
    return error(StatusCode::kInvalidArgument, "swiglu_ffn: act {} must be as x {}, out {} F32", dtype_name(a.act.dtype), dtype_name(x),
                 dtype_name(a.out.dtype));
  }
  if (a.act_block < 0 || (a.act_block > 0 && (x != DType::kF32 || !is_coded(w) || layout != WeightLayout::kOutIn))) {
    return error(StatusCode::kInvalidArgument, "swiglu_ffn: act in blocks of {} with x {} and W {}: only F32 with coded weights", a.act_block, dtype_name(x),
                 dtype_name(w));
  }
  if (layout == WeightLayout::kPanel32) {
    if (a.paths == nullptr && ctx.paths != nullptr) {
      SwigluFfnArgs with = a;
      with.paths = ctx.paths;
      return swiglu_ffn(ctx, with);
    }
    const OpIndex counted = x == DType::kI8 ? OpIndex::k_swiglu_ffn_panel_i8 : OpIndex::k_swiglu_ffn_panel_bf16;
    for (int i = 0; i < a.num_experts && x != DType::kF32; ++i) note_paths(ctx, counted, a.paths, w, a.experts[i].rows);
    if (x == DType::kI8 && (w == DType::kI8 || w == DType::kF4)) {
      // One kernel, so one kind of block; a row of one block of 32 is of both kinds.
      const auto is_narrow = [](const Tensor& t) { return quant_block_of(t) == kQuantBlock && t.cols > kQuantBlock; };
      const bool mixed = (is_narrow(a.x) && quant_block_of(a.act) == kWideQuantBlock) || (is_narrow(a.act) && quant_block_of(a.x) == kWideQuantBlock);
      for (int i = 0; i < a.num_experts; ++i) {
        const FfnExpert& e = a.experts[i];
        if (e.rows == 0) continue;
        if (!mixed && is_quantised_for(a.x, e.w_gate) && (interleaved || is_quantised_for(a.x, e.w_up)) && is_quantised_for(a.act, e.w_down)) continue;
        return error(StatusCode::kInvalidArgument, "swiglu_ffn: expert {} of the group: x in blocks of {}, act in blocks of {}: gate needs {}, down {}, and both the same", i,
                     quant_block_of(a.x), quant_block_of(a.act), quant_block_for(e.w_gate), quant_block_for(e.w_down));
      }
      return PM_DISPATCH(ctx, swiglu_ffn_panel_i8, a);
    }
    if (x == DType::kBF16 && (w == DType::kBF16 || w == DType::kF8E4M3)) return PM_DISPATCH(ctx, swiglu_ffn_panel_bf16, a);
    if (x == DType::kF32) return PM_DISPATCH(ctx, swiglu_ffn_panel_f32, a);
    return error(StatusCode::kInvalidArgument, "swiglu_ffn: x {} with W {} in panels is not defined", dtype_name(x), dtype_name(w));
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
