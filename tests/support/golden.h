// SPDX-License-Identifier: Apache-2.0
//
// Reads expected.safetensors of a golden folder. Deliberately not the product's reader.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace pointsman::testing {

struct GoldenTensor {
  std::vector<int64_t> shape;
  std::vector<float> f32;     // when F32
  std::vector<int32_t> i32;   // when I32
  int64_t rows() const { return shape.size() > 1 ? shape[0] : 1; }
  int64_t cols() const { return shape.empty() ? 1 : shape.back(); }
};
using GoldenFile = std::map<std::string, GoldenTensor, std::less<>>;

// Aborts the test program on a malformed file.
GoldenFile read_golden(const std::string& path);

// Folders under tests/golden whose name starts with `prefix` and that hold expected.safetensors, sorted.
std::vector<std::string> golden_folders(const std::string& prefix);

// `relative` to the source tree.
std::string source_path(const std::string& relative);

}  // namespace pointsman::testing
