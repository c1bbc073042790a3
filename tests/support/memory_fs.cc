// SPDX-License-Identifier: Apache-2.0
#include "support/memory_fs.h"

#include <algorithm>
#include <cstring>

#include "base/log.h"

namespace pointsman::testing {

class MemoryFile final : public File {
 public:
  MemoryFile(MemoryFs& fs, std::shared_ptr<MemoryFs::Node> node, std::string path)
      : fs_(fs), node_(std::move(node)), path_(std::move(path)) {}
  Result<size_t> pread(std::span<std::byte> out, uint64_t offset) override {
    const uint64_t call = fs_.num_reads_.fetch_add(1);
    if (fs_.hook_) {
      if (auto decided = fs_.hook_({path_, out, offset, call})) return *decided;
    }
    if (offset >= node_->bytes.size()) return size_t{0};
    const size_t n = std::min(out.size(), static_cast<size_t>(node_->bytes.size() - offset));
    std::memcpy(out.data(), node_->bytes.data() + offset, n);
    return n;
  }
  Result<FileInfo> stat() override {
    FileInfo info = node_->info;
    info.size_bytes = node_->bytes.size();
    return info;
  }
  void forget(uint64_t, uint64_t) override {}
  const std::string& path() const override { return path_; }

 private:
  MemoryFs& fs_;
  std::shared_ptr<MemoryFs::Node> node_;
  std::string path_;
};

namespace {

class MemoryWritableFile final : public WritableFile {
 public:
  MemoryWritableFile(MemoryFs& fs, std::string path) : fs_(fs), path_(std::move(path)) {}
  Status pwrite(std::span<const std::byte> data, uint64_t offset) override {
    bytes_.resize(std::max<size_t>(bytes_.size(), offset + data.size()));
    std::copy(data.begin(), data.end(), bytes_.begin() + static_cast<std::ptrdiff_t>(offset));
    return ok_status();
  }
  Status commit() override {
    fs_.put(path_, std::move(bytes_));
    return ok_status();
  }

 private:
  MemoryFs& fs_;
  std::string path_;
  std::vector<std::byte> bytes_;
};

}  // namespace

void MemoryFs::put(const std::string& path, std::vector<std::byte> bytes) {
  auto node = std::make_shared<Node>();
  node->info = {
      .size_bytes = bytes.size(), .mtime_ns = static_cast<int64_t>(next_inode_), .inode = next_inode_, .is_regular = true};
  ++next_inode_;
  node->bytes = std::move(bytes);
  nodes_[path] = std::move(node);
}

Result<std::unique_ptr<File>> MemoryFs::open(const std::string& path) {
  const auto it = nodes_.find(path);
  if (it == nodes_.end()) return error(StatusCode::kNotFound, "{}: open: no such file", path);
  return std::unique_ptr<File>(new MemoryFile(*this, it->second, path));
}

Result<FileInfo> MemoryFs::stat(const std::string& path) {
  const auto it = nodes_.find(path);
  if (it == nodes_.end()) return error(StatusCode::kNotFound, "{}: stat: no such file", path);
  FileInfo info = it->second->info;
  info.size_bytes = it->second->bytes.size();
  return info;
}

Result<std::vector<std::string>> MemoryFs::list(const std::string& directory) {
  std::vector<std::string> names;
  const std::string prefix = join_path(directory, "");
  for (const auto& [path, node] : nodes_) {
    if (path.starts_with(prefix) && path.find('/', prefix.size()) == std::string::npos)
      names.push_back(path.substr(prefix.size()));
  }
  if (names.empty()) return error(StatusCode::kNotFound, "{}: open directory: no such directory", directory);
  return names;
}

Result<std::unique_ptr<WritableFile>> MemoryFs::create_atomic(const std::string& path) {
  return std::unique_ptr<WritableFile>(new MemoryWritableFile(*this, path));
}

}  // namespace pointsman::testing
