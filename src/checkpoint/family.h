// SPDX-License-Identifier: Apache-2.0
//
// What config.json leaves to the reader: one row per model_type with the defaults of its transformers config class (5.24) and the
// rules of its modeling file, as data. A new family is a row here, a file in model/arch and a line in arch_list.inc.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace pointsman {

class ConfigReader;
struct ModelConfig;

// Which layers have a sliding window.
enum class WindowRule {
  kNone,              // none; a window key means nothing
  kSetInEveryLayer,   // sliding_window not null: every layer
  kSwitchEveryLayer,  // use_sliding_window: every layer, whatever layer_types say
  kSwitchFromLayer,   // use_sliding_window: as layer_types say, else the layers from max_window_layers on
  kAlternate,         // sliding_window: as layer_types say, else layers 0, 2, 4, ...
  kSwitchAlternate,   // use_sliding_window: as layer_types say, else layers 0, 2, 4, ... below max_window_layers
};

// Which attention projections have a bias.
enum class AttentionBiasRule {
  kNone,           // none; no key says otherwise
  kQkv,            // q, k and v always
  kQkvByQkvBias,   // q, k and v by qkv_bias, true unless said
  kQkvByKey,       // q, k and v by attention_bias, false unless said
  kAllByKey,       // q, k, v and o by attention_bias, false unless said
  kAllByKeyTrue,   // q, k, v and o by attention_bias, true unless said
};

// Which layers are mixtures of experts.
enum class MoeLayerRule {
  kNone,         // a dense model
  kEvery,
  kSparseStep,   // decoder_sparse_step and mlp_only_layers; num_experts 0 makes every layer dense
  kAfterDense,   // all but the first first_k_dense_replace
};

enum class SharedExpertRule {
  kNone,
  kGated,   // shared_expert_intermediate_size wide, weighed by a sigmoid gate
  kCounted, // n_shared_experts * moe_intermediate_size wide, weight 1
};

// Whether the weights of the chosen experts are divided by their sum.
enum class NormTopkRule { kByKeyFalse, kByKeyTrue, kAlways };  // kByKeyX: by norm_topk_prob, X unless said

struct Family {
  std::string_view model_type;
  int64_t num_key_value_heads = 0;  // 0: one per query head
  int64_t head_dim = 0;             // 0: hidden_size / num_attention_heads
  int64_t max_position_embeddings = 32768;
  double rms_norm_eps = 1e-6;
  double rope_theta = 10000;
  double partial_rotary_factor = 0;  // 0: the class does not know the key, every channel turns
  bool has_rotary_dim_key = false;   // rotary_dim channels turn, unless partial_rotary_factor is given
  WindowRule window = WindowRule::kNone;
  AttentionBiasRule attention_bias = AttentionBiasRule::kNone;
  bool has_mlp_bias_key = false;
  bool has_clip_qkv_key = false;
  bool has_use_qk_norm_key = false;
  bool has_mtp_layers = false;  // num_nextn_predict_layers

  MoeLayerRule moe_layers = MoeLayerRule::kNone;
  std::string_view expert_width_key = "moe_intermediate_size";
  NormTopkRule norm_topk = NormTopkRule::kByKeyFalse;
  SharedExpertRule shared_expert = SharedExpertRule::kNone;
  int64_t dense_layers = 1;        // kAfterDense: unless first_k_dense_replace says
  bool has_expert_groups = false;  // n_group, topk_group, routed_scaling_factor, with these defaults
  int64_t n_group = 1, topk_group = 1;
  double routed_scaling_factor = 1;

  // Reads windows, ropes and what else only this family has; null: the common keys.
  void (*read_own)(ConfigReader& reader, const Family& family, ModelConfig& config) = nullptr;
};

// Sorted by model_type.
std::span<const Family> families();

}  // namespace pointsman
