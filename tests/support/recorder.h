// SPDX-License-Identifier: Apache-2.0
//
// A TraceSink that keeps everything, and a helper that loads an engine for tests.
#pragma once

#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "pointsman/session.h"

namespace pointsman::testing {

class Recorder : public TraceSink {
 public:
  bool wants(std::string_view) override { return true; }
  Status rows_f32(std::string_view name, int64_t first_row, int64_t rows, int64_t cols, const float* data) override {
    auto& v = f32[std::string(name)];
    v.resize(static_cast<size_t>((first_row + rows) * cols));
    std::memcpy(v.data() + first_row * cols, data, static_cast<size_t>(rows * cols) * sizeof(float));
    return ok_status();
  }
  Status rows_i32(std::string_view name, int64_t first_row, int64_t rows, int64_t cols, const int32_t* data) override {
    auto& v = i32[std::string(name)];
    v.resize(static_cast<size_t>((first_row + rows) * cols));
    std::memcpy(v.data() + first_row * cols, data, static_cast<size_t>(rows * cols) * sizeof(int32_t));
    return ok_status();
  }
  std::map<std::string, std::vector<float>> f32;
  std::map<std::string, std::vector<int32_t>> i32;
};

}  // namespace pointsman::testing
