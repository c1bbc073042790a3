// SPDX-License-Identifier: Apache-2.0
#include "ops/compress/compress.h"

#include "ops/attention/attention.h"
#include "ops/dispatch.h"

namespace pointsman::ops {
namespace {

bool is_cache_dtype(DType d) { return d == DType::kF32 || d == DType::kBF16; }

constexpr int64_t kAnyCapacity = int64_t{1} << 60;  // rings take every position

}  // namespace

Sequences closing_entries(const Sequences& tokens, int64_t ratio) {
  Sequences entries;
  for (int s = 0; s < tokens.count; ++s) {
    const int64_t first = tokens.first_position[s] / ratio;
    entries.add(tokens.end_position(s) / ratio - first, first);
  }
  return entries;
}

Status compress(OpContext& ctx, const CompressArgs& a) {
  const int64_t width = a.overlap ? 2 * a.dim : a.dim;
  if (a.dim < 1 || a.dim > kMaxHeadDim || a.ratio < 1 || a.a.cols != width || a.gate.cols != width || a.gate.rows != a.a.rows || a.a.dtype != DType::kF32 ||
      a.gate.dtype != DType::kF32 || !is_cache_dtype(a.entry_dtype) || a.rotary_dim < 0 || a.rotary_dim > a.dim || a.rotary_dim % 2 != 0) {
    return error(StatusCode::kInvalidArgument, "compress: a [{}, {}], gate [{}, {}], dim {}, ratio {}, {} channels, entries {} do not fit", a.a.rows, a.a.cols,
                 a.gate.rows, a.gate.cols, a.dim, a.ratio, a.rotary_dim, dtype_name(a.entry_dtype));
  }
  if (a.ring_rows < (a.overlap ? 2 : 1) * a.ratio - 1 || !a.sequences.fit(a.a.rows, kAnyCapacity) ||
      a.sequences.longest() / a.ratio > a.entry_rows) {
    return error(StatusCode::kInvalidArgument, "compress: {} rows for {} of {} sequences, up to position {} at ratio {}: a ring of {} rows and room for {} entries do not fit",
                 a.a.rows, a.sequences.rows(), a.sequences.count, a.sequences.longest() - 1, a.ratio, a.ring_rows, a.entry_rows);
  }
  if (a.a.rows == 0) return ok_status();
  return a.entry_dtype == DType::kBF16 ? PM_DISPATCH(ctx, compress_bf16, a) : PM_DISPATCH(ctx, compress_f32, a);
}

Status index_select(OpContext& ctx, const IndexSelectArgs& a) {
  if (a.heads < 1 || a.dim < 1 || a.q.cols != a.heads * a.dim || a.weights.cols != a.heads || a.weights.rows != a.q.rows || a.q.dtype != DType::kF32 ||
      a.weights.dtype != DType::kF32 || !is_cache_dtype(a.key_dtype) || a.ratio < 1 || a.top_k < 1 || a.top_k > kMaxIndexTopK || !a.sequences.fit(a.q.rows, kAnyCapacity)) {
    return error(StatusCode::kInvalidArgument, "index_select: q [{}, {}], weights [{}, {}], {} heads of {}, top {} (at most {}) do not fit", a.q.rows, a.q.cols,
                 a.weights.rows, a.weights.cols, a.heads, a.dim, a.top_k, kMaxIndexTopK);
  }
  if (a.q.rows == 0) return ok_status();
  return a.key_dtype == DType::kBF16 ? PM_DISPATCH(ctx, index_select_bf16, a) : PM_DISPATCH(ctx, index_select_f32, a);
}

Status compressed_attention(OpContext& ctx, const CompressedAttentionArgs& a) {
  if (a.heads < 1 || a.dim < 1 || a.dim > kMaxHeadDim || a.q.cols != a.heads * a.dim || a.out.cols != a.q.cols || a.out.rows != a.q.rows ||
      a.new_keys.rows != a.q.rows || a.new_keys.cols != a.dim || a.q.dtype != DType::kF32 || a.out.dtype != DType::kF32 || !is_cache_dtype(a.cache_dtype) ||
      a.new_keys.dtype != a.cache_dtype) {
    return error(StatusCode::kInvalidArgument, "compressed_attention: q [{}, {}], keys [{}, {}] {}, out [{}, {}], {} heads of {}, cache {} do not fit", a.q.rows,
                 a.q.cols, a.new_keys.rows, a.new_keys.cols, dtype_name(a.new_keys.dtype), a.out.rows, a.out.cols, a.heads, a.dim, dtype_name(a.cache_dtype));
  }
  if (a.window < 1 || a.ring_rows < 1 || a.ring_rows < a.window - 1 || !a.sequences.fit(a.q.rows, kAnyCapacity) || (a.has_entries() && a.ratio < 1) ||
      (a.ids != nullptr && (a.counts == nullptr || !a.has_entries()))) {
    return error(StatusCode::kInvalidArgument, "compressed_attention: {} rows for {} of {} sequences, window {} in rings of {} rows, ratio {}: a ring must hold all but one key of a window",
                 a.q.rows, a.sequences.rows(), a.sequences.count, a.window, a.ring_rows, a.ratio);
  }
  if (a.q.rows == 0) return ok_status();
  return a.cache_dtype == DType::kBF16 ? PM_DISPATCH(ctx, compressed_attention_bf16, a) : PM_DISPATCH(ctx, compressed_attention_f32, a);
}

}  // namespace pointsman::ops
