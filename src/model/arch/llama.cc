// SPDX-License-Identifier: Apache-2.0
//
// Llama 2 and 3 (arXiv 2307.09288, 2407.21783) and Qwen2 (arXiv 2407.10671): dense decoders with grouped-query attention and RoPE,
// no q/k norm. They differ in their biases: Llama by attention_bias (q, k, v, o) and mlp_bias, Qwen2 always on q, k and v.
//
// Config keys: hidden_size, num_hidden_layers, num_attention_heads, num_key_value_heads, head_dim, intermediate_size, rms_norm_eps,
// rope_* (Llama 3.1: rope type llama3), tie_word_embeddings; llama: attention_bias, mlp_bias; qwen2: sliding window keys.
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

Status layer(ForwardPass& f, const LayerWeights& w, int layer_idx) {
  PM_RETURN_IF_ERROR(layers::add_attention(f, w, layer_idx, kQkNorm));
  return layers::add_feed_forward(f, w, layer_idx);
}

}  // namespace

extern const Arch kLlama{.model_type = "llama", .check = nullptr, .bind = bind, .router = nullptr, .layer = layer};
extern const Arch kQwen2{.model_type = "qwen2", .check = nullptr, .bind = bind, .router = nullptr, .layer = layer};

}  // namespace pointsman
