// SPDX-License-Identifier: Apache-2.0
//
// MemoryFs: files in memory, whose bytes a test can change, whose reads it can count, delay or make fail.
//
// Thread-safe but for node changes, which need readers at rest.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/fs.h"

namespace pointsman::testing {

struct ReadCall {
  const std::string& path;
  std::span<std::byte> out;
  uint64_t offset;
  uint64_t call;  // number of this read since reset_reads(), from 0
};

class MemoryFs final : public FileSystem {
 public:
  struct Node {
    std::vector<std::byte> bytes;
    FileInfo info;
  };
  // Decides instead of the file: an error, a byte count (after filling that much), or nothing to read as usual.
  using Hook = std::function<std::optional<Result<size_t>>(const ReadCall&)>;

  // Creates or replaces; a replaced file is a new inode, open files keep the old one.
  void put(const std::string& path, std::vector<std::byte> bytes);
  void remove(const std::string& path) { nodes_.erase(path); }
  Node& node(const std::string& path) { return *nodes_.at(path); }
  bool contains(const std::string& path) const { return nodes_.count(path) != 0; }
  void set_hook(Hook hook) { hook_ = std::move(hook); }
  uint64_t num_reads() const { return num_reads_.load(); }
  void reset_reads() { num_reads_ = 0; }

  Result<std::unique_ptr<File>> open(const std::string& path) override;
  Result<FileInfo> stat(const std::string& path) override;
  Result<std::vector<std::string>> list(const std::string& directory) override;
  Result<std::unique_ptr<WritableFile>> create_atomic(const std::string& path) override;

 private:
  friend class MemoryFile;
  std::map<std::string, std::shared_ptr<Node>> nodes_;  // shared: an open file outlives its name
  Hook hook_;
  std::atomic<uint64_t> num_reads_{0};
  uint64_t next_inode_ = 1;
};

}  // namespace pointsman::testing
