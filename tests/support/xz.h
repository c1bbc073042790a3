// SPDX-License-Identifier: Apache-2.0
//
// xz files and the records in them (tests/golden/MANIFEST.md): little-endian u32 counts in front of bytes and of ids.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace pointsman::testing {

// The content of an xz file. Aborts the test program when it is absent or damaged.
std::string read_xz(const std::string& path);

// Walks through a record file.
class RecordReader {
 public:
  explicit RecordReader(std::string data) : data_(std::move(data)) {}
  bool done() const { return at_ >= data_.size(); }
  std::string bytes();         // u32 n, n bytes
  std::vector<int32_t> ids();  // u32 n, n u32

 private:
  uint32_t u32();
  std::string data_;
  size_t at_ = 0;
};

}  // namespace pointsman::testing
