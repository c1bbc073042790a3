// SPDX-License-Identifier: Apache-2.0
// model.safetensors.index.json. What is accepted names only files of its own folder, and only shards that it lists.
#include <algorithm>

#include "checkpoint/shard_index.h"
#include "fuzz_input.h"

namespace pm = pointsman;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto index = pm::parse_shard_index(pm::fuzz::text_of(data, size));
  if (!index.ok()) return 0;
  pm::fuzz::expect(index->shards.size() <= pm::kMaxShards);
  pm::fuzz::expect(std::is_sorted(index->shards.begin(), index->shards.end(), std::less_equal<>()) || index->shards.size() < 2);
  for (const std::string& shard : index->shards) pm::fuzz::expect(pm::is_plain_file_name(shard) && shard.find('/') == shard.npos);
  const std::string* previous = nullptr;
  for (const auto& [name, shard] : index->weight_map) {
    pm::fuzz::expect(shard < index->shards.size() && (previous == nullptr || *previous < name));
    previous = &name;
  }
  return 0;
}
