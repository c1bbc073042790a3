// SPDX-License-Identifier: Apache-2.0
//
// MiniMax-M2: grouped-query attention with RMSNorm over the whole projected q and k rows and RoPE over the first channels of a head;
// every layer a mixture of experts. Sigmoid router with a bias for the choice; the chosen weights are always divided by their sum.
//
// Config keys: hidden_size, num_hidden_layers, num_attention_heads, num_key_value_heads, head_dim, rms_norm_eps, rope_*, rotary_dim or
// partial_rotary_factor, tie_word_embeddings; num_local_experts, num_experts_per_tok, intermediate_size (of an expert).
#include "model/arch/arch.h"
#include "model/layers/decoder.h"

namespace pointsman {
namespace {

constexpr QkNorm kQkNorm = QkNorm::kWholeProjection;

void bind(const ModelConfig& c, Binder& b) {
  // Experts w1 (gate), w3 (up), w2 (down) as in Mixtral; the bias lies beside the gate, not in it.
  const layers::MoeNames names{.moe = {"block_sparse_moe", "mlp"}, .router_bias = {"e_score_correction_bias"}};
  layers::bind_embedding(c, b);
  for (int i = 0; i < c.num_hidden_layers; ++i) {
    layers::bind_attention(c, b, i, kQkNorm);
    layers::bind_feed_forward(c, b, i, names);
  }
  layers::bind_head(c, b);
}

ops::RouterContract router(const ModelConfig& c) {
  return layers::router_contract(c, ops::ScoreFunction::kSigmoid);
}

Status layer(ForwardPass& f, const LayerWeights& w, int layer_idx) {
  PM_RETURN_IF_ERROR(layers::add_attention(f, w, layer_idx, kQkNorm));
  return layers::add_feed_forward(f, w, layer_idx);
}

}  // namespace

extern const Arch kMinimaxM2{.model_type = "minimax_m2", .check = nullptr, .bind = bind, .router = router, .layer = layer};

}  // namespace pointsman
