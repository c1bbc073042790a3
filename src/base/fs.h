// SPDX-License-Identifier: Apache-2.0
//
// The one door to files. Everything that reads or writes goes through a FileSystem, so that a test can replace it and make
// any call fail, come up short or be interrupted (tests/support/faulty_fs.h).
//
// Reads are positional and never mapped: a truncated mapped file reads as zeros or kills the process, a short pread is a
// named error.
//
// Thread-safe: one File may be read from many threads at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/read_queue.h"
#include "pointsman/status.h"

namespace pointsman {

struct FileInfo {
  uint64_t size_bytes = 0;
  int64_t mtime_ns = 0;
  uint64_t inode = 0;
  uint64_t device = 0;
  bool is_regular = false;
  bool is_symlink = false;  // only FileSystem::stat reports it; the other fields describe the target
  friend bool operator==(const FileInfo&, const FileInfo&) = default;
};

class File {
 public:
  virtual ~File() = default;
  // One attempt, like pread(2): may return fewer bytes than asked for; 0 is end of file. An interrupted call is kUnavailable
  // and may be repeated. Use read_exact() unless you test the door itself.
  virtual Result<size_t> pread(std::span<std::byte> out, uint64_t offset) = 0;
  virtual Result<FileInfo> stat() = 0;
  // Tells the kernel that this range will not be read again soon, so that streamed weights do not push out other pages.
  virtual void forget(uint64_t offset, uint64_t bytes) = 0;
  // The system's descriptor, for a ReadQueue; -1: there is none.
  virtual int descriptor() const { return -1; }
  // The same file once more, for reads that pass by the page cache (O_DIRECT): offset, length and address must then be multiples of
  // kDirectAlignment; the end of the file may come short. kUnsupported: the file system, or this kind of file, has no such reads.
  virtual Result<std::unique_ptr<File>> open_direct();
  virtual const std::string& path() const = 0;
};

// Enough for every block size that disks have.
inline constexpr size_t kDirectAlignment = 4096;

// A file being written at chosen positions.
class WritableFile {
 public:
  virtual ~WritableFile() = default;
  virtual Status pwrite(std::span<const std::byte> data, uint64_t offset) = 0;
  // Flushes to the device, then gives the file its final name. Without commit() the temporary file is removed.
  virtual Status commit() = 0;
};

class FileSystem {
 public:
  virtual ~FileSystem() = default;
  // The operating system's files. Stateless.
  static FileSystem& real();

  virtual Result<std::unique_ptr<File>> open(const std::string& path) = 0;
  virtual Result<FileInfo> stat(const std::string& path) = 0;
  // Plain file names (no "." and ".."), sorted.
  virtual Result<std::vector<std::string>> list(const std::string& directory) = 0;
  // Writes to a temporary name beside `path`; commit() does fsync + rename + fsync of the directory.
  virtual Result<std::unique_ptr<WritableFile>> create_atomic(const std::string& path) = 0;
  // For files of this file system. kUnavailable: not by this method, here. 1 <= depth <= kMaxReadQueueDepth.
  virtual Result<std::unique_ptr<ReadQueue>> make_read_queue(ReadMethod method, int depth);
};

// Fills `out` or fails: repeats short and interrupted reads; end of file before the last byte is kCorrupt and says how many
// bytes are missing ("truncated"), an operating-system failure is kIo.
Status read_exact(File& file, std::span<std::byte> out, uint64_t offset);

// The whole file as text. Fails with kUnsupported when it is larger than `max_bytes`, before reading.
Result<std::string> read_text_file(FileSystem& fs, const std::string& path, uint64_t max_bytes);

// Replaces `path` by `text`, all or nothing.
Status write_text_file(FileSystem& fs, const std::string& path, std::string_view text);

// `directory` + "/" + `name`.
std::string join_path(const std::string& directory, const std::string& name);

}  // namespace pointsman
