// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/model_config.h"

#include <algorithm>

#include "checkpoint/config_reader.h"
#include "checkpoint/lfs_pointer.h"

namespace pointsman {
namespace {

constexpr uint64_t kMaxConfigBytes = 16 << 20;
constexpr int64_t kMaxDim = 1 << 20;
constexpr int64_t kMaxLayers = 4096;
constexpr int64_t kMaxHeads = 4096;
constexpr int64_t kMaxHeadDim = 512;

// What differs between families: the defaults of their transformers config class (5.24), which files may leave out, and rules.
struct Family {
  std::string_view model_type;
  bool is_moe;
  int64_t num_key_value_heads;
  int64_t head_dim;            // 0: hidden_size / num_attention_heads
  bool window_in_every_layer;  // with use_sliding_window; otherwise layer_types or max_window_layers say which
  // Reads windows, ropes and what else only this family has; null: the common keys.
  void (*read_own)(ConfigReader& reader, ModelConfig& config) = nullptr;
};
constexpr Family kFamilies[] = {
    {.model_type = "deepseek_v4", .is_moe = true, .num_key_value_heads = 1, .head_dim = 512, .window_in_every_layer = true,
     .read_own = read_deepseek_v4},
    {.model_type = "qwen3", .is_moe = false, .num_key_value_heads = 32, .head_dim = 128, .window_in_every_layer = false},
    {.model_type = "qwen3_moe", .is_moe = true, .num_key_value_heads = 4, .head_dim = 0, .window_in_every_layer = true},
};

// Keys that are known and say nothing about the forward pass. A dense model may keep intermediate_size unused, and a window
// that is off its layer number.
const std::set<std::string_view>& harmless_keys() {
  static const std::set<std::string_view> keys = {"architectures",        "attention_dropout",
                                                  "bos_token_id",         "chunk_size_feed_forward",
                                                  "eos_token_id",         "id2label",
                                                  "initializer_range",    "intermediate_size",
                                                  "is_encoder_decoder",   "label2id",
                                                  "max_window_layers",    "model_type",
                                                  "output_attentions",    "output_hidden_states",
                                                  "output_router_logits", "problem_type",
                                                  "return_dict",          "router_aux_loss_coef",
                                                  "router_jitter_noise",  "text_config",
                                                  "transformers_version", "use_cache",
                                                  "_name_or_path"};
  return keys;
}

Result<const Family*> find_family(ConfigReader& r, ModelConfig& c) {
  c.model_type = r.text_or("model_type", {"model_type"}, "", "missing");
  PM_RETURN_IF_ERROR(r.status());
  std::string known;
  for (const Family& f : kFamilies) {
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

void read_attention_sizes(ConfigReader& r, const Family& family, ModelConfig& c) {
  const std::string fallback = "default of " + c.model_type;
  c.num_attention_heads = r.integer("num_attention_heads", {"num_attention_heads"}, 1, kMaxHeads);
  // An explicit null says "one per head", as files did before the key existed.
  c.num_key_value_heads =
      r.is_null("num_key_value_heads")
          ? r.integer_or("num_key_value_heads", {"num_key_value_heads"}, 1, kMaxHeads, c.num_attention_heads,
                         "derived: num_attention_heads")
          : r.integer_or("num_key_value_heads", {"num_key_value_heads"}, 1, kMaxHeads, family.num_key_value_heads, fallback);
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
  c.attention_bias = r.boolean_or("attention_bias", {"attention_bias"}, false, fallback);
}

}  // namespace

Result<ModelConfig> normalize_config(const Json& config, const Json& generation) {
  if (!config.is_object()) return error(StatusCode::kCorrupt, "config.json: expected an object, found {}", config.type_name());
  if (!generation.is_null() && !generation.is_object()) {
    return error(StatusCode::kCorrupt, "generation_config.json: expected an object, found {}", generation.type_name());
  }
  ModelConfig c;
  ConfigReader r(config, "config.json", c);
  PM_ASSIGN_OR_RETURN(const Family* family, find_family(r, c));
  check_foreign_matter(r);
  read_quantization(r, c);
  const std::string fallback = "default of " + c.model_type;

  c.torch_dtype = r.text_or("dtype", {"dtype", "torch_dtype"}, "", "not said");
  c.hidden_size = r.integer("hidden_size", {"hidden_size"}, 1, kMaxDim);
  c.num_hidden_layers = r.integer("num_hidden_layers", {"num_hidden_layers"}, 1, kMaxLayers);
  read_attention_sizes(r, *family, c);
  c.vocab_size = r.integer("vocab_size", {"vocab_size"}, 1, 1 << 24);
  c.max_position_embeddings =
      r.integer_or("max_position_embeddings", {"max_position_embeddings"}, 1, int64_t{1} << 32, 32768, fallback);
  c.rms_norm_eps = r.number_or("rms_norm_eps", {"rms_norm_eps"}, 0, 1, 1e-6, fallback);
  c.tie_word_embeddings = r.boolean_or("tie_word_embeddings", {"tie_word_embeddings"}, false, fallback);
  const std::string act = r.text_or("hidden_act", {"hidden_act"}, "silu", fallback);
  if (act != "silu" && act != "swish") {
    r.fail(error(StatusCode::kUnsupported, "config.json: hidden_act {} is not supported for {}; expected \"silu\"",
                 json_quote(act.substr(0, 64)), c.model_type));
  }
  PM_RETURN_IF_ERROR(r.status());

  c.layer_is_moe.assign(static_cast<size_t>(c.num_hidden_layers), false);
  if (family->is_moe) read_moe(r, c);
  const bool has_dense = std::find(c.layer_is_moe.begin(), c.layer_is_moe.end(), false) != c.layer_is_moe.end();
  if (has_dense) c.intermediate_size = r.integer("intermediate_size", {"intermediate_size"}, 1, kMaxDim);
  if (family->read_own != nullptr) {
    if (r.status().ok()) family->read_own(r, c);
  } else {
    read_layer_windows(r, family->window_in_every_layer, c);
    read_rope(r, c);
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
