// SPDX-License-Identifier: Apache-2.0
#include "experts/hot_set.h"

#include <algorithm>

#include "base/check.h"
#include "base/json.h"
#include "base/log.h"

namespace pointsman {
namespace {

constexpr std::string_view kFormat = "pointsman-hot-set";
constexpr int64_t kVersion = 1;

uint64_t most_bytes(int num_layers, int num_experts) {
  return 4096 + 16 * static_cast<uint64_t>(num_layers) * static_cast<uint64_t>(num_experts + 1);
}

}  // namespace

void HotSet::add_run(std::span<const uint32_t> run_uses) {
  PM_CHECK(run_uses.size() == uses.size());
  for (size_t i = 0; i < uses.size(); ++i) uses[i] = static_cast<uint32_t>(std::min<uint64_t>(UINT32_MAX, uint64_t{uses[i]} / 2 + run_uses[i]));
  if (num_runs < static_cast<uint64_t>(INT64_MAX)) ++num_runs;  // as many as a file may name
}

Result<HotSet> parse_hot_set(std::string_view text, std::string_view model_digest, int num_layers, int num_experts) {
  PM_ASSIGN_OR_RETURN(const Json j, parse_json(text, {.max_depth = 4}));
  const Json *format = j.find("format"), *version = j.find("version"), *digest = j.find("model_digest"), *runs = j.find("runs"), *rows = j.find("uses");
  if (format == nullptr || !format->is_string() || format->as_string() != kFormat) return error(StatusCode::kCorrupt, "this is no hot set: no \"format\": \"{}\"", kFormat);
  if (version == nullptr || !version->is_int() || version->as_int() != kVersion) {
    return error(StatusCode::kCorrupt, "a hot set of another version: expected {}; remove the file to begin anew", kVersion);
  }
  if (digest == nullptr || !digest->is_string() || digest->as_string() != model_digest) {
    return error(StatusCode::kInvalidArgument, "a hot set of another model: digest '{}', this model has '{}'", digest != nullptr && digest->is_string() ? digest->as_string().substr(0, 64) : "",
                 model_digest);
  }
  if (runs == nullptr || !runs->is_int() || runs->as_int() < 0) return error(StatusCode::kCorrupt, "\"runs\": expected a number from 0 on");
  if (rows == nullptr || !rows->is_array() || rows->as_array().size() != static_cast<size_t>(num_layers)) {
    return error(StatusCode::kCorrupt, "\"uses\": expected {} rows", num_layers);
  }
  HotSet set{.model_digest = std::string(model_digest), .num_layers = num_layers, .num_experts = num_experts, .num_runs = static_cast<uint64_t>(runs->as_int()), .uses = {}};
  for (const Json& row : rows->as_array()) {
    if (!row.is_array() || row.as_array().size() != static_cast<size_t>(num_experts)) return error(StatusCode::kCorrupt, "\"uses\": expected {} numbers in every row", num_experts);
    for (const Json& n : row.as_array()) {
      if (!n.is_int() || n.as_int() < 0 || n.as_int() > int64_t{UINT32_MAX}) return error(StatusCode::kCorrupt, "\"uses\": expected numbers from 0 to {}", UINT32_MAX);
      set.uses.push_back(static_cast<uint32_t>(n.as_int()));
    }
  }
  return set;
}

std::string hot_set_to_json(const HotSet& set) {
  std::string text = format("{{\n  \"format\": {},\n  \"version\": {},\n  \"model_digest\": {},\n  \"runs\": {},\n  \"uses\": [\n", json_quote(kFormat), kVersion,
                            json_quote(set.model_digest), set.num_runs);
  for (int layer = 0; layer < set.num_layers; ++layer) {
    const std::span<const uint32_t> row(set.uses.data() + static_cast<size_t>(layer) * static_cast<size_t>(set.num_experts), static_cast<size_t>(set.num_experts));
    text += format("    [{}]{}\n", fmt::join(row, ","), layer + 1 < set.num_layers ? "," : "");
  }
  return text + "  ]\n}\n";
}

Result<HotSet> read_hot_set(FileSystem& fs, const std::string& path, std::string_view model_digest, int num_layers, int num_experts) {
  const Result<std::string> text = read_text_file(fs, path, most_bytes(num_layers, num_experts));
  if (!text.ok() && text.status().code() == StatusCode::kNotFound) {
    return HotSet{.model_digest = std::string(model_digest), .num_layers = num_layers, .num_experts = num_experts, .num_runs = 0,
                  .uses = std::vector<uint32_t>(static_cast<size_t>(num_layers) * static_cast<size_t>(num_experts))};
  }
  if (!text.ok()) return text.status();
  Result<HotSet> set = parse_hot_set(*text, model_digest, num_layers, num_experts);
  if (!set.ok()) return set.status().with_context(path);
  return set;
}

Status write_hot_set(FileSystem& fs, const std::string& path, const HotSet& set) { return write_text_file(fs, path, hot_set_to_json(set)); }

}  // namespace pointsman
