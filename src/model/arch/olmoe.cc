// SPDX-License-Identifier: Apache-2.0
//
// OLMoE (arXiv 2409.02060): RMSNorm over the whole projected q and k rows before they are split into heads, then an optional clamp of
// q, k and v; every layer a mixture of experts. Softmax over all experts; the chosen weights stay as they are unless norm_topk_prob.
//
// Config keys: hidden_size, num_hidden_layers, num_attention_heads, num_key_value_heads, rms_norm_eps, rope_*, attention_bias,
// clip_qkv, tie_word_embeddings; num_experts, num_experts_per_tok, intermediate_size (of an expert), norm_topk_prob.
#include "base/log.h"
#include "model/arch/arch.h"
#include "model/layers/decoder.h"

namespace pointsman {
namespace {

constexpr QkNorm kQkNorm = QkNorm::kWholeProjection;

Status check(const ModelConfig& c) {
  // The family sizes its q_norm by hidden_size.
  if (c.num_attention_heads * c.head_dim == c.hidden_size) return ok_status();
  return error(StatusCode::kUnsupported, "olmoe: {} heads of head_dim {} are not hidden_size {}; its q_norm spans hidden_size",
               c.num_attention_heads, c.head_dim, c.hidden_size);
}

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

extern const Arch kOlmoe{.model_type = "olmoe", .check = check, .bind = bind, .router = router, .layer = layer};

}  // namespace pointsman
