// SPDX-License-Identifier: Apache-2.0
#include "support/golden.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "base/check.h"
#include "base/json.h"

namespace pointsman::testing {

std::string source_path(const std::string& relative) { return std::string(PM_SOURCE_DIR) + "/" + relative; }

GoldenFile read_golden(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  PM_CHECK(in.good(), "cannot open %s", path.c_str());
  const std::string bytes{std::istreambuf_iterator<char>(in), {}};
  uint64_t header_bytes = 0;
  PM_CHECK(bytes.size() >= 8);
  std::memcpy(&header_bytes, bytes.data(), 8);
  Result<Json> header = parse_json(std::string_view(bytes).substr(8, header_bytes));
  PM_CHECK(header.ok(), "%s: %s", path.c_str(), header.status().message().c_str());
  GoldenFile file;
  for (const auto& [name, entry] : header->as_object()) {
    if (name == "__metadata__") continue;
    GoldenTensor t;
    size_t n = 1;
    for (const Json& d : entry.find("shape")->as_array()) {
      t.shape.push_back(d.as_int());
      n *= static_cast<size_t>(d.as_int());
    }
    const char* data = bytes.data() + 8 + header_bytes + entry.find("data_offsets")->as_array()[0].as_int();
    const std::string& dtype = entry.find("dtype")->as_string();
    if (dtype == "F32") {
      t.f32.resize(n);
      std::memcpy(t.f32.data(), data, n * 4);
    } else {
      PM_CHECK(dtype == "I32", "%s: %s", name.c_str(), dtype.c_str());
      t.i32.resize(n);
      std::memcpy(t.i32.data(), data, n * 4);
    }
    file.emplace(name, std::move(t));
  }
  return file;
}

std::vector<std::string> golden_folders(const std::string& prefix) {
  std::vector<std::string> folders;
  for (const auto& entry : std::filesystem::directory_iterator(source_path("tests/golden"))) {
    const std::string name = entry.path().filename();
    if (name.starts_with(prefix) && std::filesystem::exists(entry.path() / "expected.safetensors")) folders.push_back(entry.path());
  }
  std::sort(folders.begin(), folders.end());
  return folders;
}

}  // namespace pointsman::testing
