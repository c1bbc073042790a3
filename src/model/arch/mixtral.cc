// SPDX-License-Identifier: Apache-2.0
//
// Mixtral (arXiv 2401.04088): grouped-query attention without biases or q/k norm, an optional window in every layer; every layer a
// mixture of experts. The router's softmax goes over all experts and the chosen weights are always divided by their sum.
//
// Config keys: hidden_size, num_hidden_layers, num_attention_heads, num_key_value_heads, head_dim, rms_norm_eps, rope_*,
// sliding_window (null: none), tie_word_embeddings; num_local_experts, num_experts_per_tok, intermediate_size (of an expert).
#include "model/arch/arch.h"
#include "model/layers/decoder.h"

namespace pointsman {
namespace {

constexpr QkNorm kQkNorm = QkNorm::kNone;

void bind(const ModelConfig& c, Binder& b) {
  // block_sparse_moe.experts.E.{w1 gate, w3 up, w2 down} as published; mlp.experts.gate_up_proj when transformers 5 saved its own names.
  const layers::MoeNames names{.moe = {"block_sparse_moe", "mlp"}};
  layers::bind_embedding(c, b);
  for (int i = 0; i < c.num_hidden_layers; ++i) {
    layers::bind_attention(c, b, i, kQkNorm);
    layers::bind_feed_forward(c, b, i, names);
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

extern const Arch kMixtral{.model_type = "mixtral", .check = nullptr, .bind = bind, .router = router, .layer = layer};

}  // namespace pointsman
