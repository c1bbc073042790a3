// SPDX-License-Identifier: Apache-2.0
//
// The rope keys in their spellings: rope_theta at the top, rope_scaling with "type" or "rope_type" (transformers 4), rope_parameters
// with everything inside (transformers 5), either nested by attention type. A type that is not known is refused by name.
#include "checkpoint/config_reader.h"

namespace pointsman {
namespace {

constexpr double kMaxTheta = 1e12;
constexpr double kMaxFactor = 1e6;

// One value in a rope dictionary, with its path in errors and origins.
class RopeReader {
 public:
  RopeReader(ConfigReader& reader, const Json& object, std::string path) : reader_(reader), object_(object), path_(std::move(path)) {}

  const Json* find(std::string_view key) const {
    const Json* v = object_.find(key);
    return v != nullptr && v->is_null() ? nullptr : v;
  }
  std::string path(std::string_view key) const { return format("{}.{}", path_, key); }
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

void read_yarn(ConfigReader& reader, RopeReader& r, ModelConfig& c) {
  c.rope.type = RopeType::kYarn;
  r.required_number("factor", "yarn", 1, kMaxFactor, c.rope.factor);
  r.number("beta_fast", 0.001, 1e6, c.rope.beta_fast);
  r.number("beta_slow", 0.001, 1e6, c.rope.beta_slow);
  r.number("attention_factor", 0.001, 1000, c.rope.attention_factor);
  for (const std::string_view key : {"mscale", "mscale_all_dim"}) {
    const Json* v = r.find(key);
    if (v != nullptr && !(v->is_number() && v->as_double() == 0)) {
      reader.fail(error(StatusCode::kUnsupported, "{}: not used by {}; remove it or use a family that defines it", r.path(key), c.model_type));
    }
  }
  if (const Json* v = r.find("truncate")) {
    if (v->is_bool()) {
      c.rope.truncate = v->as_bool();
    } else {
      reader.fail(error(StatusCode::kCorrupt, "{}: expected true or false, found {}", r.path("truncate"), v->type_name()));
    }
  }
  if (const Json* v = r.find("original_max_position_embeddings")) {
    c.rope.original_max_position_embeddings = reader.check_integer(r.path("original_max_position_embeddings"), *v, 1, int64_t{1} << 32);
  } else {
    c.rope.original_max_position_embeddings = c.max_position_embeddings;
  }
}

}  // namespace

void read_rope(ConfigReader& reader, ModelConfig& c) {
  c.rope.theta = reader.number_or("rope_theta", {"rope_theta"}, 1, kMaxTheta, 10000, "default of " + c.model_type);

  std::string path;
  const Json* dict = reader.find({"rope_scaling"}, &path);
  if (dict != nullptr && dict->is_object() && dict->as_object().empty()) dict = nullptr;
  if (dict == nullptr) dict = reader.find({"rope_parameters"}, &path);
  if (dict == nullptr) return;
  if (!dict->is_object()) {
    reader.fail(error(StatusCode::kCorrupt, "{}: expected an object or null, found {}", path, dict->type_name()));
    return;
  }
  // Nested by attention type: one kind of attention is what these families have.
  for (const std::string_view kind : {"full_attention", "sliding_attention"}) {
    const Json* nested = dict->find(kind);
    if (nested == nullptr || !nested->is_object()) continue;
    if (dict->as_object().size() > 1) {
      reader.fail(error(StatusCode::kUnsupported, "{}: different rope parameters by layer type", path));
      return;
    }
    path = format("{}.{}", path, kind);
    dict = nested;
    break;
  }

  RopeReader r(reader, *dict, path);
  r.number("rope_theta", 1, kMaxTheta, c.rope.theta);
  std::string type = "default";
  for (const std::string_view key : {"rope_type", "type"}) {
    const Json* v = r.find(key);
    if (v == nullptr) continue;
    if (!v->is_string()) {
      reader.fail(error(StatusCode::kCorrupt, "{}: expected a string, found {}", r.path(key), v->type_name()));
      return;
    }
    type = v->as_string();
    reader.record("rope.type", type, r.path(key));
    break;
  }
  if (type == "default") {
    c.rope.type = RopeType::kDefault;
  } else if (type == "linear") {
    c.rope.type = RopeType::kLinear;
    r.required_number("factor", type, 1e-6, kMaxFactor, c.rope.factor);
  } else if (type == "yarn") {
    read_yarn(reader, r, c);
  } else {
    reader.fail(error(StatusCode::kUnsupported, "{}: rope type {} is not supported; known are default, linear, yarn", path,
                      json_quote(type.substr(0, 64))));
  }
}

}  // namespace pointsman
