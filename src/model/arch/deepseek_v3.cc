// SPDX-License-Identifier: Apache-2.0
//
// DeepSeek-V3, R1, V3.1 (arXiv 2412.19437) and Kimi-K2: multi-head latent attention with a shared rotated key, YaRN whose temperature goes into
// the softmax scale; dense layers first; sigmoid router limited to groups, with a bias for the choice; shared experts of weight 1.
//
// Config keys: hidden_size, num_hidden_layers, num_attention_heads, q_lora_rank (null: q_proj), kv_lora_rank, qk_nope_head_dim,
// qk_rope_head_dim, v_head_dim, rope_interleave, rope_*, attention_bias, rms_norm_eps; n_routed_experts, num_experts_per_tok,
// moe_intermediate_size, n_shared_experts, norm_topk_prob, routed_scaling_factor, n_group, topk_group, first_k_dense_replace,
// intermediate_size (of dense layers), num_nextn_predict_layers (stored behind the last layer and not loaded).
#include "base/log.h"
#include "model/arch/arch.h"
#include "model/layers/decoder.h"
#include "model/layers/latent_attention.h"

namespace pointsman {
namespace {

void bind(const ModelConfig& c, Binder& b) {
  const layers::MoeNames names{.router_bias = {"gate.e_score_correction_bias"}};
  layers::bind_embedding(c, b);
  for (int i = 0; i < c.num_hidden_layers; ++i) {
    layers::bind_latent_attention(c, b, i);
    layers::bind_feed_forward(c, b, i, names);
  }
  layers::bind_head(c, b);
  layers::leave_mtp_layers(c, b);
}

ops::RouterContract router(const ModelConfig& c) {
  ops::RouterContract contract = layers::router_contract(c, ops::ScoreFunction::kSigmoid);
  contract.group_score = ops::GroupScore::kTop2Sum;
  contract.norm_epsilon = 1e-20f;
  return contract;
}

Status layer(ForwardPass& f, const LayerWeights& w, int layer_idx) {
  PM_RETURN_IF_ERROR(layers::add_latent_attention(f, w, layer_idx));
  return layers::add_feed_forward(f, w, layer_idx);
}

}  // namespace

namespace {
constexpr VendorNumerics kVendor;
}  // namespace

extern const Arch kDeepseekV3{.model_type = "deepseek_v3", .check = nullptr, .bind = bind, .router = router, .layer = layer, .vendor = &kVendor};
extern const Arch kKimiK2{.model_type = "kimi_k2", .check = nullptr, .bind = bind, .router = router, .layer = layer};

}  // namespace pointsman
