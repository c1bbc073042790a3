// SPDX-License-Identifier: Apache-2.0
//
// generation_config.json: token ids that end a text, and sampling defaults. Unknown keys are kept out of the way, not refused.
#include <algorithm>

#include "checkpoint/config_reader.h"

namespace pointsman {
namespace {

constexpr uint64_t kMaxGenerationConfigBytes = 1 << 20;
constexpr size_t kMaxTokenIds = 256;

// An id or a list of at most `max_ids`, from generation_config.json before config.json; -1 stands for "none" in some files and
// is left out.
std::vector<int64_t> read_ids(ConfigReader& r, const Json& generation, std::string_view key, size_t max_ids) {
  std::string path = format("generation_config.json: {}", key);
  const Json* value = generation.find(key);
  if (value == nullptr || value->is_null()) value = r.find({key}, &path);
  if (value == nullptr) return {};
  r.record(key, brief(*value), path);
  std::vector<int64_t> ids;
  if (!value->is_array()) {
    ids.push_back(r.check_integer(path, *value, -1, INT32_MAX));
  } else if (value->as_array().size() > max_ids) {
    r.fail(error(StatusCode::kInvalidArgument, "{}: {} token ids, expected {}", path, value->as_array().size(),
                 max_ids == 1 ? "one" : format("at most {}", max_ids)));
  } else {
    for (const Json& item : value->as_array()) ids.push_back(r.check_integer(path, item, -1, INT32_MAX));
  }
  ids.erase(std::remove(ids.begin(), ids.end(), -1), ids.end());
  return ids;
}

int64_t read_one_id(ConfigReader& r, const Json& generation, std::string_view key) {
  const std::vector<int64_t> ids = read_ids(r, generation, key, 1);
  return ids.empty() ? -1 : ids[0];
}

}  // namespace

void read_token_ids(ConfigReader& r, const Json& generation, ModelConfig& c) {
  c.eos_token_ids = read_ids(r, generation, "eos_token_id", kMaxTokenIds);
  c.bos_token_id = read_one_id(r, generation, "bos_token_id");
  c.pad_token_id = read_one_id(r, generation, "pad_token_id");
  for (const int64_t id : c.eos_token_ids) {
    if (id >= c.vocab_size)
      r.warn(format("eos_token_id {} is beyond vocab_size {}: it can never be produced", id, c.vocab_size));
  }
}

Result<GenerationDefaults> normalize_generation_defaults(const Json& generation) {
  GenerationDefaults d;
  if (generation.is_null()) return d;
  if (!generation.is_object())
    return error(StatusCode::kCorrupt, "generation_config.json: expected an object, found {}", generation.type_name());
  ModelConfig unused;
  ConfigReader r(generation, "generation_config.json", unused);
  d.do_sample = r.boolean_or("do_sample", {"do_sample"}, d.do_sample, "");
  d.temperature = r.number_or("temperature", {"temperature"}, 0, 1000, d.temperature, "");
  d.top_k = r.integer_or("top_k", {"top_k"}, 0, 1 << 24, d.top_k, "");
  d.top_p = r.number_or("top_p", {"top_p"}, 0, 1, d.top_p, "");
  d.min_p = r.number_or("min_p", {"min_p"}, 0, 1, d.min_p, "");
  d.repetition_penalty = r.number_or("repetition_penalty", {"repetition_penalty"}, 1e-3, 1000, d.repetition_penalty, "");
  PM_RETURN_IF_ERROR(r.status());
  return d;
}

Result<GenerationDefaults> read_generation_defaults(FileSystem& fs, const std::string& directory) {
  const std::string path = join_path(directory, "generation_config.json");
  const Result<std::string> text = read_text_file(fs, path, kMaxGenerationConfigBytes);
  if (!text.ok()) {
    if (text.status().code() == StatusCode::kNotFound) return GenerationDefaults{};
    return text.status();
  }
  Result<Json> json = parse_json(*text);
  if (!json.ok()) return json.status().with_context(path);
  Result<GenerationDefaults> defaults = normalize_generation_defaults(*json);
  if (!defaults.ok()) return defaults.status().with_context(directory);
  return defaults;
}

}  // namespace pointsman
