// SPDX-License-Identifier: Apache-2.0
//
// What only deepseek_v3 and kimi_k2 (latent attention) and gpt_oss (windows in turn, clamped SwiGLU) say in config.json.
#include <cmath>

#include "checkpoint/config_reader.h"

namespace pointsman {
namespace {

constexpr int64_t kMaxRank = 1 << 16;
constexpr int64_t kMaxHeadDim = 512;
constexpr int64_t kMaxKeyWidth = 576;  // what the attention kernels hold: kv_lora_rank + qk_rope_head_dim

void refuse_unless(ConfigReader& r, const ModelConfig& c, std::string_view key, std::string_view expected) {
  const std::string found = r.text_or(key, {key}, std::string(expected), "default of " + c.model_type);
  if (found != expected) {
    r.fail(error(StatusCode::kUnsupported, "{}: {} {} is not supported for {}; expected \"{}\"", r.where(), key, json_quote(found.substr(0, 64)),
                 c.model_type, expected));
  }
}

}  // namespace

void read_latent_attention(ConfigReader& r, const Family& family, ModelConfig& c) {
  const std::string fallback = "default of " + c.model_type;
  LatentAttentionConfig& a = c.latent;
  c.layer_window.assign(static_cast<size_t>(c.num_hidden_layers), 0);
  a.q_lora_rank = r.is_null("q_lora_rank") ? 0 : r.integer_or("q_lora_rank", {"q_lora_rank"}, 1, kMaxRank, 1536, fallback);
  if (a.q_lora_rank == 0) r.record("q_lora_rank", "none", r.where() + ": q_lora_rank");
  a.kv_lora_rank = r.integer_or("kv_lora_rank", {"kv_lora_rank"}, 1, kMaxRank, 512, fallback);
  a.nope = r.integer_or("qk_nope_head_dim", {"qk_nope_head_dim"}, 1, kMaxHeadDim, 128, fallback);
  a.rope = r.integer_or("qk_rope_head_dim", {"qk_rope_head_dim"}, 2, kMaxHeadDim, 64, fallback);
  a.v = r.integer_or("v_head_dim", {"v_head_dim"}, 1, kMaxHeadDim, 128, fallback);
  a.rope_interleave = r.boolean_or("rope_interleave", {"rope_interleave"}, true, fallback);
  refuse_unless(r, c, "scoring_func", "sigmoid");
  refuse_unless(r, c, "topk_method", "noaux_tc");
  if (r.integer_or("moe_layer_freq", {"moe_layer_freq"}, 1, 4096, 1, fallback) != 1) {
    r.fail(error(StatusCode::kUnsupported, "{}: moe_layer_freq other than 1 is not supported for {}", r.where(), c.model_type));
  }
  if (!r.status().ok()) return;
  if (a.rope % 2 != 0 || a.nope + a.rope > kMaxKeyWidth || a.kv_lora_rank + a.rope > kMaxKeyWidth) {
    return r.fail(error(StatusCode::kUnsupported, "{}: heads of {} + {} channels and keys of {} + {}: expected an even number of rotated channels, and at most "
                        "{} in all", r.where(), a.nope, a.rope, a.kv_lora_rank, a.rope, kMaxKeyWidth));
  }
  // A head_dim in the file is that of the rotated part, or what some writer derived.
  c.head_dim = a.rope;
  read_rope(r, family, c);
  c.rotary_dim = a.rope;
  c.head_dim = a.nope + a.rope;
  c.num_key_value_heads = 1;  // one latent key

  // YaRN's temperature of the softmax; cos and sin carry what is left of it.
  a.scale = 1 / std::sqrt(static_cast<double>(c.head_dim));
  if (c.rope.type == RopeType::kYarn && c.rope.mscale_all_dim != 0 && c.rope.factor > 1) {
    const double m = 0.1 * c.rope.mscale_all_dim * std::log(c.rope.factor) + 1;
    a.scale *= m * m;
  }
  r.record("attention scale", format("{:.10g}", a.scale), "derived: qk_nope_head_dim, qk_rope_head_dim, mscale_all_dim, factor");
}

void read_gpt_oss(ConfigReader& r, const Family& family, ModelConfig& c) {
  const std::string fallback = "default of " + c.model_type;
  c.swiglu_limit = r.number_or("swiglu_limit", {"swiglu_limit"}, 1e-3, 1e30, 7, fallback);
  c.swiglu_alpha = r.number_or("swiglu_alpha", {"swiglu_alpha"}, 1e-3, 1e3, 1.702, fallback);
  c.swiglu_up_offset = 1;
  read_layer_windows(r, family, c);
  std::string path;
  if (r.find({"rope_scaling"}, &path) != nullptr || r.find({"rope_parameters"}, &path) != nullptr) return read_rope(r, family, c);
  // The class default of transformers.
  read_rope(r, family, c);
  c.rope.type = RopeType::kYarn;
  c.rope.factor = 32;
  c.rope.truncate = false;
  c.rope.original_max_position_embeddings = 4096;
  r.record("rope.type", "yarn, factor 32 over 4096 positions, without truncation", fallback);
}

}  // namespace pointsman
