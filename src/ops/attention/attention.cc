// SPDX-License-Identifier: Apache-2.0
#include "ops/attention/attention.h"

#include "ops/dispatch.h"

namespace pointsman::ops {
namespace {

// What both ops ask of heads, cache and positions.
template <class Args>
Status check(const char* op, const Args& a) {
  if (a.heads < 1 || a.kv_heads < 1 || a.heads % a.kv_heads != 0 || a.head_dim < 1 || a.head_dim > kMaxHeadDim) {
    return error(StatusCode::kInvalidArgument, "{}: {} heads on {} kv heads of dimension {} (at most {})", op, a.heads, a.kv_heads, a.head_dim, kMaxHeadDim);
  }
  if (a.q.dtype != DType::kF32 || a.q.cols != int64_t{a.heads} * a.head_dim) {
    return error(StatusCode::kInvalidArgument, "{}: q [{}, {}] {}, expected {} columns of F32", op, a.q.rows, a.q.cols, dtype_name(a.q.dtype),
                 int64_t{a.heads} * a.head_dim);
  }
  if (!a.sequences.fit(a.q.rows, a.capacity)) {
    return error(StatusCode::kInvalidArgument, "{}: {} rows for {} of {} sequences (at most {}), up to position {} in caches of {}", op, a.q.rows, a.sequences.rows(),
                 a.sequences.count, kMaxSequences, a.sequences.longest() - 1, a.capacity);
  }
  if (a.cache_dtype != DType::kF32 && a.cache_dtype != DType::kBF16 && a.cache_dtype != DType::kI8) {
    return error(StatusCode::kInvalidArgument, "{}: cache of {}, expected F32, BF16 or I8", op, dtype_name(a.cache_dtype));
  }
  return ok_status();
}

}  // namespace

Status qkv_prepare(OpContext& ctx, const QkvPrepareArgs& a) {
  PM_RETURN_IF_ERROR(check("qkv_prepare", a));
  const int64_t kv_cols = int64_t{a.kv_heads} * a.head_dim;
  if (a.k.rows != a.q.rows || a.v.rows != a.q.rows || a.k.cols != kv_cols || a.v.cols != kv_cols || a.rotary_dim < 0 || a.rotary_dim > a.head_dim ||
      a.rotary_dim % 2 != 0 || !(a.clip >= 0)) {
    return error(StatusCode::kInvalidArgument, "qkv_prepare: q [{}, {}], k [{}, {}], v [{}, {}], rotary_dim {}, clip {} do not fit", a.q.rows, a.q.cols, a.k.rows,
                 a.k.cols, a.v.rows, a.v.cols, a.rotary_dim, a.clip);
  }
  if (a.q.rows == 0) return ok_status();
  if (a.cache_dtype == DType::kI8) return PM_DISPATCH(ctx, qkv_prepare_i8, a);
  return a.cache_dtype == DType::kBF16 ? PM_DISPATCH(ctx, qkv_prepare_tiles, a) : PM_DISPATCH(ctx, qkv_prepare_f32, a);
}

Status attention(OpContext& ctx, const AttentionArgs& a) {
  PM_RETURN_IF_ERROR(check("attention", a));
  const int64_t v_dim = a.v_head_dim > 0 ? a.v_head_dim : a.head_dim;
  if (a.v_head_dim < 0 || v_dim > kMaxHeadDim || (a.v_row != 0 && a.v_row < v_dim)) {
    return error(StatusCode::kInvalidArgument, "attention: values of {} (at most {}) in rows of {}", v_dim, kMaxHeadDim, a.v_row);
  }
  if (a.cache_dtype == DType::kI8 && a.v_row != 0 && a.v_row != v_dim) {
    return error(StatusCode::kInvalidArgument, "attention: values of {} in rows of {}: a cache of I8 has a scale for each whole row", v_dim, a.v_row);
  }
  if (a.out.rows != a.q.rows || a.out.cols != a.heads * v_dim || (a.out.dtype != DType::kF32 && a.out.dtype != DType::kBF16) || a.window < 0) {
    return error(StatusCode::kInvalidArgument, "attention: q [{}, {}], out [{}, {}] {}, window {} do not fit", a.q.rows, a.q.cols, a.out.rows, a.out.cols,
                 dtype_name(a.out.dtype), a.window);
  }
  if (a.layout == CacheLayout::kTiles && (a.cache_dtype != DType::kBF16 || v_dim != a.head_dim || a.v_row != 0)) {
    return error(StatusCode::kInvalidArgument, "attention: cache of {}, keys of {}, values of {} in rows of {}: tiles are BF16 and of one width",
                 dtype_name(a.cache_dtype), a.head_dim, v_dim, a.v_row);
  }
  if (a.q.rows == 0) return ok_status();
  if (a.layout == CacheLayout::kTiles) return PM_DISPATCH(ctx, attention_tiles, a);
  if (a.cache_dtype == DType::kI8) return PM_DISPATCH(ctx, attention_i8, a);
  return a.cache_dtype == DType::kBF16 ? PM_DISPATCH(ctx, attention_bf16, a) : PM_DISPATCH(ctx, attention_f32, a);
}

}  // namespace pointsman::ops
