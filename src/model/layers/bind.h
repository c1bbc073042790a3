// SPDX-License-Identifier: Apache-2.0
//
// The parts that decoder-only families share, as tensor names: an architecture's bind() is a list of these. Names are those of the
// published checkpoints; shapes follow from the config.
#pragma once

#include <string_view>
#include <vector>

#include "model/binding.h"

namespace pointsman::layers {

// model.embed_tokens.weight before the layers; model.norm.weight and lm_head.weight after them. Tied weights are one matrix, stored
// under either name; when both are stored, the stored head is used and a note says so.
void bind_embedding(const ModelConfig& config, Binder& binder);
void bind_head(const ModelConfig& config, Binder& binder);

// model.layers.I.input_layernorm and .self_attn.{q,k,v,o}_proj, with the biases of the config and .{q,k}_norm.
void bind_attention(const ModelConfig& config, Binder& binder, int layer, QkNorm qk_norm);

// Where a mixture of experts lies below model.layers.I., by the names under which it is published: of several the first that is stored.
struct MoeNames {
  std::vector<std::string_view> moe = {"mlp"};  // NAME.gate.weight, NAME.experts
  std::vector<std::string_view> router_bias;    // below NAME: added to the scores for the choice; empty: the family has none
};
// model.layers.I.post_attention_layernorm, then the MLP (mlp.{gate,up,down}_proj) or the mixture of experts, with the shared expert if
// the config has one: NAME.shared_expert and NAME.shared_expert_gate, or NAME.shared_experts.
void bind_feed_forward(const ModelConfig& config, Binder& binder, int layer, const MoeNames& names = {});

// Layers of multi-token prediction, stored as model.layers.L, L + 1, ... behind the last one: left unread, with a note.
void leave_mtp_layers(const ModelConfig& config, Binder& binder);

}  // namespace pointsman::layers
