// SPDX-License-Identifier: Apache-2.0
//
// GLM-4.5, 4.6, 4.7 (arXiv 2508.06471): grouped-query attention with optional biases on q, k and v and optional per-head q/k norm; RoPE
// turns only the first channels of a head, half-split among themselves; dense layers first. Sigmoid router with a bias for the choice
// (DeepSeek-V3's), a shared expert of weight 1.
//
// Config keys: hidden_size, num_hidden_layers, num_attention_heads, num_key_value_heads, head_dim, rms_norm_eps, rope_*,
// partial_rotary_factor, attention_bias (q, k, v), use_qk_norm, tie_word_embeddings; n_routed_experts, num_experts_per_tok,
// moe_intermediate_size, n_shared_experts, norm_topk_prob, routed_scaling_factor, n_group, topk_group, first_k_dense_replace,
// intermediate_size (of dense layers), num_nextn_predict_layers (stored behind the last layer and not loaded).
#include "model/arch/arch.h"
#include "model/layers/decoder.h"

namespace pointsman {
namespace {

void bind(const ModelConfig& c, Binder& b) {
  const layers::MoeNames names{.router_bias = {"gate.e_score_correction_bias"}};
  layers::bind_embedding(c, b);
  for (int i = 0; i < c.num_hidden_layers; ++i) {
    layers::bind_attention(c, b, i, c.use_qk_norm ? QkNorm::kPerHead : QkNorm::kNone);
    layers::bind_feed_forward(c, b, i, names);
  }
  layers::bind_head(c, b);
  layers::leave_mtp_layers(c, b);
}

ops::RouterContract router(const ModelConfig& c) {
  ops::RouterContract contract = layers::router_contract(c, ops::ScoreFunction::kSigmoid);
  contract.group_score = ops::GroupScore::kTop2Sum;
  contract.norm_epsilon = 1e-20f;
  return contract;
}

Status layer(ForwardPass& f, const LayerWeights& w, int layer_idx) {
  PM_RETURN_IF_ERROR(
      layers::add_attention(f, w, layer_idx, w.q_norm != nullptr ? QkNorm::kPerHead : QkNorm::kNone));
  return layers::add_feed_forward(f, w, layer_idx);
}

}  // namespace

extern const Arch kGlm4Moe{.model_type = "glm4_moe", .check = nullptr, .bind = bind, .router = router, .layer = layer};

}  // namespace pointsman
