// SPDX-License-Identifier: Apache-2.0
//
// model.safetensors.index.json: which shard holds which tensor. Shard names are hostile text until they are known to be plain
// names of files in the same folder.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "pointsman/status.h"

namespace pointsman {

inline constexpr const char* kShardIndexName = "model.safetensors.index.json";
inline constexpr size_t kMaxShards = 10'000;

struct ShardIndex {
  std::vector<std::string> shards;                           // sorted, unique
  std::vector<std::pair<std::string, uint32_t>> weight_map;  // tensor name -> position in `shards`; sorted by name, unique
  std::optional<uint64_t> total_size;                        // metadata.total_size; writers disagree on what it counts
};

// Errors do not name the file.
Result<ShardIndex> parse_shard_index(std::string_view text);

// A name that stays in its folder: no separator, no "." or "..", no control character, at most 255 bytes.
bool is_plain_file_name(std::string_view name);

}  // namespace pointsman
