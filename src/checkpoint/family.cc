// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/family.h"

#include "checkpoint/config_reader.h"

namespace pointsman {
namespace {

constexpr Family kFamilies[] = {
    {.model_type = "deepseek_v4",
     .num_key_value_heads = 1,
     .head_dim = 512,
     .attention_bias = AttentionBiasRule::kAllByKey,
     .has_mlp_bias_key = true,
     .moe_layers = MoeLayerRule::kEvery,
     .norm_topk = NormTopkRule::kAlways,
     .read_own = read_deepseek_v4},
    {.model_type = "glm4_moe",
     .num_key_value_heads = 8,
     .max_position_embeddings = 131072,
     .rms_norm_eps = 1e-5,
     .partial_rotary_factor = 0.5,
     .attention_bias = AttentionBiasRule::kQkvByKey,
     .has_use_qk_norm_key = true,
     .has_mtp_layers = true,
     .moe_layers = MoeLayerRule::kAfterDense,
     .norm_topk = NormTopkRule::kByKeyTrue,
     .shared_expert = SharedExpertRule::kCounted,
     .has_expert_groups = true},
    {.model_type = "llama",
     .max_position_embeddings = 2048,
     .attention_bias = AttentionBiasRule::kAllByKey,
     .has_mlp_bias_key = true},
    {.model_type = "minimax_m2",
     .num_key_value_heads = 8,
     .head_dim = 128,
     .max_position_embeddings = 196608,
     .rope_theta = 5e6,
     .partial_rotary_factor = 1,
     .has_rotary_dim_key = true,
     .moe_layers = MoeLayerRule::kEvery,
     .expert_width_key = "intermediate_size",
     .norm_topk = NormTopkRule::kAlways},
    {.model_type = "mixtral",
     .num_key_value_heads = 8,
     .max_position_embeddings = 131072,
     .rms_norm_eps = 1e-5,
     .rope_theta = 1e6,
     .window = WindowRule::kSetInEveryLayer,
     .moe_layers = MoeLayerRule::kEvery,
     .expert_width_key = "intermediate_size",
     .norm_topk = NormTopkRule::kAlways},
    {.model_type = "olmoe",
     .max_position_embeddings = 4096,
     .rms_norm_eps = 1e-5,
     .attention_bias = AttentionBiasRule::kAllByKey,
     .has_clip_qkv_key = true,
     .moe_layers = MoeLayerRule::kEvery,
     .expert_width_key = "intermediate_size"},
    {.model_type = "qwen2",
     .num_key_value_heads = 32,
     .window = WindowRule::kSwitchFromLayer,
     .attention_bias = AttentionBiasRule::kQkv},
    {.model_type = "qwen2_moe",
     .num_key_value_heads = 16,
     .window = WindowRule::kSwitchAlternate,
     .attention_bias = AttentionBiasRule::kQkvByQkvBias,
     .moe_layers = MoeLayerRule::kSparseStep,
     .shared_expert = SharedExpertRule::kGated},
    {.model_type = "qwen3",
     .num_key_value_heads = 32,
     .head_dim = 128,
     .window = WindowRule::kSwitchFromLayer,
     .attention_bias = AttentionBiasRule::kAllByKey},
    {.model_type = "qwen3_moe",
     .num_key_value_heads = 4,
     .window = WindowRule::kSwitchEveryLayer,
     .attention_bias = AttentionBiasRule::kAllByKey,
     .moe_layers = MoeLayerRule::kSparseStep},
};

}  // namespace

std::span<const Family> families() {
  return kFamilies;
}

}  // namespace pointsman
