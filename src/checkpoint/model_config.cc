// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/model_config.h"

#include <algorithm>
#include <array>

#include "checkpoint/config_reader.h"

namespace pointsman {
namespace {

constexpr uint64_t kMaxConfigBytes = 16 << 20;
constexpr int64_t kMaxDim = 1 << 20;
constexpr int64_t kMaxLayers = 4096;
constexpr int64_t kMaxHeads = 4096;

// What differs between families before their architecture file sees the config. 0 as a head_dim: hidden_size / num_attention_heads.
struct Family {
  std::string_view model_type;
  bool is_moe;
  int64_t default_head_dim;
  bool window_from_max_window_layers;  // false: with use_sliding_window every layer slides
};
constexpr Family kFamilies[] = {
    {.model_type = "qwen3", .is_moe = false, .default_head_dim = 128, .window_from_max_window_layers = true},
    {.model_type = "qwen3_moe", .is_moe = true, .default_head_dim = 0, .window_from_max_window_layers = false},
};

// Keys that say nothing about the computation, or that are checked elsewhere.
constexpr std::string_view kHarmless[] = {
    "architectures", "transformers_version", "use_cache", "initializer_range", "attention_dropout", "output_router_logits", "router_aux_loss_coef",
    "model_type", "text_config", "auto_map", "quantization_config", "max_window_layers", "sliding_window", "use_sliding_window", "layer_types",
    "mlp_only_layers", "decoder_sparse_step", "_name_or_path", "return_dict", "hidden_act", "rope_scaling", "rope_parameters", "rope_theta",
    "torch_dtype", "dtype", "bos_token_id", "eos_token_id", "pad_token_id", "chunk_size_feed_forward", "is_encoder_decoder", "output_attentions",
    "output_hidden_states", "id2label", "label2id", "problem_type", "router_jitter_noise", "intermediate_size"};

void read_windows(ConfigReader& r, const Family& family, ModelConfig& c) {
  c.layer_window.assign(static_cast<size_t>(c.num_hidden_layers), 0);
  const bool use = r.boolean_or("use_sliding_window", {"use_sliding_window"}, false, "default of " + c.model_type);
  std::string path;
  const Json* types = r.find({"layer_types"}, &path);
  const int64_t window = r.integer_or("sliding_window", {"sliding_window"}, 1, int64_t{1} << 32, 4096, "default of " + c.model_type);
  const int64_t first = r.integer_or("max_window_layers", {"max_window_layers"}, 0, kMaxLayers, 28, "default of " + c.model_type);
  if (types != nullptr) {
    if (!types->is_array() || types->as_array().size() != c.layer_window.size()) {
      r.fail(error(StatusCode::kCorrupt, "{}: expected a list of {} layer types", path, c.num_hidden_layers));
      return;
    }
    for (size_t i = 0; i < c.layer_window.size(); ++i) {
      const Json& type = types->as_array()[i];
      if (type.is_string() && type.as_string() == "sliding_attention") {
        if (use) c.layer_window[i] = window;
      } else if (!type.is_string() || type.as_string() != "full_attention") {
        r.fail(error(StatusCode::kUnsupported, "{}[{}]: {} is neither \"full_attention\" nor \"sliding_attention\"", path, i, type.dump().substr(0, 64)));
      }
    }
    if (family.window_from_max_window_layers) return;
  }
  if (!use) return;
  for (size_t i = 0; i < c.layer_window.size(); ++i) {
    if (!family.window_from_max_window_layers || static_cast<int64_t>(i) >= first) c.layer_window[i] = window;
  }
}

void read_moe(ConfigReader& r, ModelConfig& c) {
  const std::string fallback = "default of " + c.model_type;
  c.num_experts = r.integer("num_experts", {"num_experts", "num_local_experts", "n_routed_experts"}, 1, 4096);
  c.num_experts_per_tok = r.integer("num_experts_per_tok", {"num_experts_per_tok"}, 1, 64);
  c.moe_intermediate_size = r.integer("moe_intermediate_size", {"moe_intermediate_size"}, 1, kMaxDim);
  c.norm_topk_prob = r.boolean_or("norm_topk_prob", {"norm_topk_prob"}, false, fallback);
  const int64_t step = r.integer_or("decoder_sparse_step", {"decoder_sparse_step"}, 1, kMaxLayers, 1, fallback);
  if (c.num_experts_per_tok > c.num_experts) {
    r.fail(error(StatusCode::kInvalidArgument, "{}: num_experts_per_tok {} is more than num_experts {}", r.where(), c.num_experts_per_tok, c.num_experts));
  }
  for (int64_t i = 0; i < c.num_hidden_layers; ++i) c.layer_is_moe[static_cast<size_t>(i)] = (i + 1) % step == 0;
  std::string path;
  const Json* dense = r.find({"mlp_only_layers"}, &path);
  if (dense == nullptr) return;
  if (!dense->is_array()) {
    r.fail(error(StatusCode::kCorrupt, "{}: expected a list, found {}", path, dense->type_name()));
    return;
  }
  for (const Json& item : dense->as_array()) {
    const int64_t layer = r.check_integer(path, item, 0, kMaxLayers);
    if (layer < c.num_hidden_layers) c.layer_is_moe[static_cast<size_t>(layer)] = false;
  }
  r.record("mlp_only_layers", dense->dump().substr(0, 120), path);
}

void read_token_ids(ConfigReader& r, const Json& generation, ModelConfig& c) {
  const auto read = [&](const Json* value, const std::string& path, std::string_view name, std::vector<int64_t>& out) {
    if (value == nullptr || value->is_null()) return false;
    out.clear();
    if (value->is_array()) {
      if (value->as_array().size() > 256) {
        r.fail(error(StatusCode::kInvalidArgument, "{}: more than 256 token ids", path));
        return true;
      }
      for (const Json& v : value->as_array()) out.push_back(r.check_integer(path, v, -1, INT32_MAX));
    } else {
      out.push_back(r.check_integer(path, *value, -1, INT32_MAX));
    }
    r.record(name, value->dump().substr(0, 120), path);
    return true;
  };
  const auto find = [&](std::string_view key, std::vector<int64_t>& out) {
    if (read(generation.find(key), format("generation_config.json: {}", key), key, out)) return;
    std::string path;
    const Json* v = r.find({key}, &path);
    read(v, path, key, out);
  };
  std::vector<int64_t> one;
  find("eos_token_id", c.eos_token_ids);
  c.eos_token_ids.erase(std::remove_if(c.eos_token_ids.begin(), c.eos_token_ids.end(), [](int64_t id) { return id < 0; }), c.eos_token_ids.end());
  find("bos_token_id", one);
  if (!one.empty()) c.bos_token_id = one[0];
  one.clear();
  find("pad_token_id", one);
  if (!one.empty()) c.pad_token_id = one[0];
}

}  // namespace

Result<ModelConfig> normalize_config(const Json& config, const Json& generation) {
  if (!config.is_object()) return error(StatusCode::kCorrupt, "config.json: expected an object, found {}", config.type_name());
  ModelConfig c;
  ConfigReader r(config, "config.json", c);
  c.model_type = r.text_or("model_type", {"model_type"}, "", "missing");
  PM_RETURN_IF_ERROR(r.status());
  const Family* family = std::find_if(std::begin(kFamilies), std::end(kFamilies), [&](const Family& f) { return f.model_type == c.model_type; });
  if (family == std::end(kFamilies)) {
    std::string known;
    for (const Family& f : kFamilies) known += (known.empty() ? "" : ", ") + std::string(f.model_type);
    return error(StatusCode::kUnsupported, "config.json: model_type {} is not supported; this build knows {}", json_quote(c.model_type.substr(0, 64)), known);
  }
  const std::string fallback = "default of " + c.model_type;

  if (const Json* q = config.find("quantization_config"); q != nullptr && !q->is_null()) {
    const Json* method = q->find("quant_method");
    return error(StatusCode::kUnsupported, "config.json: quantization_config with quant_method {} is not supported; use the BF16, F16 or F32 checkpoint",
                 method != nullptr ? method->dump().substr(0, 64) : "(not said)");
  }
  if (const Json* a = config.find("auto_map"); a != nullptr && !a->is_null()) {
    c.warnings.push_back("config.json: auto_map names Python code; it is ignored, nothing from a checkpoint is executed");
  }

  c.torch_dtype = r.text_or("torch_dtype", {"dtype", "torch_dtype"}, "", "not said");
  c.hidden_size = r.integer("hidden_size", {"hidden_size"}, 1, kMaxDim);
  c.num_hidden_layers = r.integer("num_hidden_layers", {"num_hidden_layers"}, 1, kMaxLayers);
  c.num_attention_heads = r.integer("num_attention_heads", {"num_attention_heads"}, 1, kMaxHeads);
  c.num_key_value_heads = r.integer_or("num_key_value_heads", {"num_key_value_heads"}, 1, kMaxHeads, c.num_attention_heads, "derived: num_attention_heads");
  PM_RETURN_IF_ERROR(r.status());
  if (c.num_attention_heads % c.num_key_value_heads != 0) {
    return error(StatusCode::kInvalidArgument, "config.json: num_attention_heads {} is no multiple of num_key_value_heads {}", c.num_attention_heads,
                 c.num_key_value_heads);
  }
  const int64_t derived = std::max<int64_t>(1, c.hidden_size / c.num_attention_heads);
  c.head_dim = family->default_head_dim > 0
                   ? r.integer_or("head_dim", {"head_dim"}, 1, 512, family->default_head_dim, fallback)
                   : r.integer_or("head_dim", {"head_dim"}, 1, 512, derived, "derived: hidden_size / num_attention_heads");
  if (c.head_dim > 512) return error(StatusCode::kUnsupported, "config.json: head_dim {} is more than 512", c.head_dim);
  c.vocab_size = r.integer("vocab_size", {"vocab_size"}, 1, 1 << 24);
  c.max_position_embeddings = r.integer_or("max_position_embeddings", {"max_position_embeddings"}, 1, int64_t{1} << 32, 32768, fallback);
  c.rms_norm_eps = r.number_or("rms_norm_eps", {"rms_norm_eps"}, 0, 1, 1e-6, fallback);
  c.tie_word_embeddings = r.boolean_or("tie_word_embeddings", {"tie_word_embeddings"}, false, fallback);
  c.attention_bias = r.boolean_or("attention_bias", {"attention_bias"}, false, fallback);
  const std::string act = r.text_or("hidden_act", {"hidden_act"}, "silu", fallback);
  if (r.status().ok() && act != "silu" && act != "swish") {
    return error(StatusCode::kUnsupported, "config.json: hidden_act {} is not supported by {}; expected silu", json_quote(act.substr(0, 64)), c.model_type);
  }
  PM_RETURN_IF_ERROR(r.status());

  c.layer_is_moe.assign(static_cast<size_t>(c.num_hidden_layers), false);
  if (family->is_moe) read_moe(r, c);
  const bool has_dense = std::find(c.layer_is_moe.begin(), c.layer_is_moe.end(), false) != c.layer_is_moe.end();
  if (has_dense) c.intermediate_size = r.integer("intermediate_size", {"intermediate_size"}, 1, kMaxDim);
  read_windows(r, *family, c);
  read_rope(r, c);
  read_token_ids(r, generation, c);
  PM_RETURN_IF_ERROR(r.status());

  for (const auto& [key, value] : config.as_object()) {
    const bool known = r.seen_keys().count(key) > 0 || std::find(std::begin(kHarmless), std::end(kHarmless), key) != std::end(kHarmless);
    if (!known) c.ignored_keys.push_back(key);
  }
  return c;
}

Result<ModelConfig> read_model_config(FileSystem& fs, const std::string& directory) {
  const auto read = [&](const char* name) -> Result<Json> {
    const std::string path = join_path(directory, name);
    PM_ASSIGN_OR_RETURN(const std::string text, read_text_file(fs, path, kMaxConfigBytes));
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

Result<GenerationDefaults> read_generation_defaults(FileSystem& fs, const std::string& directory) {
  GenerationDefaults d;
  const std::string path = join_path(directory, "generation_config.json");
  const Result<std::string> text = read_text_file(fs, path, kMaxConfigBytes);
  if (!text.ok()) {
    if (text.status().code() == StatusCode::kNotFound) return d;
    return text.status();
  }
  Result<Json> json = parse_json(*text);
  if (!json.ok()) return json.status().with_context(path);
  ModelConfig unused;
  ConfigReader r(*json, path, unused);
  d.do_sample = r.boolean_or("do_sample", {"do_sample"}, d.do_sample, "");
  d.temperature = r.number_or("temperature", {"temperature"}, 0, 1000, d.temperature, "");
  d.top_k = r.integer_or("top_k", {"top_k"}, 0, 1 << 24, d.top_k, "");
  d.top_p = r.number_or("top_p", {"top_p"}, 0, 1, d.top_p, "");
  d.min_p = r.number_or("min_p", {"min_p"}, 0, 1, d.min_p, "");
  d.repetition_penalty = r.number_or("repetition_penalty", {"repetition_penalty"}, 1e-3, 1000, d.repetition_penalty, "");
  PM_RETURN_IF_ERROR(r.status());
  return d;
}

}  // namespace pointsman
