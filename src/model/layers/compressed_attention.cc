// SPDX-License-Identifier: Apache-2.0
#include "model/layers/compressed_attention.h"

#include <algorithm>
#include <cmath>

#include "model/forward.h"
#include "ops/compress/compress.h"
#include "ops/matmul/matmul.h"
#include "ops/norm/rms_norm.h"
#include "ops/rope/rotate_tail.h"

namespace pointsman {
namespace {

// Entries that close in a pass, at most: of n tokens of one sequence, n / ratio rounded up.
int64_t entry_rows(const ModelConfig& c, CompressKind kind, const PassShape& shape) {
  return c.compressed.has(kind) ? shape.chunk / c.compressed.ratio(kind) + shape.sequences : 0;
}

CompressedScratch::Table carve_table(Arena& a, const ModelConfig& c, int64_t rows) {
  return {a.take_array<float>(rows * (c.rotary_dim / 2)), a.take_array<float>(rows * (c.rotary_dim / 2))};
}

}  // namespace

CompressedScratch CompressedScratch::carve(Arena& a, const ModelConfig& c, Numerics n, const PassShape& shape) {
  const int64_t chunk = shape.chunk;
  const CompressedAttentionConfig& cc = c.compressed;
  if (cc.layers.empty()) return {};
  CompressedScratch s;
  s.q_a = a.take_matrix(DType::kF32, chunk, cc.q_lora_rank);
  if (n != Numerics::kFp32) s.q_a_bf16 = a.take_matrix(DType::kBF16, chunk, cc.q_lora_rank);
  s.keys = a.take_matrix(KvCache::dtype_for(n), chunk, c.head_dim);
  const int64_t widest = std::max(c.head_dim, cc.index_head_dim);
  s.pool_a = a.take_matrix(DType::kF32, chunk, 2 * widest);
  s.pool_gate = a.take_matrix(DType::kF32, chunk, 2 * widest);
  if (cc.has(CompressKind::kSparse)) {
    s.index_q = a.take_matrix(DType::kF32, chunk, cc.index_n_heads * cc.index_head_dim);
    s.index_weights = a.take_matrix(DType::kF32, chunk, cc.index_n_heads);
    s.index_ids = a.take_array<int32_t>(chunk * cc.index_topk);
    s.index_counts = a.take_array<int32_t>(chunk);
    s.num_index_scores = shape.positions / cc.sparse_ratio;
    s.index_scores = a.take_array<float>(s.num_index_scores);
  }
  s.z = a.take_matrix(DType::kF32, chunk, cc.o_groups * cc.o_lora_rank);
  s.tokens = carve_table(a, c, chunk);
  s.sparse_entries = carve_table(a, c, entry_rows(c, CompressKind::kSparse, shape));
  s.heavy_entries = carve_table(a, c, entry_rows(c, CompressKind::kHeavy, shape));
  return s;
}

CompressedHostScratch CompressedHostScratch::carve(Arena& a, const ModelConfig& c, const PassShape& shape) {
  if (c.compressed.layers.empty()) return {};
  CompressedHostScratch s;
  s.tokens = carve_table(a, c, shape.chunk);
  s.sparse_entries = carve_table(a, c, entry_rows(c, CompressKind::kSparse, shape));
  s.heavy_entries = carve_table(a, c, entry_rows(c, CompressKind::kHeavy, shape));
  return s;
}

namespace layers {
namespace {

// Of tokens, or of entries that stand `stride` tokens apart.
Status fill(ForwardPass& f, const ops::Sequences& list, int64_t stride, const CompressedScratch::Table& host, const CompressedScratch::Table& device) {
  if (list.rows() == 0) return ok_status();
  const ForwardPass::Parts& p = f.parts();
  const int64_t half = p.compress_rope.rotary_dim() / 2;
  for (int s = 0; s < list.count; ++s) {
    const int64_t at = list.first_row[s] * half;
    p.compress_rope.fill(list.first_position[s], list.rows_of(s), host.cos + at, host.sin + at, stride);
  }
  const size_t bytes = static_cast<size_t>(list.rows() * half) * sizeof(float);
  PM_RETURN_IF_ERROR(p.ops.stream->copy_to_device(device.cos, host.cos, bytes));
  return p.ops.stream->copy_to_device(device.sin, host.sin, bytes);
}

constexpr int64_t kKeyBlock = 64, kIndexBlock = 32;

ops::SimulateArgs indexer_codes(const Tensor& x, int64_t dim) {
  return {.x = x, .out = x, .code = ops::SimulatedCode::kE2M1, .block = kIndexBlock, .hadamard = dim};
}

// The layer in one of the caches: their sizes are the same.
const CompressedLayerCache& layer_of(const ForwardPass& f, int layer_idx) { return f.cache().compressed_layer(layer_idx); }
template <class T>
ops::PerSequence each_layer(const ForwardPass& f, int layer_idx, T* CompressedLayerCache::* member) {
  return f.each_cache([&](const KvCache& kv) { return static_cast<void*>(kv.compressed_layer(layer_idx).*member); });
}

// Entries that close in this pass, of the attention or of its indexer.
Status pool(ForwardPass& f, const Compressor& w, CompressKind kind, bool for_index, int layer_idx) {
  const ForwardPass::Parts& p = f.parts();
  const CompressedAttentionConfig& c = p.config.compressed;
  const CompressedScratch& s = p.scratch.compressed;
  const int64_t dim = for_index ? c.index_head_dim : p.config.head_dim;
  const ops::PerSequence entries = each_layer(f, layer_idx, for_index ? &CompressedLayerCache::index_keys : &CompressedLayerCache::entries);
  const bool overlap = kind == CompressKind::kSparse;
  const int64_t width = overlap ? 2 * dim : dim;
  const Tensor a = Tensor::matrix(s.pool_a.data, DType::kF32, f.tokens(), width), gate = Tensor::matrix(s.pool_gate.data, DType::kF32, f.tokens(), width);
  PM_RETURN_IF_ERROR(f.linear(w.wkv, a));
  PM_RETURN_IF_ERROR(f.linear(w.wgate, gate));
  const CompressedScratch::Table& rope = overlap ? s.sparse_entries : s.heavy_entries;
  PM_RETURN_IF_ERROR(ops::compress(p.ops, {.a = a,
                               .gate = gate,
                               .ape = w.ape,
                               .ring = each_layer(f, layer_idx, for_index ? &CompressedLayerCache::index_ring : &CompressedLayerCache::pool_ring),
                               .ring_rows = layer_of(f, layer_idx).pool_rows,
                               .sequences = f.sequences(),
                               .ratio = c.ratio(kind),
                               .overlap = overlap,
                               .norm = w.norm,
                               .eps = static_cast<float>(p.config.rms_norm_eps),
                               .cos = rope.cos,
                               .sin = rope.sin,
                               .rotary_dim = p.config.rotary_dim,
                               .entries = entries,
                               .entry_dtype = f.cache().dtype(),
                               .entry_rows = layer_of(f, layer_idx).entry_rows,
                               .dim = dim}));
  // Vendor numerics: keys of the indexer are turned and brought to E2M1, entries to E4M3 but for the channels that rotate.
  if (!f.is_vendor()) return ok_status();
  const ops::Sequences closed = ops::closing_entries(f.sequences(), c.ratio(kind));
  for (int i = 0; i < closed.count; ++i) {
    const Tensor made = Tensor::matrix(entries[i], f.cache().dtype(), layer_of(f, layer_idx).entry_rows, dim).slice_rows(closed.first_position[i], closed.rows_of(i));
    PM_RETURN_IF_ERROR(f.simulate(for_index ? indexer_codes(made, dim)
                                            : ops::SimulateArgs{.x = made, .out = made, .code = ops::SimulatedCode::kE4M3, .block = kKeyBlock,
                                                                .num_cols = dim - p.config.rotary_dim}));
  }
  return ok_status();
}

// The entries that each query may look at, into index_ids and index_counts.
Status select_entries(ForwardPass& f, const CompressedAttention& w, int layer_idx) {
  const ForwardPass::Parts& p = f.parts();
  const CompressedAttentionConfig& c = p.config.compressed;
  const CompressedScratch& s = p.scratch.compressed;
  PM_RETURN_IF_ERROR(pool(f, w.index_compressor, CompressKind::kSparse, true, layer_idx));
  const Tensor q = f.rows(s.index_q), weights = f.rows(s.index_weights);
  PM_RETURN_IF_ERROR(f.linear(w.index_q_b, f.rows(s.q_a), s.q_a_bf16 ? f.rows(s.q_a_bf16) : Tensor{}, q));
  PM_RETURN_IF_ERROR(ops::rotate_tail(p.ops, {.x = q, .out = q, .cos = s.tokens.cos, .sin = s.tokens.sin, .heads = c.index_n_heads,
                                              .head_dim = c.index_head_dim, .rotary_dim = p.config.rotary_dim}));
  PM_RETURN_IF_ERROR(f.simulate(indexer_codes(q, c.index_head_dim)));
  PM_RETURN_IF_ERROR(f.linear(w.index_weights, weights));
  const float scale = 1 / (std::sqrt(static_cast<float>(c.index_n_heads)) * std::sqrt(static_cast<float>(c.index_head_dim)));
  return ops::index_select(p.ops, {.q = q,
                                   .weights = weights,
                                   .scale = scale,
                                   .keys = each_layer(f, layer_idx, &CompressedLayerCache::index_keys),
                                   .key_dtype = f.cache().dtype(),
                                   .heads = c.index_n_heads,
                                   .dim = c.index_head_dim,
                                   .sequences = f.sequences(),
                                   .ratio = c.sparse_ratio,
                                   .top_k = c.index_topk,
                                   .ids = s.index_ids,
                                   .counts = s.index_counts,
                                   .scores = s.index_scores,
                                   .num_scores = s.num_index_scores});
}

// h += wo_b (wo_a of each group of heads)
Status add_grouped_output(ForwardPass& f, const CompressedAttention& w, const Tensor& o) {
  const CompressedAttentionConfig& c = f.parts().config.compressed;
  const Tensor z = f.rows(f.parts().scratch.compressed.z);
  const int64_t in = o.cols / c.o_groups;
  for (int64_t g = 0; g < c.o_groups; ++g) {
    Tensor x = o, y = z;
    x.data = static_cast<std::byte*>(o.data) + g * in * dtype_bits(o.dtype) / 8;
    x.cols = in;
    y.data = z.row<float>(0) + g * c.o_lora_rank;
    y.cols = c.o_lora_rank;
    PM_RETURN_IF_ERROR(ops::matmul(f.parts().ops, {.x = x, .w = w.o_a.weight.slice_out(g * c.o_lora_rank, c.o_lora_rank), .y = y}));
  }
  // z stays fp32, but in vendor numerics: rounding it would be one more than the numerics promise. h is zero: it may be overwritten.
  PM_RETURN_IF_ERROR(f.round_bf16(z));
  return f.linear(w.o_b, z, {}, f.rows(f.parts().scratch.h));
}

}  // namespace

Status fill_compressed_ropes(ForwardPass& f) {
  const ForwardPass::Parts& p = f.parts();
  const CompressedAttentionConfig& c = p.config.compressed;
  const CompressedScratch& s = p.scratch.compressed;
  const CompressedHostScratch& h = p.host.compressed;
  PM_RETURN_IF_ERROR(fill(f, f.sequences(), 1, h.tokens, s.tokens));
  const auto entries = [&](CompressKind kind, const CompressedScratch::Table& host, const CompressedScratch::Table& device) {
    if (!c.has(kind)) return ok_status();
    return fill(f, ops::closing_entries(f.sequences(), c.ratio(kind)), c.ratio(kind), host, device);
  };
  PM_RETURN_IF_ERROR(entries(CompressKind::kSparse, h.sparse_entries, s.sparse_entries));
  return entries(CompressKind::kHeavy, h.heavy_entries, s.heavy_entries);
}

Status add_compressed_attention(ForwardPass& f, const CompressedAttention& w, int layer_idx) {
  const ForwardPass::Parts& p = f.parts();
  const ModelConfig& c = p.config;
  const CompressKind kind = c.compressed.layers[static_cast<size_t>(layer_idx)];
  const CompressedScratch& s = p.scratch.compressed;
  const float eps = static_cast<float>(c.rms_norm_eps);
  // Layers that only have a window turn by another base, and without YaRN.
  const float* cos = kind == CompressKind::kNone ? p.scratch.cos : s.tokens.cos;
  const float* sin = kind == CompressKind::kNone ? p.scratch.sin : s.tokens.sin;

  // q = rotate(unit rms per head(wq_b q_norm(wq_a x)))
  const Tensor q_a = f.rows(s.q_a), q_a_bf16 = s.q_a_bf16 ? f.rows(s.q_a_bf16) : Tensor{};
  PM_RETURN_IF_ERROR(f.linear(w.q_a, q_a));
  PM_RETURN_IF_ERROR(ops::rms_norm(p.ops, {.x = q_a, .weight = w.q_norm, .eps = eps, .out_f32 = q_a, .out_bf16 = q_a_bf16}));
  PM_RETURN_IF_ERROR(f.round_bf16(q_a));
  PM_RETURN_IF_ERROR(f.linear(w.q_b, q_a, q_a_bf16, f.q()));
  PM_RETURN_IF_ERROR(ops::rotate_tail(p.ops, {.x = f.q(), .out = f.q(), .norm = ops::HeadNorm::kUnweighted, .eps = eps, .cos = cos, .sin = sin,
                                              .heads = c.num_attention_heads, .head_dim = c.head_dim, .rotary_dim = c.rotary_dim}));
  // One vector per token, key and value of all heads.
  PM_RETURN_IF_ERROR(f.linear(w.kv, f.k()));
  PM_RETURN_IF_ERROR(ops::rotate_tail(p.ops, {.x = f.k(), .out = f.rows(s.keys), .norm = ops::HeadNorm::kWeighted, .weight = w.kv_norm, .eps = eps,
                                              .cos = cos, .sin = sin, .heads = 1, .head_dim = c.head_dim, .rotary_dim = c.rotary_dim}));
  const Tensor keys = f.rows(s.keys);
  PM_RETURN_IF_ERROR(f.simulate({.x = keys, .out = keys, .code = ops::SimulatedCode::kE4M3, .block = kKeyBlock, .num_cols = c.head_dim - c.rotary_dim}));
  if (kind != CompressKind::kNone) PM_RETURN_IF_ERROR(pool(f, w.compressor, kind, false, layer_idx));
  const bool indexed = kind == CompressKind::kSparse;
  if (indexed) PM_RETURN_IF_ERROR(select_entries(f, w, layer_idx));

  const Tensor o = f.rows(p.scratch.attention_f32);
  PM_RETURN_IF_ERROR(ops::compressed_attention(p.ops, {.q = f.q(),
                                                       .new_keys = f.rows(s.keys),
                                                       .ring = each_layer(f, layer_idx, &CompressedLayerCache::ring),
                                                       .ring_rows = layer_of(f, layer_idx).ring_rows,
                                                       .entries = each_layer(f, layer_idx, &CompressedLayerCache::entries),
                                                       .ids = indexed ? s.index_ids : nullptr,
                                                       .counts = indexed ? s.index_counts : nullptr,
                                                       .max_ids = c.compressed.index_topk,
                                                       .ratio = c.compressed.ratio(kind),
                                                       .cache_dtype = f.cache().dtype(),
                                                       .sinks = w.sinks,
                                                       .scale = 1 / std::sqrt(static_cast<float>(c.head_dim)),
                                                       .window = c.layer_window[static_cast<size_t>(layer_idx)],
                                                       .heads = c.num_attention_heads,
                                                       .dim = c.head_dim,
                                                       .sequences = f.sequences(),
                                                       .out = o}));
  // Backwards by the query's own position: what is left depends on distances only. q is free by now.
  Tensor turned = f.q();
  if (f.use_bf16(w.o_a.weight)) turned = Tensor::matrix(turned.data, DType::kBF16, turned.rows, turned.cols);
  PM_RETURN_IF_ERROR(ops::rotate_tail(p.ops, {.x = o, .out = turned, .cos = cos, .sin = sin, .inverse = true, .heads = c.num_attention_heads,
                                              .head_dim = c.head_dim, .rotary_dim = c.rotary_dim}));
  PM_RETURN_IF_ERROR(f.round_bf16(turned));  // not quantised, whatever o_a is stored as
  return add_grouped_output(f, w, turned);
}

}  // namespace layers
}  // namespace pointsman
