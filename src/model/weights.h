// SPDX-License-Identifier: Apache-2.0
//
// The dense weights of a decoder-only transformer as the layers use them: views into the engine's weight buffer (device
// addresses). Matrices keep the checkpoint's dtype and orientation; vectors are fp32. Routed experts live in the expert store.
#pragma once

#include <vector>

#include "tensor/tensor.h"

namespace pointsman {

struct Linear {
  Tensor weight;                  // [out, in]
  const float* bias = nullptr;    // [out] or null
};

struct LayerWeights {
  const float* input_norm = nullptr;   // [hidden]
  const float* post_norm = nullptr;    // [hidden]
  Linear q, k, v, o;
  const float* q_norm = nullptr;       // [head_dim] or null
  const float* k_norm = nullptr;

  // Dense MLP, when this layer is no MoE layer.
  Tensor gate, up, down;

  // MoE.
  bool is_moe = false;
  int moe_layer_idx = -1;              // into the expert catalogue
  Tensor router;                       // [experts, hidden]
  const float* router_bias = nullptr;  // selection bias [experts] or null
};

struct ModelWeights {
  Tensor embed_tokens;                 // [vocab, hidden]
  Tensor lm_head;                      // [vocab, hidden]; the same view as embed_tokens when tied
  const float* final_norm = nullptr;   // [hidden]
  std::vector<LayerWeights> layers;
};

}  // namespace pointsman
