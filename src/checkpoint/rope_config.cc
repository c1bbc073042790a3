// SPDX-License-Identifier: Apache-2.0
//
// The rope keys in their spellings: rope_theta at the top, rope_scaling with "type" or "rope_type" (transformers 4),
// rope_parameters with everything inside (transformers 5), either nested by attention type. A type that is not known is refused
// by name, and so is what one RopeConfig for all layers cannot express.
//
// Precedence as in transformers 5.24: rope_type before type, rope_theta inside the dictionary before the one at the top, a
// non-empty rope_scaling before rope_parameters (two different ones are refused here: transformers would drop a theta
// silently).
#include <algorithm>
#include <cmath>

#include "checkpoint/config_reader.h"

namespace pointsman {
namespace {

constexpr double kMinTheta = 1;
constexpr double kMaxTheta = 1e12;
constexpr double kMaxFactor = 1e6;
constexpr int64_t kMaxPositions = int64_t{1} << 32;

// The values of one rope dictionary, with their path in errors and origins.
class RopeReader {
 public:
  RopeReader(ConfigReader& reader, const Json& object, std::string path)
      : reader_(reader), object_(object), path_(std::move(path)) {}

  const Json* find(std::string_view key) const {
    const Json* v = object_.find(key);
    return v != nullptr && v->is_null() ? nullptr : v;
  }
  std::string path(std::string_view key) const { return format("{}.{}", path_, key); }
  // Absent: `out` keeps its value.
  void number(std::string_view key, double low, double high, double& out) {
    const Json* v = find(key);
    if (v == nullptr) return;
    out = reader_.check_number(path(key), *v, low, high);
    reader_.record(format("rope.{}", key), format("{}", out), path(key));
  }
  void required_number(std::string_view key, std::string_view type, double low, double high, double& out) {
    if (find(key) == nullptr) {
      reader_.fail(error(StatusCode::kCorrupt, "{}: rope type \"{}\" needs \"{}\"", path_, type, key));
      return;
    }
    number(key, low, high, out);
  }

