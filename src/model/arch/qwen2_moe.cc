// SPDX-License-Identifier: Apache-2.0
//
// Qwen1.5-MoE and Qwen2-MoE (arXiv 2407.10671): biases on q, k and v, no q/k norm; beside the routed experts a shared one whose output
// is weighed by a sigmoid gate. Softmax over all experts; the chosen weights stay as they are unless norm_topk_prob.
//
// Config keys: hidden_size, num_hidden_layers, num_attention_heads, num_key_value_heads, head_dim, rms_norm_eps, rope_*, qkv_bias,
// sliding window keys, tie_word_embeddings; num_experts, num_experts_per_tok, moe_intermediate_size,
// shared_expert_intermediate_size, norm_topk_prob, decoder_sparse_step, mlp_only_layers, intermediate_size (of dense layers).
#include "model/arch/arch.h"
#include "model/layers/decoder.h"

namespace pointsman {
namespace {

constexpr QkNorm kQkNorm = QkNorm::kNone;

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

extern const Arch kQwen2Moe{.model_type = "qwen2_moe", .check = nullptr, .bind = bind, .router = router, .layer = layer};

}  // namespace pointsman
