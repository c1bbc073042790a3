// SPDX-License-Identifier: Apache-2.0
#include "model/layers/latent_attention.h"

#include <algorithm>

#include "base/log.h"
#include "model/binding.h"
#include "model/forward.h"
#include "ops/attention/attention.h"
#include "ops/attention/latent.h"
#include "ops/matmul/matmul.h"
#include "ops/norm/rms_norm.h"

namespace pointsman {
namespace {

// transformers builds the two inner norms with the default of their class, whatever rms_norm_eps says.
constexpr float kInnerEps = 1e-6f;

int64_t key_width(const LatentAttentionConfig& a) { return a.kv_lora_rank + a.rope; }

}  // namespace

LatentScratch LatentScratch::carve(Arena& arena, const ModelConfig& c, Numerics n, int64_t chunk) {
  LatentScratch s;
  const LatentAttentionConfig& a = c.latent;
  if (!a) return s;
  const int64_t heads = c.num_attention_heads, tokens = std::min(chunk, kTokens);
  if (a.q_lora_rank > 0) {
    s.q_a = arena.take_matrix(DType::kF32, chunk, a.q_lora_rank);
    if (n != Numerics::kFp32) s.q_a_bf16 = arena.take_matrix(DType::kBF16, chunk, a.q_lora_rank);
  }
  s.kv = arena.take_matrix(DType::kF32, chunk, key_width(a));
  if (a.naive) {
    s.expanded = arena.take_matrix(DType::kF32, chunk, heads * (a.nope + a.v));
  } else {
    s.q_latent = arena.take_matrix(DType::kF32, tokens, heads * key_width(a));
    s.o_latent = arena.take_matrix(DType::kF32, tokens, heads * a.kv_lora_rank);
  }
  return s;
}

namespace layers {
namespace {

// q and [c | k_r], normed and rotated.
Status project(ForwardPass& f, const LayerWeights& w) {
  const ModelConfig& c = f.parts().config;
  const LatentAttentionConfig& a = c.latent;
  const Scratch& s = f.parts().scratch;
  const LatentScratch& own = s.latent;
  PM_RETURN_IF_ERROR(f.norm(w.input_norm));
  if (a.q_lora_rank > 0) {
    const Tensor q_a = f.rows(own.q_a);
    PM_RETURN_IF_ERROR(f.linear(w.latent.q_a, q_a));
    PM_RETURN_IF_ERROR(ops::rms_norm(f.parts().ops, {.x = q_a, .weight = w.latent.q_a_norm, .eps = kInnerEps, .out_f32 = q_a,
                                                     .out_bf16 = own.q_a_bf16 ? f.rows(own.q_a_bf16) : Tensor{}}));
    PM_RETURN_IF_ERROR(f.round_bf16(q_a));
    PM_RETURN_IF_ERROR(f.linear(w.latent.q_b, q_a, own.q_a_bf16 ? f.rows(own.q_a_bf16) : Tensor{}, f.q()));
  } else {
    PM_RETURN_IF_ERROR(f.linear(w.latent.q, f.q()));
  }
  PM_RETURN_IF_ERROR(f.linear(w.latent.kv_a, f.rows(own.kv)));
  PM_RETURN_IF_ERROR(ops::latent_prepare(f.parts().ops, {.q = f.q(),
                                             .kv = f.rows(own.kv),
                                             .norm = w.latent.kv_a_norm,
                                             .eps = kInnerEps,
                                             .cos = s.cos,
                                             .sin = s.sin,
                                             .heads = static_cast<int32_t>(c.num_attention_heads),
                                             .nope = static_cast<int32_t>(a.nope),
                                             .rope = static_cast<int32_t>(a.rope),
                                             .rank = static_cast<int32_t>(a.kv_lora_rank),
                                             .interleaved = a.rope_interleave}));
  PM_RETURN_IF_ERROR(f.round_bf16(f.q()));
  return f.round_bf16(f.rows(own.kv));
}

Status cache(ForwardPass& f, int layer_idx, const Tensor& expanded) {
  const ModelConfig& c = f.parts().config;
  const LatentAttentionConfig& a = c.latent;
  return ops::latent_cache(f.parts().ops, {.kv = f.rows(f.parts().scratch.latent.kv),
                                           .expanded = expanded,
                                           .k_cache = f.each_cache([&](const KvCache& kv) { return kv.k(layer_idx); }),
                                           .v_cache = f.each_cache([&](const KvCache& kv) { return kv.v(layer_idx); }),
                                           .cache_dtype = f.cache().dtype(),
                                           .capacity = f.cache().capacity(),
                                           .sequences = f.sequences(),
                                           .heads = static_cast<int32_t>(c.num_attention_heads),
                                           .nope = static_cast<int32_t>(a.nope),
                                           .rope = static_cast<int32_t>(a.rope),
                                           .v = static_cast<int32_t>(a.v),
                                           .rank = static_cast<int32_t>(a.kv_lora_rank)});
}

ops::AttentionArgs attention_args(ForwardPass& f, int layer_idx) {
  const ModelConfig& c = f.parts().config;
  return {.k_cache = f.each_cache([&](const KvCache& kv) { return kv.k(layer_idx); }),
          .v_cache = f.each_cache([&](const KvCache& kv) { return kv.v(layer_idx); }),
          .cache_dtype = f.cache().dtype(),
          .capacity = f.cache().capacity(),
          .sequences = f.sequences(),
          .heads = static_cast<int32_t>(c.num_attention_heads),
          .scale = static_cast<float>(c.latent.scale)};
}

// Keys and values of every head are made once and cached.
Status attend_naive(ForwardPass& f, const LayerWeights& w, int layer_idx, const Tensor& out) {
  const ModelConfig& c = f.parts().config;
  const LatentAttentionConfig& a = c.latent;
  const LatentScratch& own = f.parts().scratch.latent;
  Tensor latent = f.rows(own.kv);
  latent.cols = a.kv_lora_rank;
  PM_RETURN_IF_ERROR(f.linear(w.latent.kv_b, latent, {}, f.rows(own.expanded)));
  PM_RETURN_IF_ERROR(cache(f, layer_idx, f.rows(own.expanded)));
  ops::AttentionArgs args = attention_args(f, layer_idx);
  args.q = f.q();
  args.kv_heads = args.heads;
  args.head_dim = static_cast<int32_t>(a.nope + a.rope);
  args.v_head_dim = static_cast<int32_t>(a.v);
  args.out = out;
  return ops::attention(f.parts().ops, args);
}

// One key of all heads, which is the value too: queries and outputs go through kv_b instead.
Status attend_absorbed(ForwardPass& f, const LayerWeights& w, int layer_idx, const Tensor& out) {
  const ModelConfig& c = f.parts().config;
  const LatentAttentionConfig& a = c.latent;
  const LatentScratch& own = f.parts().scratch.latent;
  const int32_t heads = static_cast<int32_t>(c.num_attention_heads);
  ops::OpContext& ops = f.parts().ops;
  PM_RETURN_IF_ERROR(cache(f, layer_idx, {}));
  for (int64_t t = 0; t < f.tokens(); t += own.q_latent.rows) {
    const int64_t n = std::min(own.q_latent.rows, f.tokens() - t);
    const Tensor q = f.q().slice_rows(t, n), q_latent = own.q_latent.slice_rows(0, n), o_latent = own.o_latent.slice_rows(0, n);
    PM_RETURN_IF_ERROR(ops::head_matmul(ops, {.x = q, .w = w.latent.kv_b.weight, .y = q_latent, .heads = heads, .x_width = a.nope + a.rope,
                                              .y_width = key_width(a), .stride = a.nope + a.v, .first = 0, .count = a.nope, .transposed = true}));
    PM_RETURN_IF_ERROR(ops::head_copy(ops, {.x = q, .y = q_latent, .heads = heads, .x_width = a.nope + a.rope, .x_first = a.nope,
                                            .y_width = key_width(a), .y_first = a.kv_lora_rank, .count = a.rope}));
    PM_RETURN_IF_ERROR(f.round_bf16(q_latent));
    ops::AttentionArgs args = attention_args(f, layer_idx);
    args.q = q_latent;
    args.v_cache = args.k_cache;
    args.sequences = f.sequences().slice(t, n);
    args.kv_heads = 1;
    args.head_dim = static_cast<int32_t>(key_width(a));
    args.v_head_dim = static_cast<int32_t>(a.kv_lora_rank);
    args.v_row = key_width(a);
    args.out = o_latent;
    PM_RETURN_IF_ERROR(ops::attention(ops, args));
    PM_RETURN_IF_ERROR(f.round_bf16(o_latent));
    PM_RETURN_IF_ERROR(ops::head_matmul(ops, {.x = o_latent, .w = w.latent.kv_b.weight, .y = out.slice_rows(t, n), .heads = heads,
                                              .x_width = a.kv_lora_rank, .y_width = a.v, .stride = a.nope + a.v, .first = a.nope, .count = a.v}));
  }
  return ok_status();
}

}  // namespace

void bind_latent_attention(const ModelConfig& c, Binder& b, int layer) {
  const LatentAttentionConfig& a = c.latent;
  LayerWeights& l = b.weights().layers[static_cast<size_t>(layer)];
  const std::string prefix = format("model.layers.{}.", layer), at = prefix + "self_attn.", unit = format("layers.{}.attention", layer);
  const int64_t q_rows = c.num_attention_heads * (a.nope + a.rope);
  const auto linear = [&](const char* name, int64_t out, int64_t in, bool has_bias, Linear& to) {
    b.matrix(at + name + ".weight", out, in, to.weight, unit);
    if (has_bias) b.vector(at + name + ".bias", out, to.bias, unit);
  };
  b.vector(prefix + "input_layernorm.weight", c.hidden_size, l.input_norm, unit);
  if (a.q_lora_rank > 0) {
    linear("q_a_proj", a.q_lora_rank, c.hidden_size, c.attention_bias, l.latent.q_a);
    b.vector(at + "q_a_layernorm.weight", a.q_lora_rank, l.latent.q_a_norm, unit);
    linear("q_b_proj", q_rows, a.q_lora_rank, false, l.latent.q_b);
  } else {
    linear("q_proj", q_rows, c.hidden_size, false, l.latent.q);
  }
  linear("kv_a_proj_with_mqa", a.kv_lora_rank + a.rope, c.hidden_size, c.attention_bias, l.latent.kv_a);
  b.vector(at + "kv_a_layernorm.weight", a.kv_lora_rank, l.latent.kv_a_norm, unit);
  // Used head by head, and transposed.
  b.matrix_in_rows(at + "kv_b_proj.weight", c.num_attention_heads * (a.nope + a.v), a.kv_lora_rank, l.latent.kv_b.weight, unit);
  linear("o_proj", c.hidden_size, c.num_attention_heads * a.v, c.attention_bias, l.o);
}

Status add_latent_attention(ForwardPass& f, const LayerWeights& w, int layer_idx) {
  PM_RETURN_IF_ERROR(project(f, w));
  PM_RETURN_IF_ERROR(f.begin_output());
  const Scratch& s = f.parts().scratch;
  const Tensor out = f.rows(f.use_bf16(w.o.weight) ? s.attention_bf16 : s.attention_f32);
  PM_RETURN_IF_ERROR(f.parts().config.latent.naive ? attend_naive(f, w, layer_idx, out) : attend_absorbed(f, w, layer_idx, out));
  PM_RETURN_IF_ERROR(f.add_output(w.o));
  return f.end_output();
}

}  // namespace layers
}  // namespace pointsman
