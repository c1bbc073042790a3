// SPDX-License-Identifier: Apache-2.0
//
// Multi-head latent attention as a layer: names, scratch and recipe in both forms (ops/attention/latent.h). Absorbed is the default: its
// cache is 576 numbers per token and layer for DeepSeek-V3, that of the naive form 40,960.
#pragma once

#include <cstdint>

#include "checkpoint/model_config.h"
#include "memory/arena.h"
#include "model/weights.h"
#include "pointsman/options.h"
#include "pointsman/status.h"

namespace pointsman {

class Binder;
class ForwardPass;

// Empty for models without latent attention.
struct LatentScratch {
  static constexpr int64_t kTokens = 32;  // queries in latent form at once: 295 KB each for DeepSeek-V3
  Tensor q_a, q_a_bf16;                   // [chunk, q_lora_rank]
  Tensor kv;                              // [chunk, kv_lora_rank + rope]
  Tensor q_latent;                        // absorbed: [kTokens, heads * (kv_lora_rank + rope)]
  Tensor o_latent;                        // absorbed: [kTokens, heads * kv_lora_rank]
  Tensor expanded;                        // naive: [chunk, heads * (nope + v)]

  static LatentScratch carve(Arena& device, const ModelConfig& c, Numerics n, int64_t chunk);
};

namespace layers {

// model.layers.I.input_layernorm and .self_attn.{q_a_proj, q_a_layernorm, q_b_proj | q_proj, kv_a_proj_with_mqa, kv_a_layernorm, kv_b_proj,
// o_proj}.
void bind_latent_attention(const ModelConfig& config, Binder& binder, int layer);

// h += o(attention(x)),  x = norm(h)
Status add_latent_attention(ForwardPass& f, const LayerWeights& weights, int layer_idx);

}  // namespace layers
}  // namespace pointsman
