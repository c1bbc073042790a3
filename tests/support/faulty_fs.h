// SPDX-License-Identifier: Apache-2.0
//
// FaultyFs: any FileSystem, with faults on command. Counts every call, so that a test can walk through all of them:
//
//   for (uint64_t n = 0;; ++n) {
//     FaultyFs fs(FileSystem::real());
//     fs.fail(FaultyFs::Op::kRead, n, FaultyFs::Fault::kIoError);
//     ... the outcome is success or a named error ...
//     if (fs.calls(FaultyFs::Op::kRead) <= n) break;  // the fault was never met: every call has been tried
//   }
//
// Thread-safe once the faults are set.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/fs.h"

namespace pointsman::testing {

class FaultyFs final : public FileSystem {
 public:
  enum class Op { kOpen, kStat, kList, kRead, kFileStat, kCreate, kWrite, kCommit };
  enum class Fault {
    kIoError,      // EIO
    kInterrupted,  // EINTR
    kShortOne,     // one byte; reads only, like the following
    kShortHalf,
    kEndOfFile,  // 0 bytes
    kNoSpace,    // ENOSPC
  };

  explicit FaultyFs(FileSystem& base) : base_(base) {}

  // The n-th call (from 0) of `op` meets `fault`, and so do the `times` - 1 calls after it. One per op; replaces the previous
  // one.
  void fail(Op op, uint64_t n, Fault fault, uint64_t times = 1);
  // Reads of this byte come back with these bits inverted.
  void flip(const std::string& path, uint64_t offset, uint8_t mask) { flips_[{path, offset}] = mask; }
  // Reads and stats of the file behave as if it ended here; files that are open as well.
  void truncate(const std::string& path, uint64_t size_bytes) { sizes_[path] = size_bytes; }
  void delay_reads(std::chrono::microseconds delay) { delay_ = delay; }
  uint64_t calls(Op op) const { return calls_[static_cast<size_t>(op)].load(); }

  Result<std::unique_ptr<File>> open(const std::string& path) override;
  Result<FileInfo> stat(const std::string& path) override;
  Result<std::vector<std::string>> list(const std::string& directory) override;
  Result<std::unique_ptr<WritableFile>> create_atomic(const std::string& path) override;
  // Of the files underneath, with the same faults: a submission counts as a read.
  Result<std::unique_ptr<ReadQueue>> make_read_queue(ReadMethod method, int depth) override;

 private:
  friend class FaultyFile;
  friend class FaultyQueue;
  friend class FaultyWritableFile;
  struct Plan {
    uint64_t first = 0, times = 0;
    Fault fault = Fault::kIoError;
  };
  static constexpr size_t kNumOps = 8;

  // Counts the call; the fault that it meets, if any.
  std::optional<Fault> meet(Op op);
  static Status status_of(Fault fault, const std::string& path);
  void adjust(const std::string& path, FileInfo& info) const;

  FileSystem& base_;
  std::array<Plan, kNumOps> plans_{};
  std::array<std::atomic<uint64_t>, kNumOps> calls_{};
  std::map<std::pair<std::string, uint64_t>, uint8_t> flips_;
  std::map<std::string, uint64_t> sizes_;
  std::chrono::microseconds delay_{0};
};

}  // namespace pointsman::testing
