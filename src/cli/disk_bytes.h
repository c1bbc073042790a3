// SPDX-License-Identifier: Apache-2.0
//
// What a disk has read, by the kernel's count: for benchmarks that must not take the page cache for a disk.
#pragma once

#include <cstdint>
#include <string>

namespace pointsman::cli {

class DiskCounter {
 public:
  // `device`: FileInfo::device of a file on it.
  explicit DiskCounter(uint64_t device);
  // Since the machine started, whoever asked; 0 where there is no such counter (a network file system).
  uint64_t bytes_read() const;

 private:
  std::string path_;
};

}  // namespace pointsman::cli
