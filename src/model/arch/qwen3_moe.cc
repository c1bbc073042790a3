// SPDX-License-Identifier: Apache-2.0
//
// Qwen3 and Qwen3-MoE (Qwen3 technical report, arXiv 2505.09388): grouped-query attention with per-head q/k RMSNorm and RoPE, no
// shared expert, softmax router with top-k renormalisation by config. Dense Qwen3 is the same recipe with no MoE layer.
//
// Config keys: hidden_size, num_hidden_layers, num_attention_heads, num_key_value_heads, head_dim, rms_norm_eps, rope_*,
// attention_bias, sliding window keys, tie_word_embeddings; num_experts, num_experts_per_tok, moe_intermediate_size, norm_topk_prob,
// decoder_sparse_step, mlp_only_layers (which layers are MoE is decided in checkpoint/).
#include "model/arch/arch.h"
#include "model/layers/decoder.h"

namespace pointsman {
namespace {

constexpr QkNorm kQkNorm = QkNorm::kPerHead;

void bind(const ModelConfig& c, Binder& b) {
  layers::bind_embedding(c, b);
  for (int i = 0; i < c.num_hidden_layers; ++i) {
    layers::bind_attention(c, b, i, kQkNorm);
    layers::bind_feed_forward(c, b, i);
  }
  layers::bind_head(c, b);
}

ops::RouterContract router(const ModelConfig& c) {
  return layers::router_contract(c, ops::ScoreFunction::kSoftmax);
}

Status layer(ForwardPass& f, const LayerWeights& w, int layer_idx) {
  PM_RETURN_IF_ERROR(layers::add_attention(f, w, layer_idx, kQkNorm));
  return layers::add_feed_forward(f, w, layer_idx);
}

}  // namespace

extern const Arch kQwen3{.model_type = "qwen3", .check = nullptr, .bind = bind, .router = nullptr, .layer = layer};
extern const Arch kQwen3Moe{.model_type = "qwen3_moe", .check = nullptr, .bind = bind, .router = router, .layer = layer};

}  // namespace pointsman
