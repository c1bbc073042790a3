// SPDX-License-Identifier: Apache-2.0
//
// The dense weights of a decoder-only transformer as the layers use them: views into the engine's weight buffer (device
// addresses). Matrices keep the checkpoint's format (codes and scales as stored) and orientation; vectors are fp32. Routed experts live in the expert store.
#pragma once

#include <vector>

#include "tensor/block_format.h"

namespace pointsman {

class StreamedMatrix;

struct Linear {
  Weight weight;                  // [out, in]
  const float* bias = nullptr;    // [out] or null
};

// down(silu(gate x) * up x)
struct Mlp {
  Linear gate, up;                // [intermediate, hidden]
  Linear down;                    // [hidden, intermediate]
};

// RMSNorm of queries and keys before RoPE.
enum class QkNorm {
  kNone,
  kPerHead,          // each head alone, weights [head_dim]
  kWholeProjection,  // the whole projected row, weights [heads * head_dim] and [kv_heads * head_dim]
};

// A site of hyper-connections (ops/hyper/hyper_connection.h); of the head, n rows and one scale.
struct HyperConnection {
  const float* fn = nullptr;     // [(2 + n) n, n * hidden]
  const float* base = nullptr;   // [(2 + n) n]
  const float* scale = nullptr;  // [3]
};

// What pools tokens into entries (ops/compress/compress.h).
struct Compressor {
  Linear wkv, wgate;             // [width, hidden]
  const float* ape = nullptr;    // [ratio, width]
  const float* norm = nullptr;   // [dim]
};

// DeepSeek-V4's attention.
struct CompressedAttention {
  Linear q_a, q_b;               // [q_lora_rank, hidden], [heads * head_dim, q_lora_rank]
  const float* q_norm = nullptr; // [q_lora_rank]
  Linear kv;                     // [head_dim, hidden]
  const float* kv_norm = nullptr;
  const float* sinks = nullptr;  // [heads]
  Linear o_a, o_b;               // [o_groups * o_lora_rank, heads * head_dim / o_groups], [hidden, o_groups * o_lora_rank]
  Compressor compressor;         // of layers with entries
  Linear index_q_b;              // sparse layers: [index_n_heads * index_head_dim, q_lora_rank]
  Linear index_weights;          // [index_n_heads, hidden]
  Compressor index_compressor;
};

// Latent attention of DeepSeek-V3 (ops/attention/latent.h); the output projection is LayerWeights::o.
struct LatentAttention {
  Linear q;                          // [heads * (nope + rope), hidden], or
  Linear q_a, q_b;                   // [q_lora_rank, hidden], [heads * (nope + rope), q_lora_rank]
  const float* q_a_norm = nullptr;   // [q_lora_rank]
  Linear kv_a;                       // [kv_lora_rank + rope, hidden]
  const float* kv_a_norm = nullptr;  // [kv_lora_rank]
  Linear kv_b;                       // [heads * (nope + v), kv_lora_rank]
};

struct LayerWeights {
  const float* input_norm = nullptr;   // [hidden]
  const float* post_norm = nullptr;    // [hidden]
  Linear q, k, v, o;
  const float* q_norm = nullptr;       // [head_dim], or [heads * head_dim] (QkNorm), or null
  const float* k_norm = nullptr;
  const float* sinks = nullptr;        // [heads] or null: a logit of each head without key and value

  Mlp mlp;                             // when this layer is no MoE layer

  // MoE.
  bool is_moe = false;
  int moe_layer_idx = -1;              // into the expert catalogue
  Tensor router;                       // [experts, hidden]
  const float* router_bias = nullptr;  // selection bias [experts] or null
  const float* router_logit_bias = nullptr;   // added to the logits [experts] or null
  const float* expert_gate_bias = nullptr;    // [experts, 2 * intermediate] of gate and up outputs in turn, or null
  const float* expert_down_bias = nullptr;    // [experts, hidden] or null
  const int32_t* expert_table = nullptr;  // [vocab, top_k]: the experts of each token id, or null
  Mlp shared;                          // shared expert, or empty
  Tensor shared_gate;                  // [1, hidden]; empty: the shared expert's weight is 1

  HyperConnection attention_site, ffn_site;
  CompressedAttention compressed;
  LatentAttention latent;
};

struct ModelWeights {
  Tensor embed_tokens;                 // [vocab, hidden]
  Weight lm_head;                      // [vocab, hidden]; the same view as embed_tokens when tied
  const float* final_norm = nullptr;   // [hidden]
  HyperConnection hyper_head;
  std::vector<LayerWeights> layers;

  // Not null: the matrix stays on disk, and the view above has its shape but no data. Scales of a coded head are in memory.
  StreamedMatrix* embed_on_demand = nullptr;
  StreamedMatrix* head_on_demand = nullptr;
};

}  // namespace pointsman