 private:
  ConfigReader& reader_;
  const Json& object_;
  std::string path_;
};

// The yarn paper's temperature for a stretch of `factor`, scaled by k.
double yarn_mscale(double factor, double k) {
  return factor <= 1 ? 1 : 0.1 * k * std::log(factor) + 1;
}

// The context a model was trained with: at the top level or in the dictionary; transformers prefers the former.
void read_original_context(ConfigReader& reader, RopeReader& r, ModelConfig& c) {
  constexpr std::string_view kOriginal = "original_max_position_embeddings";
  std::string path;
  const Json* original = reader.find({kOriginal}, &path);
  const Json* inner = r.find(kOriginal);
  if (original == nullptr) {
    original = inner;
    path = r.path(kOriginal);
  } else if (inner != nullptr && !(*inner == *original)) {
    reader.warn(format("{}: {} is used, as transformers does; {} says {}", path, brief(*original), r.path(kOriginal), brief(*inner)));
  }
  if (original == nullptr) path = "derived: max_position_embeddings";
  c.rope.original_max_position_embeddings =
      original != nullptr ? reader.check_integer(path, *original, 1, kMaxPositions) : c.max_position_embeddings;
  reader.record(format("rope.{}", kOriginal), std::to_string(c.rope.original_max_position_embeddings), path);
}

void read_yarn(ConfigReader& reader, RopeReader& r, ModelConfig& c) {
  c.rope.type = RopeType::kYarn;
  r.required_number("factor", "yarn", 1, kMaxFactor, c.rope.factor);
  r.number("beta_fast", 0.001, 1e6, c.rope.beta_fast);
  r.number("beta_slow", 0.001, 1e6, c.rope.beta_slow);
  r.number("attention_factor", 0.001, 1000, c.rope.attention_factor);
  double mscale = 0, mscale_all_dim = 0;
  r.number("mscale", 0, 1000, mscale);
  r.number("mscale_all_dim", 0, 1000, mscale_all_dim);
  c.rope.mscale_all_dim = mscale_all_dim;
  // Only the two together mean something, and an attention_factor overrules them.
  if (c.rope.attention_factor == 0 && mscale != 0 && mscale_all_dim != 0) {
    c.rope.attention_factor = yarn_mscale(c.rope.factor, mscale) / yarn_mscale(c.rope.factor, mscale_all_dim);
    reader.record("rope.attention_factor", format("{}", c.rope.attention_factor), "derived: mscale, mscale_all_dim, factor");
  }
  if (const Json* v = r.find("truncate")) {
    c.rope.truncate = reader.check_boolean(r.path("truncate"), *v);
    reader.record("rope.truncate", c.rope.truncate ? "true" : "false", r.path("truncate"));
  }
  read_original_context(reader, r, c);
}

// Frequencies below the band are divided by factor, those above it kept, between them blended (Llama 3.1).
void read_llama3(ConfigReader& reader, RopeReader& r, ModelConfig& c) {
  c.rope.type = RopeType::kLlama3;
  r.required_number("factor", "llama3", 1, kMaxFactor, c.rope.factor);
  r.required_number("low_freq_factor", "llama3", 1e-6, 1e6, c.rope.low_freq_factor);
  r.required_number("high_freq_factor", "llama3", 1e-6, 1e6, c.rope.high_freq_factor);
  read_original_context(reader, r, c);
  if (reader.status().ok() && c.rope.high_freq_factor <= c.rope.low_freq_factor) {
    reader.fail(error(StatusCode::kInvalidArgument, "{}: {} is not above low_freq_factor {}", r.path("high_freq_factor"),
                      c.rope.high_freq_factor, c.rope.low_freq_factor));
  }
}

// The dictionary to use, or null; `path` names it.
const Json* find_dictionary(ConfigReader& reader, std::string& path) {
  const Json* found = nullptr;
  std::string other_path;
  for (const std::string_view key : {"rope_scaling", "rope_parameters"}) {
    const Json* dict = reader.find({key}, &other_path);
    if (dict == nullptr) continue;
    if (!dict->is_object()) {
      reader.fail_type(other_path, *dict, "an object or null");
      return nullptr;
    }
    if (dict->as_object().empty()) continue;
    if (found == nullptr) {
      found = dict;
      path = other_path;
    } else if (!(*found == *dict)) {
      reader.fail(error(StatusCode::kUnsupported, "{} and {} say different things; keep one of them", path, other_path));
      return nullptr;
    }
  }
  return found;
}

// One level down when `dict` is nested by attention type: the entry of the type that the layers have.
const Json* select_attention_type(ConfigReader& reader, const Json* dict, std::string& path, const ModelConfig& c) {
  const bool is_nested = std::any_of(dict->as_object().begin(), dict->as_object().end(),
                                     [](const Json::Member& m) { return m.second.is_object(); });
  if (!is_nested) return dict;
  const bool any_slides = std::any_of(c.layer_window.begin(), c.layer_window.end(), [](int64_t w) { return w != 0; });
  const bool any_full = std::any_of(c.layer_window.begin(), c.layer_window.end(), [](int64_t w) { return w == 0; });
  const Json* full = dict->find("full_attention");
  const Json* sliding = dict->find("sliding_attention");
  for (const auto& [key, value] : dict->as_object()) {
    if ((key != "full_attention" && key != "sliding_attention") || !value.is_object()) {
      reader.fail(
          error(StatusCode::kUnsupported,
                "{}: key {} in a dictionary nested by attention type is not supported by {}; expected full_attention and "
                "sliding_attention",
                path, json_quote(key.substr(0, 64)), c.model_type));
      return nullptr;
    }
  }
  if (any_slides && any_full && full != nullptr && sliding != nullptr && !(*full == *sliding)) {
    reader.fail(error(
        StatusCode::kUnsupported,
        "{}: full_attention and sliding_attention differ, and {} has layers of both; one rope for all layers is supported",
        path, c.model_type));
    return nullptr;
  }
  const std::string_view wanted = any_full ? "full_attention" : "sliding_attention";
  const Json* chosen = any_full ? full : sliding;
  if (chosen == nullptr || (any_slides && any_full && (full == nullptr || sliding == nullptr))) {
    reader.fail(error(StatusCode::kUnsupported, "{}: nested by attention type, but {} is missing", path,
                      chosen == nullptr ? wanted
                      : full == nullptr ? "full_attention"
                                        : "sliding_attention"));
    return nullptr;
  }
  path = format("{}.{}", path, wanted);
  return chosen;
}

// "rope_type", or "type" in older files.
std::string read_type(ConfigReader& reader, RopeReader& r) {
  for (const std::string_view key : {"rope_type", "type"}) {
    const Json* v = r.find(key);
    if (v == nullptr) continue;
    if (!v->is_string()) {
      reader.fail_type(r.path(key), *v, "a string");
      return "default";
    }
    reader.record("rope.type", v->as_string(), r.path(key));
    return v->as_string();
  }
  return "default";
}

}  // namespace

void read_rope_dictionary(ConfigReader& reader, const Json& dict, const std::string& path, ModelConfig& c, double& partial) {
  RopeReader r(reader, dict, path);
  r.number("rope_theta", kMinTheta, kMaxTheta, c.rope.theta);
  r.number("partial_rotary_factor", 0, 1, partial);
  const std::string type = read_type(reader, r);
  if (type == "default") {
    c.rope.type = RopeType::kDefault;
  } else if (type == "linear") {
    c.rope.type = RopeType::kLinear;
    r.required_number("factor", type, 1e-6, kMaxFactor, c.rope.factor);
  } else if (type == "llama3") {
    read_llama3(reader, r, c);
  } else if (type == "yarn") {
    read_yarn(reader, r, c);
  } else {
    reader.fail(error(StatusCode::kUnsupported, "{}: rope type {} is not supported; known are default, linear, llama3, yarn", path,
                      json_quote(type.substr(0, 64))));
  }
}

void read_rope(ConfigReader& reader, const Family& family, ModelConfig& c) {
  const std::string fallback = "default of " + c.model_type;
  c.rope.theta = reader.number_or("rope.theta", {"rope_theta"}, kMinTheta, kMaxTheta, family.rope_theta, fallback);
  const bool knows_partial = family.partial_rotary_factor != 0;
  double whole = knows_partial ? family.partial_rotary_factor : 1;
  std::string origin = fallback;
  if (family.has_rotary_dim_key) {
    const int64_t rotary_dim = reader.integer_or("rotary_dim", {"rotary_dim"}, 1, c.head_dim, c.head_dim, "derived: head_dim");
    whole = static_cast<double>(rotary_dim) / static_cast<double>(c.head_dim);
    origin = "derived: rotary_dim / head_dim";
  }
  double partial = reader.number_or("partial_rotary_factor", {"partial_rotary_factor"}, 0, 1, whole, origin);
  std::string path;
  const Json* dict = find_dictionary(reader, path);
  if (dict != nullptr) dict = select_attention_type(reader, dict, path, c);
  if (dict != nullptr) read_rope_dictionary(reader, *dict, path, c, partial);
  if (partial != 1 && !knows_partial) {
    reader.fail(error(StatusCode::kUnsupported, "{}: partial_rotary_factor {} is not supported for {}; expected 1",
                      reader.where(), partial, c.model_type));
  }
  c.rotary_dim = static_cast<int64_t>(static_cast<double>(c.head_dim) * partial);  // cut off, as transformers does
  if (reader.status().ok() && (c.rotary_dim < 2 || c.rotary_dim % 2 != 0)) {
    reader.fail(error(StatusCode::kInvalidArgument, "{}: partial_rotary_factor {} of head_dim {} makes {} rotating channels; "
                      "expected an even number of at least 2", reader.where(), partial, c.head_dim, c.rotary_dim));
  }
}

}  // namespace pointsman
