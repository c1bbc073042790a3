// SPDX-License-Identifier: Apache-2.0
#include "ops/attention/latent.h"

#include "ops/dispatch.h"

namespace pointsman::ops {
namespace {

bool is_f32(const Tensor& t, int64_t rows, int64_t cols) { return t.dtype == DType::kF32 && t.rows == rows && t.cols == cols; }

}  // namespace

Status latent_prepare(OpContext& ctx, const LatentPrepareArgs& a) {
  const int64_t tokens = a.q.rows;
  if (a.heads < 1 || a.nope < 0 || a.rope < 0 || a.rope % 2 != 0 || a.rank < 1 || !is_f32(a.q, tokens, int64_t{a.heads} * (a.nope + a.rope)) ||
      !is_f32(a.kv, tokens, int64_t{a.rank} + a.rope)) {
    return error(StatusCode::kInvalidArgument, "latent_prepare: q [{}, {}], kv [{}, {}] do not fit {} heads of {} + {}, rank {}", a.q.rows, a.q.cols, a.kv.rows,
                 a.kv.cols, a.heads, a.nope, a.rope, a.rank);
  }
  return tokens == 0 ? ok_status() : PM_DISPATCH(ctx, latent_prepare_f32, a);
}

Status latent_cache(OpContext& ctx, const LatentCacheArgs& a) {
  const int64_t tokens = a.kv.rows;
  const bool naive = static_cast<bool>(a.expanded);
  if (!is_f32(a.kv, tokens, int64_t{a.rank} + a.rope) || (naive && !is_f32(a.expanded, tokens, int64_t{a.heads} * (a.nope + a.v))) ||
      !a.sequences.fit(tokens, a.capacity) || (a.cache_dtype != DType::kF32 && a.cache_dtype != DType::kBF16)) {
    return error(StatusCode::kInvalidArgument, "latent_cache: kv [{}, {}], expanded [{}, {}], {} sequences up to position {} in {} caches of {} do not fit", a.kv.rows,
                 a.kv.cols, a.expanded.rows, a.expanded.cols, a.sequences.count, a.sequences.longest() - 1, dtype_name(a.cache_dtype), a.capacity);
  }
  return tokens == 0 ? ok_status() : PM_DISPATCH(ctx, latent_cache, a);
}

Status head_matmul(OpContext& ctx, const HeadMatmulArgs& a) {
  const int64_t in = a.transposed ? a.count : a.w.cols, out = a.transposed ? a.w.cols : a.count;
  if (a.heads < 1 || a.first < 0 || a.count < 1 || a.stride < a.first + a.count || a.w.rows < a.heads * a.stride || a.x.dtype != DType::kF32 ||
      a.x.cols != a.heads * a.x_width || a.y.cols != a.heads * a.y_width || a.x.rows != a.y.rows || in > a.x_width || out > a.y_width ||
      (a.y.dtype != DType::kF32 && a.y.dtype != DType::kBF16) || a.w.layout != WeightLayout::kOutIn || !is_computable(a.w)) {
    return error(StatusCode::kInvalidArgument,
                 "head_matmul: x [{}, {}], W [{}, {}] {}, y [{}, {}] do not fit {} heads of {} rows ({} from {}) and widths {} to {}", a.x.rows, a.x.cols,
                 a.w.rows, a.w.cols, dtype_name(a.w.dtype), a.y.rows, a.y.cols, a.heads, a.stride, a.count, a.first, a.x_width, a.y_width);
  }
  return a.x.rows == 0 ? ok_status() : PM_DISPATCH(ctx, head_matmul_f32, a);
}

Status head_copy(OpContext& ctx, const HeadCopyArgs& a) {
  if (a.heads < 1 || a.count < 0 || a.x_first < 0 || a.y_first < 0 || a.x_first + a.count > a.x_width || a.y_first + a.count > a.y_width ||
      !is_f32(a.x, a.y.rows, a.heads * a.x_width) || !is_f32(a.y, a.x.rows, a.heads * a.y_width)) {
    return error(StatusCode::kInvalidArgument, "head_copy: x [{}, {}], y [{}, {}], {} heads, {} channels from {} to {} do not fit", a.x.rows, a.x.cols, a.y.rows,
                 a.y.cols, a.heads, a.count, a.x_first, a.y_first);
  }
  return a.x.rows == 0 ? ok_status() : PM_DISPATCH(ctx, head_copy_f32, a);
}

}  // namespace pointsman::ops
