// SPDX-License-Identifier: Apache-2.0
//
// The two halves of a pre-norm decoder layer as most families have them, in the vocabulary of ForwardPass. A family whose layer
// differs writes its own lines instead.
#pragma once

#include "model/forward.h"
#include "model/layers/bind.h"

namespace pointsman::layers {

// h += o(attention(rope(q_norm(q x)), rope(k_norm(k x)), v x)),  x = norm(h); with biases, clip_qkv and window of the config.
Status add_attention(ForwardPass& f, const LayerWeights& weights, int layer_idx, QkNorm qk_norm);

// h += moe(x) (+ shared expert(x)) or mlp(x),  x = norm(h)
Status add_feed_forward(ForwardPass& f, const LayerWeights& weights, int layer_idx);

// Score function of the family; sizes, normalisation, groups and scale of the config.
ops::RouterContract router_contract(const ModelConfig& config, ops::ScoreFunction score);

}  // namespace pointsman::layers
