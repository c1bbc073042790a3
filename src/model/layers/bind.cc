// SPDX-License-Identifier: Apache-2.0
#include "model/layers/bind.h"

#include "base/log.h"

namespace pointsman::layers {
namespace {

std::string layer_prefix(int layer) { return format("model.layers.{}.", layer); }

// The first of `candidates` under `prefix` whose tensor `.suffix` is stored; the first of all when none is, so that it is named as missing.
std::string first_stored(const Binder& b, const std::string& prefix, const std::vector<std::string_view>& candidates,
                         std::string_view suffix) {
  for (const std::string_view name : candidates) {
    if (b.has(prefix + std::string(name) + std::string(suffix))) return prefix + std::string(name);
  }
  return prefix + std::string(candidates.front());
}

bool stores_only_head(const ModelConfig& c, const Binder& b) {
  return c.tie_word_embeddings && b.has("lm_head.weight") && !b.has("model.embed_tokens.weight");
}

// gate_proj, up_proj and down_proj below `prefix`.
void bind_mlp(Binder& b, const std::string& prefix, int64_t hidden, int64_t intermediate, bool has_bias, Mlp& mlp,
              const std::string& unit) {
  struct Projection {
    const char* name;
    Linear& linear;
    int64_t out, in;
  };
  for (const Projection& p : {Projection{"gate_proj", mlp.gate, intermediate, hidden},
                              Projection{"up_proj", mlp.up, intermediate, hidden},
                              Projection{"down_proj", mlp.down, hidden, intermediate}}) {
    b.matrix(prefix + p.name + ".weight", p.out, p.in, p.linear.weight, unit);
    if (has_bias) b.vector(prefix + p.name + ".bias", p.out, p.linear.bias, unit);
  }
}

void bind_moe(const ModelConfig& c, Binder& b, int layer, const MoeNames& names) {
  LayerWeights& l = b.weights().layers[static_cast<size_t>(layer)];
  const std::string moe = first_stored(b, layer_prefix(layer), names.moe, ".gate.weight") + ".";
  const std::string unit = format("layers.{}.router", layer);
  b.matrix(moe + "gate.weight", c.num_experts, c.hidden_size, l.router, unit);
  if (!names.router_bias.empty()) b.vector(first_stored(b, moe, names.router_bias, ""), c.num_experts, l.router_bias, unit);
  b.experts(layer, moe + "experts", c.moe_intermediate_size, c.hidden_size);
  if (c.shared_expert_intermediate_size == 0) return;
  const std::string shared = format("layers.{}.shared_expert", layer);
  const bool is_gated = c.shared_expert_is_gated;
  bind_mlp(b, moe + (is_gated ? "shared_expert." : "shared_experts."), c.hidden_size, c.shared_expert_intermediate_size, false,
           l.shared, shared);
  if (is_gated) b.matrix(moe + "shared_expert_gate.weight", 1, c.hidden_size, l.shared_gate, shared);
}

}  // namespace

void bind_embedding(const ModelConfig& c, Binder& b) {
  if (stores_only_head(c, b)) return b.note("only lm_head.weight is stored: it is the embedding too");
  b.matrix("model.embed_tokens.weight", c.vocab_size, c.hidden_size, b.weights().embed_tokens, "embed_tokens");
}

void bind_head(const ModelConfig& c, Binder& b) {
  b.vector("model.norm.weight", c.hidden_size, b.weights().final_norm, "norm");
  if (c.tie_word_embeddings) {
    if (!b.has("lm_head.weight")) return;
    if (!stores_only_head(c, b) && !c.quantization.is_packed()) b.note("tie_word_embeddings is true and lm_head.weight is stored: the stored head is used");
  }
  // A head that is the embedding too is looked up row by row: plain.
  if (stores_only_head(c, b)) return b.matrix("lm_head.weight", c.vocab_size, c.hidden_size, static_cast<Tensor&>(b.weights().lm_head), "lm_head");
  b.head("lm_head.weight", c.vocab_size, c.hidden_size, b.weights().lm_head, "lm_head");
}

void bind_attention(const ModelConfig& c, Binder& b, int layer, QkNorm qk_norm) {
  LayerWeights& l = b.weights().layers[static_cast<size_t>(layer)];
  const std::string prefix = layer_prefix(layer);
  const std::string unit = format("layers.{}.attention", layer);
  const int64_t q_rows = c.num_attention_heads * c.head_dim;
  const int64_t kv_rows = c.num_key_value_heads * c.head_dim;
  b.vector(prefix + "input_layernorm.weight", c.hidden_size, l.input_norm, unit);
  struct Projection {
    const char* name;
    Linear& linear;
    int64_t out, in;
    bool has_bias;
  };
  for (const Projection& p : {Projection{"q_proj", l.q, q_rows, c.hidden_size, c.attention_bias},
                              Projection{"k_proj", l.k, kv_rows, c.hidden_size, c.attention_bias},
                              Projection{"v_proj", l.v, kv_rows, c.hidden_size, c.attention_bias},
                              Projection{"o_proj", l.o, c.hidden_size, q_rows, c.attention_output_bias}}) {
    b.matrix(prefix + "self_attn." + p.name + ".weight", p.out, p.in, p.linear.weight, unit);
    if (p.has_bias) b.vector(prefix + "self_attn." + p.name + ".bias", p.out, p.linear.bias, unit);
  }
  if (qk_norm == QkNorm::kNone) return;
  const bool per_head = qk_norm == QkNorm::kPerHead;
  b.vector(prefix + "self_attn.q_norm.weight", per_head ? c.head_dim : q_rows, l.q_norm, unit);
  b.vector(prefix + "self_attn.k_norm.weight", per_head ? c.head_dim : kv_rows, l.k_norm, unit);
}

void bind_feed_forward(const ModelConfig& c, Binder& b, int layer, const MoeNames& names) {
  LayerWeights& l = b.weights().layers[static_cast<size_t>(layer)];
  const std::string prefix = layer_prefix(layer);
  const std::string unit = format("layers.{}.mlp", layer);
  b.vector(prefix + "post_attention_layernorm.weight", c.hidden_size, l.post_norm, unit);
  if (l.is_moe) {
    bind_moe(c, b, layer, names);
  } else {
    bind_mlp(b, prefix + "mlp.", c.hidden_size, c.intermediate_size, c.mlp_bias, l.mlp, unit);
  }
}

void leave_mtp_layers(const ModelConfig& c, Binder& b) {
  for (int64_t i = 0; i < c.num_mtp_layers; ++i) {
    const int64_t layer = c.num_hidden_layers + i;
    const int64_t left = b.ignore_prefix(format("model.layers.{}.", layer));
    if (left > 0) b.note(format("layer {}: {} tensors of multi-token prediction are not loaded", layer, left));
  }
}

}  // namespace pointsman::layers
