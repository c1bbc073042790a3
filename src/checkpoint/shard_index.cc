// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/shard_index.h"

#include <algorithm>
#include <map>

#include "base/json.h"
#include "base/log.h"
#include "checkpoint/safetensors.h"

namespace pointsman {

bool is_plain_file_name(std::string_view name) {
  return !name.empty() && name.size() <= 255 && name != "." && name != ".." &&
         std::none_of(name.begin(), name.end(),
                      [](char c) { return c == '/' || c == '\\' || static_cast<unsigned char>(c) < 0x20 || c == 0x7f; });
}

Result<ShardIndex> parse_shard_index(std::string_view text) {
  PM_ASSIGN_OR_RETURN(Json json, parse_json(text, {.max_depth = 8}));
  const Json* map = json.find("weight_map");
  if (map == nullptr) return error(StatusCode::kCorrupt, "key \"weight_map\" is missing");
  if (!map->is_object())
    return error(StatusCode::kCorrupt, "\"weight_map\" is of type {}, expected an object", map->type_name());
  if (map->as_object().empty()) return error(StatusCode::kCorrupt, "\"weight_map\" is empty");

  ShardIndex index;
  std::map<std::string_view, uint32_t> shards;  // sorted, so that positions do not depend on the order in the file
  for (const auto& [tensor, file] : map->as_object()) {
    if (!is_plain_tensor_name(tensor)) {
      return error(StatusCode::kCorrupt, "\"weight_map\": tensor name {}: expected 1 to {} bytes without control characters",
                   json_quote(tensor.substr(0, 64)), kMaxTensorNameBytes);
    }
    if (!file.is_string())
      return error(StatusCode::kCorrupt, "\"weight_map\": the shard of {} is of type {}, expected a string", tensor,
                   file.type_name());
    if (!is_plain_file_name(file.as_string()) || !file.as_string().ends_with(".safetensors")) {
      return error(StatusCode::kCorrupt,
                   "\"weight_map\": the shard of {} is {}, expected the plain name of a .safetensors file in the same folder",
                   tensor, json_quote(file.as_string().substr(0, 128)));
    }
    shards.emplace(file.as_string(), 0);
    if (shards.size() > kMaxShards)
      return error(StatusCode::kUnsupported, "\"weight_map\" names more than {} shards", kMaxShards);
  }
  for (auto& [name, position] : shards) {
    position = static_cast<uint32_t>(index.shards.size());
    index.shards.emplace_back(name);
  }
  index.weight_map.reserve(map->as_object().size());
  for (const auto& [tensor, file] : map->as_object())
    index.weight_map.emplace_back(tensor, shards.find(file.as_string())->second);
  std::sort(index.weight_map.begin(), index.weight_map.end());

  const Json* metadata = json.find("metadata");
  const Json* total = metadata == nullptr ? nullptr : metadata->find("total_size");
  // Some writers store it as a float.
  if (total != nullptr && total->is_number() && total->as_double() >= 0 && total->as_double() < 0x1p63) {
    index.total_size = total->is_int() ? static_cast<uint64_t>(total->as_int()) : static_cast<uint64_t>(total->as_double());
  }
  return index;
}

}  // namespace pointsman
