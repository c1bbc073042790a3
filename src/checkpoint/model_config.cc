// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/model_config.h"

#include <algorithm>
#include <optional>

#include "checkpoint/config_reader.h"
#include "checkpoint/gpt_oss_config.h"
#include "checkpoint/lfs_pointer.h"

namespace pointsman {
namespace {

constexpr uint64_t kMaxConfigBytes = 16 << 20;
constexpr int64_t kMaxDim = 1 << 20;
constexpr int64_t kMaxLayers = 4096;
constexpr int64_t kMaxHeads = 4096;
constexpr int64_t kMaxHeadDim = 512;

// Keys that are known and say nothing about the forward pass. A dense model may keep intermediate_size unused, and a window
// that is off its layer number.
const std::set<std::string_view>& harmless_keys() {
  static const std::set<std::string_view> keys = {
      "architectures",        "attention_dropout",
                                                  "aux_loss_alpha",       "ep_size",
                                                  "experts_per_token",    "initial_context_length",
                                                  "seq_aux", "bos_token_id",      "chunk_size_feed_forward", "eos_token_id",
      "expert_dtype",         "id2label",          "initializer_range", "intermediate_size",       "is_encoder_decoder",
      "label2id",             "max_window_layers", "model_type",        "output_attentions",       "output_hidden_states",
      "output_router_logits", "pretraining_tp",    "problem_type",      "return_dict",             "router_aux_loss_coef",
      "router_jitter_noise",  "text_config",       "transformers_version", "use_cache",            "_name_or_path"};
  return keys;
}

Result<const Family*> find_family(ConfigReader& r, ModelConfig& c) {
  c.model_type = r.text_or("model_type", {"model_type"}, "", "missing");
  PM_RETURN_IF_ERROR(r.status());
  std::string known;
  for (const Family& f : families()) {
    if (f.model_type == c.model_type) return &f;
    known += (known.empty() ? "" : ", ") + std::string(f.model_type);
  }
  if (c.model_type.empty())
    return error(StatusCode::kCorrupt, "{}: key \"model_type\" is missing; this build knows {}", r.where(), known);
  return error(StatusCode::kUnsupported, "{}: model_type {} is not supported; this build knows {}", r.where(),
               json_quote(c.model_type.substr(0, 64)), known);
}

// What asks for code to run.
void check_foreign_matter(ConfigReader& r) {
  std::string path;
  if (r.find({"auto_map"}, &path) != nullptr)
    r.warn(path + ": names Python code; ignored, nothing from a checkpoint is executed");
}

void read_biases(ConfigReader& r, const Family& family, ModelConfig& c) {
  const std::string fallback = "default of " + c.model_type;
  switch (family.attention_bias) {
    case AttentionBiasRule::kNone: break;
    case AttentionBiasRule::kQkv:
      c.attention_bias = true;
      r.record("attention_bias", "true", "rule of " + c.model_type + ": q, k and v");
      break;
    case AttentionBiasRule::kQkvByQkvBias: c.attention_bias = r.boolean_or("attention_bias", {"qkv_bias"}, true, fallback); break;
    case AttentionBiasRule::kQkvByKey:
    case AttentionBiasRule::kAllByKey:
    case AttentionBiasRule::kAllByKeyTrue:
      c.attention_bias =
          r.boolean_or("attention_bias", {"attention_bias"}, family.attention_bias == AttentionBiasRule::kAllByKeyTrue, fallback);
      c.attention_output_bias = c.attention_bias && family.attention_bias != AttentionBiasRule::kQkvByKey;
      break;
  }
  if (family.has_mlp_bias_key) c.mlp_bias = r.boolean_or("mlp_bias", {"mlp_bias"}, false, fallback);
  if (family.has_use_qk_norm_key) c.use_qk_norm = r.boolean_or("use_qk_norm", {"use_qk_norm"}, false, fallback);
  if (family.has_clip_qkv_key) {
    c.clip_qkv = r.number_or("clip_qkv", {"clip_qkv"}, 0, 1e30, 0, "none unless said");
    std::string path;
    if (r.status().ok() && c.clip_qkv == 0 && r.find({"clip_qkv"}, &path) != nullptr) {
      r.fail(error(StatusCode::kInvalidArgument, "{}: 0 would make every query, key and value 0; expected a positive number or null", path));
    }
  }
}

void read_attention_sizes(ConfigReader& r, const Family& family, ModelConfig& c) {
  const std::string fallback = "default of " + c.model_type;
  c.num_attention_heads = r.integer("num_attention_heads", {"num_attention_heads"}, 1, kMaxHeads);
  // An explicit null says "one per head", as files did before the key existed.
  const bool one_each = family.num_key_value_heads == 0 || r.is_null("num_key_value_heads");
  c.num_key_value_heads = r.integer_or("num_key_value_heads", {"num_key_value_heads"}, 1, kMaxHeads,
                                       one_each ? c.num_attention_heads : family.num_key_value_heads,
                                       one_each ? "derived: num_attention_heads" : fallback);
  if (r.status().ok() && c.num_attention_heads % c.num_key_value_heads != 0) {
    r.fail(error(StatusCode::kInvalidArgument, "{}: num_attention_heads {} is no multiple of num_key_value_heads {}", r.where(),
                 c.num_attention_heads, c.num_key_value_heads));
  }
  if (family.head_dim != 0) {
    c.head_dim = r.integer_or("head_dim", {"head_dim"}, 1, kMaxHeadDim, family.head_dim, fallback);
  } else {
    c.head_dim = r.integer_or("head_dim", {"head_dim"}, 1, kMaxHeadDim, c.hidden_size / c.num_attention_heads,
                              "derived: hidden_size / num_attention_heads");
  }
  // A derived one has not been checked yet; rope turns channels in pairs.
  if (r.status().ok() && (c.head_dim < 2 || c.head_dim > kMaxHeadDim || c.head_dim % 2 != 0)) {
    r.fail(error(StatusCode::kInvalidArgument, "{}: head_dim {}: expected an even number up to {}", r.where(), c.head_dim,
                 kMaxHeadDim));
  }
  read_biases(r, family, c);
}

}  // namespace

Result<ModelConfig> normalize_config(const Json& config, const Json& generation) {
  if (!config.is_object()) return error(StatusCode::kCorrupt, "config.json: expected an object, found {}", config.type_name());
  if (!generation.is_null() && !generation.is_object()) {
    return error(StatusCode::kCorrupt, "generation_config.json: expected an object, found {}", generation.type_name());
  }
  ModelConfig c;
  const std::optional<Json> translated = from_original_gpt_oss(config);
  ConfigReader r(translated ? *translated : config, translated ? "config.json (gpt-oss as first published)" : "config.json", c);
  PM_ASSIGN_OR_RETURN(const Family* family, find_family(r, c));
  check_foreign_matter(r);
  read_quantization(r, c);
  const std::string fallback = "default of " + c.model_type;

  c.torch_dtype = r.text_or("dtype", {"dtype", "torch_dtype"}, "", "not said");
  c.hidden_size = r.integer("hidden_size", {"hidden_size"}, 1, kMaxDim);
  c.num_hidden_layers = r.integer("num_hidden_layers", {"num_hidden_layers"}, 1, kMaxLayers);
  if (family->has_mtp_layers) {
    c.num_mtp_layers =
        r.integer_or("num_mtp_layers", {"num_nextn_predict_layers", "num_mtp_layers"}, 0, kMaxLayers, 1, fallback);
  }
  read_attention_sizes(r, *family, c);
  c.vocab_size = r.integer("vocab_size", {"vocab_size"}, 1, 1 << 24);
  c.max_position_embeddings =
      r.integer_or("max_position_embeddings", {"max_position_embeddings"}, 1, int64_t{1} << 32,
                   family->max_position_embeddings, fallback);
  c.rms_norm_eps = r.number_or("rms_norm_eps", {"rms_norm_eps"}, 0, 1, family->rms_norm_eps, fallback);
  c.tie_word_embeddings = r.boolean_or("tie_word_embeddings", {"tie_word_embeddings"}, false, fallback);
  const std::string act = r.text_or("hidden_act", {"hidden_act"}, "silu", fallback);
  if (act != "silu" && act != "swish") {
    r.fail(error(StatusCode::kUnsupported, "config.json: hidden_act {} is not supported for {}; expected \"silu\"",
                 json_quote(act.substr(0, 64)), c.model_type));
  }
  PM_RETURN_IF_ERROR(r.status());

  c.layer_is_moe.assign(static_cast<size_t>(c.num_hidden_layers), false);
  if (family->moe_layers != MoeLayerRule::kNone) read_moe(r, *family, c);
  const bool has_dense = std::find(c.layer_is_moe.begin(), c.layer_is_moe.end(), false) != c.layer_is_moe.end();
  if (has_dense) c.intermediate_size = r.integer("intermediate_size", {"intermediate_size"}, 1, kMaxDim);
  if (family->read_own != nullptr) {
    if (r.status().ok()) family->read_own(r, *family, c);
  } else {
    read_layer_windows(r, *family, c);
    read_rope(r, *family, c);
  }
  read_token_ids(r, generation, c);
  PM_RETURN_IF_ERROR(r.status());
  c.ignored_keys = r.unread_keys(harmless_keys());
  return c;
}

Result<ModelConfig> read_model_config(FileSystem& fs, const std::string& directory) {
  const auto read = [&](const char* name) -> Result<Json> {
    const std::string path = join_path(directory, name);
    PM_ASSIGN_OR_RETURN(const std::string text, read_text_file(fs, path, kMaxConfigBytes));
    if (is_lfs_pointer(text)) return lfs_pointer_error(path);
    Result<Json> json = parse_json(text);
    if (!json.ok()) return json.status().with_context(path);
    return json;
  };
  PM_ASSIGN_OR_RETURN(const Json config, read("config.json"));
  Result<Json> generation = read("generation_config.json");
  if (!generation.ok() && generation.status().code() != StatusCode::kNotFound) return generation.status();
  Result<ModelConfig> result = normalize_config(config, generation.ok() ? *generation : Json());
  if (!result.ok()) return result.status().with_context(directory);
  return result;
}

}  // namespace pointsman
