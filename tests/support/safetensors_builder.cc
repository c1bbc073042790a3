// SPDX-License-Identifier: Apache-2.0
#include "support/safetensors_builder.h"

#include "base/json.h"

namespace pointsman::testing {

std::string raw_safetensors(uint64_t claimed_header_bytes, std::string_view header, std::string_view data) {
  std::string file;
  for (int i = 0; i < 8; ++i) file += static_cast<char>(claimed_header_bytes >> (8 * i));
  file += header;
  file += data;
  return file;
}

std::string raw_safetensors(std::string_view header, std::string_view data) {
  return raw_safetensors(header.size(), header, data);
}

SafetensorsBuilder& SafetensorsBuilder::add(std::string_view name, std::string_view dtype, std::vector<int64_t> shape,
                                            uint64_t size_bytes, uint8_t seed) {
  Json dims = Json::array();
  for (const int64_t d : shape) dims.push_back(d);
  const uint64_t begin = data_.size();
  for (uint64_t i = 0; i < size_bytes; ++i) data_ += static_cast<char>((seed + i) % 251);
  Json entry = Json::object();
  entry.set("dtype", dtype);
  entry.set("shape", std::move(dims));
  entry.set("data_offsets", Json(Json::Array{Json(begin), Json(begin + size_bytes)}));
  if (!entries_.empty()) entries_ += ",";
  entries_ += json_quote(name) + ":" + entry.dump();
  names_.emplace_back(name);
  return *this;
}

SafetensorsBuilder& SafetensorsBuilder::metadata(std::string_view key, std::string_view value) {
  if (!metadata_.empty()) metadata_ += ",";
  metadata_ += json_quote(key) + ":" + json_quote(value);
  return *this;
}

std::string SafetensorsBuilder::header() const {
  std::string text = "{";
  if (!metadata_.empty()) text += "\"__metadata__\":{" + metadata_ + "}" + (entries_.empty() ? "" : ",");
  text += entries_ + "}";
  text.resize((text.size() + 7) / 8 * 8, ' ');
  return text;
}

std::string shard_index_json(const std::vector<std::pair<std::string, std::string>>& weight_map, int64_t total_size) {
  Json map = Json::object();
  for (const auto& [tensor, shard] : weight_map) map.as_object().emplace_back(tensor, Json(shard));
  Json metadata = Json::object();
  metadata.set("total_size", total_size);
  Json index = Json::object();
  index.set("metadata", std::move(metadata));
  index.set("weight_map", std::move(map));
  return index.dump(2);
}

}  // namespace pointsman::testing
