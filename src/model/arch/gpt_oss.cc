// SPDX-License-Identifier: Apache-2.0
//
// gpt-oss (model card, arXiv 2508.10925): grouped-query attention with biases and a learned sink per head, windows in every other layer, YaRN
// without truncation; all layers MoE, softmax over the chosen logits, experts with biases, gate and up outputs in turn and a clamped SwiGLU.
//
// Config keys: hidden_size, num_hidden_layers, num_attention_heads, num_key_value_heads, head_dim, rms_norm_eps, rope_*, attention_bias,
// sliding_window, layer_types; num_local_experts, num_experts_per_tok, intermediate_size (of an expert), swiglu_limit, swiglu_alpha.
#include "base/log.h"
#include "model/arch/arch.h"
#include "model/layers/decoder.h"

namespace pointsman {
namespace {

void bind(const ModelConfig& c, Binder& b) {
  layers::bind_embedding(c, b);
  for (int i = 0; i < c.num_hidden_layers; ++i) {
    LayerWeights& l = b.weights().layers[static_cast<size_t>(i)];
    const std::string layer = format("model.layers.{}.", i);
    const std::string router = format("layers.{}.router", i), mlp = format("layers.{}.mlp", i);
    layers::bind_attention(c, b, i, QkNorm::kNone);
    b.vector(layer + "self_attn.sinks", c.num_attention_heads, l.sinks, format("layers.{}.attention", i));
    b.vector(layer + "post_attention_layernorm.weight", c.hidden_size, l.post_norm, mlp);
    b.matrix(layer + "mlp.router.weight", c.num_experts, c.hidden_size, l.router, router);
    b.vector(layer + "mlp.router.bias", c.num_experts, l.router_logit_bias, router);
    b.interleaved_experts(i, layer + "mlp.experts", c.moe_intermediate_size, c.hidden_size);
    // Small beside the experts, and always resident.
    b.array(layer + "mlp.experts.gate_up_proj_bias", {c.num_experts, 2 * c.moe_intermediate_size}, l.expert_gate_bias, mlp);
    b.array(layer + "mlp.experts.down_proj_bias", {c.num_experts, c.hidden_size}, l.expert_down_bias, mlp);
  }
  layers::bind_head(c, b);
}

ops::RouterContract router(const ModelConfig& c) { return layers::router_contract(c, ops::ScoreFunction::kSoftmaxOverTopK); }

Status layer(ForwardPass& f, const LayerWeights& w, int layer_idx) {
  PM_RETURN_IF_ERROR(layers::add_attention(f, w, layer_idx, QkNorm::kNone));
  return layers::add_feed_forward(f, w, layer_idx);
}

}  // namespace

extern const Arch kGptOss{.model_type = "gpt_oss", .check = nullptr, .bind = bind, .router = router, .layer = layer};

}  // namespace pointsman
