// SPDX-License-Identifier: Apache-2.0
//
// A Hugging Face checkpoint folder, opened and checked, nothing of its payload read.
//
// open() reads only headers: model.safetensors, or model.safetensors.index.json and its shards. Every rule of the format is
// enforced here (docs/formats/safetensors.md), so that everything behind this door may trust ranges: a tensor's bytes lie
// inside its file, spans do not overlap and leave no holes, names are unique over all shards.
//
// Which files: when the folder has both a model.safetensors and an index that does not mention it, the single file is used and
// the index ignored with a warning; stale indices occur, and transformers chooses the same way. Every other *.safetensors in
// the folder is listed in a warning. A symbolic link to a regular file is a regular file (the Hugging Face cache consists of
// them). Pickled weights (.bin, .pt) are never read.
//
// gpt-oss under the names of its first release (block.N...) is shown under those of transformers, and its qkv as three tensors: checkpoint/gpt_oss_names.h.
//
// The first CheckpointOptions::max_open_files files stay open for the life of the object; the rest are opened for each read,
// which costs about 3 us, and leaves the process limit of descriptors to others. Either way a read ends with a check that the
// file is the one that was opened: size and mtime of the descriptor every time, the name's inode every path_check_interval_ms.
// A file that was truncated or replaced while the engine runs is therefore a named error, not other weights.
//
// Thread-safe after open().
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/fs.h"
#include "checkpoint/safetensors.h"
#include "pointsman/status.h"
#include "tensor/dtype.h"

namespace pointsman {

struct TensorEntry {
  std::string_view name;  // lives in the Checkpoint
  DType dtype;
  uint8_t num_dims = 0;
  uint32_t file_idx = 0;  // into Checkpoint::files()
  uint64_t offset = 0;    // of the first byte, from the start of the file
  uint64_t size_bytes = 0;
  int64_t shape[4] = {1, 1, 1, 1};  // outermost first; more than 4 dimensions is kUnsupported

  // Never overflows: the reader has checked the product.
  int64_t num_elements() const { return shape[0] * shape[1] * shape[2] * shape[3]; }
};
// "[128, 64]"
std::string shape_string(const TensorEntry& t);

struct CheckpointFile {
  std::string name;  // within the folder
  FileInfo info;     // as it was at open()
};

struct CheckpointOptions {
  // Large checkpoints have 10^5 tensors: the table costs about 100 bytes each, and names are stored once.
  uint64_t max_header_bytes = kMaxReadHeaderBytes;  // per file
  uint64_t max_tensors = 4'000'000;
  size_t max_open_files = 512;
  // 0: at every read.
  int64_t path_check_interval_ms = 1000;
};

class Checkpoint {
 public:
  // kNotFound: the folder, a shard (all missing ones are listed). kCorrupt: a file breaks a rule of the format, is empty,
  // truncated or a Git LFS pointer. kUnsupported: only pickled weights, an unknown dtype, something that is no regular file.
  // kIo.
  static Result<std::unique_ptr<Checkpoint>> open(FileSystem& fs, const std::string& directory, CheckpointOptions options = {});
  ~Checkpoint();

  const std::string& directory() const;
  FileSystem& fs() const;
  std::span<const TensorEntry> tensors() const;  // sorted by name
  const TensorEntry* find(std::string_view name) const;
  std::span<const CheckpointFile> files() const;
  // Heap held by the tables, for the ledger.
  uint64_t table_bytes() const;

  // Fills `out` from `offset` of file `file_idx`. Errors name the file and the offset; kCorrupt when the file was truncated or
  // replaced since open(). On failure `out` holds anything.
  // REQUIRES: file_idx < files().size().
  Status read(uint32_t file_idx, uint64_t offset, std::span<std::byte> out) const;
  // The same in steps, for readers that have several reads under way: an open file, and the check that must follow its reads before
  // their bytes are believed. Shared, because a read that never returns keeps its file for good. `direct`: for O_DIRECT
  // (File::open_direct); kUnsupported where that is not to be had.
  // REQUIRES: file_idx < files().size().
  Result<std::shared_ptr<File>> open_file(uint32_t file_idx, bool direct) const;
  Status check_unchanged(uint32_t file_idx, File& file) const;
  // Hints that the range will not be read again soon.
  void forget(uint32_t file_idx, uint64_t offset, uint64_t bytes) const;

 private:
  struct Impl;
  explicit Checkpoint(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace pointsman
