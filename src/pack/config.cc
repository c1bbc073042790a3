// SPDX-License-Identifier: Apache-2.0
#include "pack/config.h"

#include <algorithm>

#include "base/log.h"
#include "checkpoint/quantization.h"

namespace pointsman {
namespace {

constexpr uint64_t kMaxConfigBytes = 16 << 20;
constexpr size_t kMaxFormats = 1 << 20;

Result<Json> read_config(FileSystem& fs, const std::string& model) {
  const std::string path = join_path(model, "config.json");
  PM_ASSIGN_OR_RETURN(const std::string text, read_text_file(fs, path, kMaxConfigBytes));
  Result<Json> json = parse_json(text);
  if (!json.ok()) return json.status().with_context(path);
  if (!json->is_object()) return error(StatusCode::kCorrupt, "{}: {}, expected an object", path, json->type_name());
  return json;
}

// At the top level, else in text_config; null and absent are the same.
const Json* find_section(const Json& config) {
  const Json* q = config.find("quantization_config");
  if (q != nullptr && !q->is_null()) return q;
  const Json* nested = config.find("text_config");
  q = nested != nullptr ? nested->find("quantization_config") : nullptr;
  return q != nullptr && !q->is_null() ? q : nullptr;
}

bool is_packed_section(const Json* q) {
  const Json* method = q != nullptr ? q->find("quant_method") : nullptr;
  return method != nullptr && method->is_string() && method->as_string() == kPackedMethod;
}

void erase_member(Json& object, std::string_view key) {
  std::erase_if(object.as_object(), [&](const Json::Member& m) { return m.first == key; });
}

}  // namespace

std::string PackedFormats::of(std::string_view unit) const {
  auto it = formats.find(unit);
  if (it == formats.end()) it = formats.find(unit.substr(unit.rfind('.') + 1));
  return it == formats.end() ? "keep" : it->second;
}

Result<PackedFormats> parse_packed_formats(const Json& config) {
  PackedFormats out;
  const Json* q = find_section(config);
  if (!is_packed_section(q)) return out;
  const auto bad = [](std::string_view key, const Json& value, std::string_view expected) {
    return error(StatusCode::kCorrupt, "config.json: quantization_config.{}: {}, expected {}", key, value.type_name(), expected);
  };
  if (const Json* source = q->find("source"); source != nullptr) {
    if (!source->is_null() && !source->is_object()) return bad("source", *source, "an object or null");
    out.source = *source;
  }
  if (const Json* tied = q->find("tied_head"); tied != nullptr) {
    if (!tied->is_bool()) return bad("tied_head", *tied, "true or false");
    out.tied_head = tied->as_bool();
  }
  if (const Json* formats = q->find("formats"); formats != nullptr) {
    if (!formats->is_object() || formats->as_object().size() > kMaxFormats) return bad("formats", *formats, "an object");
    for (const auto& [unit, value] : formats->as_object()) {
      if (!value.is_string()) return bad("formats." + unit.substr(0, 64), value, "a string");
      out.formats.emplace(unit, value.as_string());
    }
  }
  return out;
}

Result<PackedFormats> read_packed_formats(FileSystem& fs, const std::string& model) {
  PM_ASSIGN_OR_RETURN(const Json config, read_config(fs, model));
  return parse_packed_formats(config);
}

Result<std::string> make_packed_config(FileSystem& fs, const std::string& model, const PackOptions& options,
                                       const std::vector<std::pair<std::string, std::string>>& formats, bool tied_head) {
  PM_ASSIGN_OR_RETURN(Json config, read_config(fs, model));
  PM_ASSIGN_OR_RETURN(const PackedFormats before, parse_packed_formats(config));
  const Json* old = find_section(config);
  const bool was_packed = is_packed_section(old);
  // What the codes that are kept came with.
  const Json source = was_packed ? before.source : old != nullptr ? *old : Json();
  erase_member(config, "quantization_config");
  for (auto& [key, value] : config.as_object()) {
    if (key == "text_config" && value.is_object()) erase_member(value, "quantization_config");
  }
  if (options.unpack) {
    if (!source.is_null()) config.set("quantization_config", source);
    return config.dump(2) + "\n";
  }
  Json q = Json::object();
  q.set("quant_method", kPackedMethod);
  q.set("version", kPackedVersion);
  q.set("layout", options.panels ? "panel32" : "rows");
  q.set("scale_rule", options.scale_rule == ScaleRule::kUp ? "up" : "down");
  q.set("format", pack_format_name(options.format));
  Json by_unit = Json::object();
  for (const auto& [unit, format] : formats) by_unit.set(unit, format);
  q.set("formats", std::move(by_unit));
  if (tied_head) q.set("tied_head", true);
  if (const Json* block = source.find("weight_block_size"); block != nullptr && !block->is_null()) q.set("weight_block_size", *block);
  if (!source.is_null()) q.set("source", source);
  config.set("quantization_config", std::move(q));
  return config.dump(2) + "\n";
}

}  // namespace pointsman
