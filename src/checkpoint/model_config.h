// SPDX-License-Identifier: Apache-2.0
//
// config.json in all its dialects, normalised. Every value carries where it came from, so that `inspect` can show it and an
// error can name it. Integers have ranges; a value outside is refused, never clamped.
//
// Architecture files (model/arch) read this struct; they never see JSON.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/fs.h"
#include "base/json.h"
#include "checkpoint/quantization.h"
#include "pointsman/status.h"

namespace pointsman {

enum class RopeType { kDefault, kLinear, kLlama3, kYarn };

struct RopeConfig {
  RopeType type = RopeType::kDefault;
  double theta = 10000;
  double factor = 1;                             // linear, llama3 and yarn
  int64_t original_max_position_embeddings = 0;  // llama3 and yarn
  double low_freq_factor = 1, high_freq_factor = 4;  // llama3
  double beta_fast = 32, beta_slow = 1;          // yarn
  double attention_factor = 0;  // yarn; 0 = 0.1 ln(factor) + 1; what mscale and mscale_all_dim amount to is already in it
  double mscale_all_dim = 0;    // yarn, of families with latent attention
  bool truncate = true;         // yarn
};

enum class RouterScore { kSoftmax, kSigmoid, kSqrtSoftplus, kSoftmaxOverTopK };

// How a layer's attention sees tokens beyond its window (DeepSeek-V4): not at all, as entries that pool `sparse_ratio` tokens
// (overlapping windows, the best of them chosen per query by an indexer), or as entries that pool `heavy_ratio` tokens (all of them).
enum class CompressKind : uint8_t { kNone, kSparse, kHeavy };

struct CompressedAttentionConfig {
  std::vector<CompressKind> layers;  // one per layer; empty: the family has no such attention
  int64_t sparse_ratio = 4, heavy_ratio = 128;
  RopeConfig rope;  // of layers that have entries; the others use ModelConfig::rope
  int64_t q_lora_rank = 0;
  int64_t o_groups = 0, o_lora_rank = 0;  // the output projection: groups of heads, each to o_lora_rank channels, then all to hidden
  int64_t index_n_heads = 0, index_head_dim = 0, index_topk = 0;

  bool has(CompressKind kind) const {
    for (const CompressKind k : layers) {
      if (k == kind) return true;
    }
    return false;
  }
  int64_t ratio(CompressKind kind) const { return kind == CompressKind::kSparse ? sparse_ratio : kind == CompressKind::kHeavy ? heavy_ratio : 0; }
};

// Hyper-connections: the residual is `streams` rows that every layer mixes.
struct HyperConnectionConfig {
  int64_t streams = 0;  // 0: one plain residual
  int64_t sinkhorn_iters = 0;
  double eps = 0;
};

// Multi-head latent attention (model/layers/latent_attention.h). false: the model has none.
struct LatentAttentionConfig {
  int64_t q_lora_rank = 0;  // 0: queries are one projection
  int64_t kv_lora_rank = 0;
  int64_t nope = 0, rope = 0, v = 0;  // qk_nope_head_dim, qk_rope_head_dim, v_head_dim
  bool rope_interleave = true;        // pairs (2i, 2i + 1); else (i, i + rope / 2)
  double scale = 0;                   // of the scores, YaRN's temperature included
  bool naive = false;                 // a choice of the run, not of the file: cache keys and values of every head

  explicit operator bool() const { return kv_lora_rank > 0; }
};

struct ModelConfig {
  std::string model_type;   // "qwen3_moe", "mixtral", ...
  std::string torch_dtype;  // informative

  int64_t hidden_size = 0;
  int64_t num_hidden_layers = 0;
  int64_t num_attention_heads = 0;
  int64_t num_key_value_heads = 0;
  int64_t head_dim = 0;
  int64_t intermediate_size = 0;  // dense MLP layers; 0 when there are none
  int64_t vocab_size = 0;
  int64_t max_position_embeddings = 0;
  double rms_norm_eps = 1e-6;
  bool tie_word_embeddings = false;
  bool attention_bias = false;         // of q, k and v
  bool attention_output_bias = false;  // of o
  bool mlp_bias = false;               // of the dense MLPs
  bool use_qk_norm = false;            // where a key says so; other families always or never have q/k norms
  double clip_qkv = 0;                 // q, k and v are clamped to +-clip_qkv; 0: they are not
  int64_t rotary_dim = 0;              // channels of a head that turn: the first ones, of deepseek_v4 the last; others pass through
  RopeConfig rope;

  // Sliding window: 0 = full attention. layer_window[i] is what layer i uses.
  std::vector<int64_t> layer_window;

  QuantizationConfig quantization;

  // MoE; num_experts 0 means a dense model.
  int64_t num_experts = 0;
  int64_t num_experts_per_tok = 0;
  int64_t moe_intermediate_size = 0;
  bool norm_topk_prob = false;
  double routed_scaling_factor = 1;
  int64_t n_group = 1, topk_group = 1;          // experts are chosen from the topk_group best of n_group groups
  int64_t shared_expert_intermediate_size = 0;  // 0: no shared expert; of several the sum, they are one wide MLP
  bool shared_expert_is_gated = false;          // its output is weighed by a sigmoid
  std::vector<bool> layer_is_moe;  // one per layer
  RouterScore router_score = RouterScore::kSoftmax;
  int64_t num_hash_layers = 0;  // first layers whose experts follow from the token id alone
  double swiglu_alpha = 1;      // of the sigmoid in SwiGLU
  double swiglu_up_offset = 0;  // added to up
  double swiglu_limit = 0;      // gate <= limit, -limit <= up <= limit before SiLU; 0: no clamp

  LatentAttentionConfig latent;
  CompressedAttentionConfig compressed;
  HyperConnectionConfig hyper;

  int64_t num_mtp_layers = 0;  // layers of multi-token prediction behind the last one: stored, not loaded

  std::vector<int64_t> eos_token_ids;  // generation_config.json before config.json
  int64_t bos_token_id = -1;
  int64_t pad_token_id = -1;

  // One line per value, in the order they were read.
  struct Origin {
    std::string key;     // our name
    std::string value;   // as printed
    std::string source;  // "config.json: rope_parameters.rope_theta", "default of qwen3_moe", "derived: hidden_size /
                         // num_attention_heads"
  };
  std::vector<Origin> origins;
  std::vector<std::string> warnings;  // e.g. auto_map present and ignored
  std::vector<std::string> ignored_keys;
};

// Reads and normalises `directory`/config.json (and generation_config.json for the token ids).
// kUnsupported: unknown model_type or rope type, by name. kInvalidArgument/kCorrupt: a value out of range or of the wrong type,
// with key, value and the range.
Result<ModelConfig> read_model_config(FileSystem& fs, const std::string& directory);
// The same from parsed JSON (tests, fuzzers). `generation` may be null.
Result<ModelConfig> normalize_config(const Json& config, const Json& generation);

// Sampling defaults of generation_config.json, with the meanings of Hugging Face `generate`. Absent keys keep these values.
struct GenerationDefaults {
  bool do_sample = false;
  double temperature = 1.0;
  int64_t top_k = 50;
  double top_p = 1.0;
  double min_p = 0.0;
  double repetition_penalty = 1.0;
};
// Absent file or key: the defaults above.
Result<GenerationDefaults> read_generation_defaults(FileSystem& fs, const std::string& directory);
// The same from parsed JSON; null is an absent file.
Result<GenerationDefaults> normalize_generation_defaults(const Json& generation);

}  // namespace pointsman
