// SPDX-License-Identifier: Apache-2.0
//
// Safetensors files as bytes: well-formed ones, and ones that break a rule because their header is written by hand.
// Deliberately not SafetensorsWriter, which refuses to write the latter.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace pointsman::testing {

// Length prefix, header text as it is, then data: nothing is checked.
std::string raw_safetensors(std::string_view header, std::string_view data);
// The same with a prefix that says something else.
std::string raw_safetensors(uint64_t claimed_header_bytes, std::string_view header, std::string_view data);

// A well-formed file; sizes are taken as given, so that a wrong one makes a hostile file.
class SafetensorsBuilder {
 public:
  // Tensors lie one after the other; element i of the payload has the byte (seed + i) % 251.
  SafetensorsBuilder& add(std::string_view name, std::string_view dtype, std::vector<int64_t> shape, uint64_t size_bytes,
                          uint8_t seed = 0);
  SafetensorsBuilder& metadata(std::string_view key, std::string_view value);

  std::string header() const;
  std::string build() const { return raw_safetensors(header(), data_); }
  const std::string& data() const { return data_; }
  const std::vector<std::string>& names() const { return names_; }

 private:
  std::vector<std::string> names_;
  std::string entries_, metadata_, data_;
};

// {"metadata": {"total_size": N}, "weight_map": {...}}
std::string shard_index_json(const std::vector<std::pair<std::string, std::string>>& weight_map, int64_t total_size);

}  // namespace pointsman::testing
