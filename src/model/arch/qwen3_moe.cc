// SPDX-License-Identifier: Apache-2.0
//
// Qwen3 and Qwen3-MoE (Qwen3 technical report, arXiv 2505.09388): grouped-query attention with per-head q/k RMSNorm and RoPE, no
// shared expert, softmax router with top-k renormalisation by config. Dense Qwen3 is the same recipe with no MoE layer.
//
// Config keys: hidden_size, num_hidden_layers, num_attention_heads, num_key_value_heads, head_dim, rms_norm_eps, rope_*,
// attention_bias, sliding window keys, tie_word_embeddings; num_experts, num_experts_per_tok, moe_intermediate_size, norm_topk_prob,
// decoder_sparse_step, mlp_only_layers (which layers are MoE is decided in checkpoint/).
#include "base/log.h"
#include "model/arch/arch.h"
#include "model/binding.h"
#include "model/forward.h"

namespace pointsman {
namespace {

Status check(const ModelConfig& c) {
  if (c.head_dim % 2 != 0) return error(StatusCode::kUnsupported, "head_dim {} is odd: RoPE rotates pairs", c.head_dim);
  return ok_status();
}

void bind(const ModelConfig& c, Binder& b) {
  ModelWeights& w = b.weights();
  const int64_t q_rows = c.num_attention_heads * c.head_dim;
  const int64_t kv_rows = c.num_key_value_heads * c.head_dim;

  // Tied weights are one matrix, stored under either name; when both are stored, the stored head is used.
  const bool head_stored = b.has("lm_head.weight");
  const bool only_head = c.tie_word_embeddings && head_stored && !b.has("model.embed_tokens.weight");
  if (!only_head) b.matrix("model.embed_tokens.weight", c.vocab_size, c.hidden_size, w.embed_tokens, "embed_tokens");
  for (int i = 0; i < c.num_hidden_layers; ++i) {
    LayerWeights& l = w.layers[static_cast<size_t>(i)];
    const std::string layer = format("model.layers.{}.", i);
    const std::string attention = format("layers.{}.attention", i);
    b.vector(layer + "input_layernorm.weight", c.hidden_size, l.input_norm, attention);
    struct Projection {
      const char* name;
      Linear& linear;
      int64_t out, in;
    };
    for (const Projection& p : {Projection{"q_proj", l.q, q_rows, c.hidden_size}, Projection{"k_proj", l.k, kv_rows, c.hidden_size},
                                Projection{"v_proj", l.v, kv_rows, c.hidden_size}, Projection{"o_proj", l.o, c.hidden_size, q_rows}}) {
      b.matrix(layer + "self_attn." + p.name + ".weight", p.out, p.in, p.linear.weight, attention);
      if (c.attention_bias) b.vector(layer + "self_attn." + p.name + ".bias", p.out, p.linear.bias, attention);
    }
    b.vector(layer + "self_attn.q_norm.weight", c.head_dim, l.q_norm, attention);
    b.vector(layer + "self_attn.k_norm.weight", c.head_dim, l.k_norm, attention);

    const std::string mlp = layer + "mlp.";
    b.vector(layer + "post_attention_layernorm.weight", c.hidden_size, l.post_norm, format("layers.{}.mlp", i));
    if (l.is_moe) {
      b.matrix(mlp + "gate.weight", c.num_experts, c.hidden_size, l.router, format("layers.{}.router", i));
      b.experts(i, mlp + "experts", c.moe_intermediate_size, c.hidden_size);
    } else {
      b.matrix(mlp + "gate_proj.weight", c.intermediate_size, c.hidden_size, l.gate, format("layers.{}.mlp", i));
      b.matrix(mlp + "up_proj.weight", c.intermediate_size, c.hidden_size, l.up, format("layers.{}.mlp", i));
      b.matrix(mlp + "down_proj.weight", c.hidden_size, c.intermediate_size, l.down, format("layers.{}.mlp", i));
    }
  }
  b.vector("model.norm.weight", c.hidden_size, w.final_norm, "norm");

  if (!c.tie_word_embeddings || head_stored) {
    if (only_head) b.note("only lm_head.weight is stored: it is the embedding too");
    if (c.tie_word_embeddings && !only_head) b.note("tie_word_embeddings is true and lm_head.weight is stored: the stored head is used");
    b.matrix("lm_head.weight", c.vocab_size, c.hidden_size, w.lm_head, "lm_head");
  }
}

ops::RouterContract router(const ModelConfig& c) {
  return {.score = ops::ScoreFunction::kSoftmax,
          .num_experts = static_cast<int32_t>(c.num_experts),
          .top_k = static_cast<int32_t>(c.num_experts_per_tok),
          .normalize = c.norm_topk_prob,
          .scale = static_cast<float>(c.routed_scaling_factor)};
}

Status layer(ForwardPass& f, const LayerWeights& w, int layer_idx) {
  // h += o(attention(rope(norm(q x)), rope(norm(k x)), v x)),  x = norm(h)
  PM_RETURN_IF_ERROR(f.norm(w.input_norm));
  PM_RETURN_IF_ERROR(f.linear(w.q, f.q()));
  PM_RETURN_IF_ERROR(f.linear(w.k, f.k()));
  PM_RETURN_IF_ERROR(f.linear(w.v, f.v()));
  PM_RETURN_IF_ERROR(f.rotate_and_cache(w.q_norm, w.k_norm, layer_idx));
  PM_RETURN_IF_ERROR(f.attend(layer_idx));
  PM_RETURN_IF_ERROR(f.add_output(w.o));

  // h += moe(x) or mlp(x),  x = norm(h)
  PM_RETURN_IF_ERROR(f.norm(w.post_norm));
  return w.is_moe ? f.add_moe(w, layer_idx) : f.add_mlp(w);
}

}  // namespace

extern const Arch kQwen3{.model_type = "qwen3", .check = check, .bind = bind, .router = nullptr, .layer = layer};
extern const Arch kQwen3Moe{.model_type = "qwen3_moe", .check = check, .bind = bind, .router = router, .layer = layer};

}  // namespace pointsman
