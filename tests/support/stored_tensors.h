// SPDX-License-Identifier: Apache-2.0
//
// A safetensors file taken apart and put together again, for tests that rename or change tensors of a committed checkpoint.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "base/json.h"
#include "support/safetensors_builder.h"

namespace pointsman::testing {

struct Stored {
  std::string name, dtype;
  std::vector<int64_t> shape;
  std::string bytes;
};

inline std::string text_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline std::vector<Stored> tensors_of(const std::string& path) {
  const std::string file = text_of(path);
  uint64_t length = 0;
  std::memcpy(&length, file.data(), 8);
  const auto header = parse_json(file.substr(8, length));
  EXPECT_TRUE(header.ok());
  std::vector<Stored> all;
  for (const auto& [name, value] : header->as_object()) {
    if (name == "__metadata__") continue;
    Stored t{.name = name, .dtype = value.find("dtype")->as_string()};
    for (const Json& d : value.find("shape")->as_array()) t.shape.push_back(d.as_int());
    const auto& range = value.find("data_offsets")->as_array();
    t.bytes = file.substr(8 + length + static_cast<uint64_t>(range[0].as_int()), static_cast<uint64_t>(range[1].as_int() - range[0].as_int()));
    all.push_back(std::move(t));
  }
  return all;
}

inline std::string safetensors_of(const std::vector<Stored>& tensors) {
  Json header = Json::object();
  std::string data;
  for (const Stored& t : tensors) {
    Json shape = Json::array();
    for (const int64_t d : t.shape) shape.push_back(d);
    Json entry = Json::object(), range = Json::array();
    range.push_back(static_cast<int64_t>(data.size()));
    data += t.bytes;
    range.push_back(static_cast<int64_t>(data.size()));
    entry.set("dtype", t.dtype), entry.set("shape", shape), entry.set("data_offsets", range);
    header.set(t.name, entry);
  }
  return raw_safetensors(header.dump(), data);
}

}  // namespace pointsman::testing
