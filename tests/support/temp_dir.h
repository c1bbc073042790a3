// SPDX-License-Identifier: Apache-2.0
//
// A folder of its own for one test, removed with everything in it.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "base/check.h"

namespace pointsman::testing {

class TempDir {
 public:
  // kMemory: a file system without a disk where there is one with room. For tests that write much and flush it: what they ask does not depend on
  // how long that takes.
  enum class Where { kDisk, kMemory };
  explicit TempDir(Where where = Where::kDisk) {
    std::filesystem::path root = std::filesystem::temp_directory_path();
    std::error_code failed;
    const char* const memory = "/dev/shm";
    if (where == Where::kMemory && ::access(memory, W_OK) == 0 && std::filesystem::space(memory, failed).available >= (256u << 20) && !failed) root = memory;
    std::string pattern = (root / "pointsman-test-XXXXXX").string();
    PM_CHECK(::mkdtemp(pattern.data()) != nullptr, "cannot make %s", pattern.c_str());
    path_ = pattern;
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  const std::string& path() const { return path_; }
  std::string file(std::string_view name) const { return path_ + "/" + std::string(name); }
  void write(std::string_view name, std::string_view bytes) const {
    std::ofstream out(file(name), std::ios::binary | std::ios::trunc);
    out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    out.close();
    PM_CHECK(out.good(), "cannot write %s", file(name).c_str());
  }

 private:
  std::string path_;
};

}  // namespace pointsman::testing
