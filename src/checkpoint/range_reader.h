// SPDX-License-Identifier: Apache-2.0
//
// RangeReader: byte ranges of a checkpoint, cut into chunks of which several are under way at once, handed out in order. So what
// is done with one chunk (hashing, copying) overlaps the disk's work on the next ones.
//
// A chunk lands where it belongs (ByteRange::target) or, where it cannot, in a buffer of the reader: without a target; and with
// O_DIRECT, which moves whole blocks only, when file offset and address do not agree or the last block would write too far.
//
// Errors are those of Checkpoint::read(): short and interrupted reads are repeated, the end of the file is truncation, and the files
// must be those that were opened. One object per thread. read() does not allocate unless it fails.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/fs.h"
#include "base/function_ref.h"
#include "checkpoint/checkpoint.h"
#include "pointsman/status.h"

namespace pointsman {

struct ByteRange {
  uint32_t file_idx = 0;
  uint64_t offset = 0, bytes = 0;
  std::byte* target = nullptr;   // null: chunks are handed out in the buffer
  uint64_t target_room = 0;      // bytes from target that reading may overwrite, >= bytes
};

// Large enough that the disk is as fast as it gets (docs/design/performance.md: 1 MiB), small enough for the second-level cache
// or close to it.
inline constexpr size_t kReadChunkBytes = 1 << 20;

struct RangeReaderOptions {
  ReadMethod method = ReadMethod::kPread;
  bool direct = false;  // O_DIRECT
  int depth = 2;        // chunks under way
  size_t chunk_bytes = kReadChunkBytes;  // a multiple of kDirectAlignment
  uint64_t buffer_bytes() const { return static_cast<uint64_t>(depth) * chunk_bytes; }
};

class RangeReader {
 public:
  struct Chunk {
    size_t range_idx = 0;
    uint64_t at = 0;  // of the chunk in its range
    std::span<std::byte> bytes;
    bool is_in_place = false;  // bytes lie at the range's target
  };
  static constexpr size_t kMaxRanges = 16;

  // `buffer`: options.buffer_bytes(), aligned to kDirectAlignment; may be empty when every chunk can land in place. Outlives the reader,
  // like the checkpoint. kUnavailable: the method is not to be had here.
  static Result<std::unique_ptr<RangeReader>> make(const Checkpoint& checkpoint, RangeReaderOptions options, std::span<std::byte> buffer);

  // Hands every chunk to `consume`, in the order of the ranges. A chunk's buffer is used again when consume returns; its error ends
  // the reading. However read() ends, nothing writes to targets and buffer any more.
  // REQUIRES: at most kMaxRanges ranges, none empty.
  Status read(std::span<const ByteRange> ranges, FunctionRef<Status(const Chunk&)> consume);

  const RangeReaderOptions& options() const { return options_; }
  // From another thread, when a read does not come back and the owner of the checkpoint goes away: true when read() is waiting for
  // the disk right now. It then touches nothing but this object and its files when it comes back, and says kUnavailable; the object
  // must live on until then. False: read() is at work, or over.
  bool try_give_up();
  bool is_given_up() const { return state_.load(std::memory_order_acquire) == State::kGivenUp; }

 private:
  struct Piece {  // a chunk on its way
    Chunk chunk;
    uint64_t file_offset = 0;  // of the first byte that is read
    std::byte* to = nullptr;
    size_t bytes = 0;      // to read
    size_t skip = 0;       // of them in front of the chunk
    size_t got = 0;
    int stalls = 0;        // attempts that brought no whole block
    bool is_done = false;
  };
  RangeReader(const Checkpoint& checkpoint, RangeReaderOptions options, std::span<std::byte> buffer);
  Status open_files(std::span<const ByteRange> ranges);
  void submit(uint32_t tag);
  ReadQueue::Completion wait();
  // Takes one completion; submits again what came short.
  Status take_completion(std::span<const ByteRange> ranges);
  Status finish(std::span<const ByteRange> ranges, Status status);

  const Checkpoint& checkpoint_;
  const RangeReaderOptions options_;
  const std::span<std::byte> buffer_;
  std::unique_ptr<ReadQueue> queue_;
  std::vector<Piece> pieces_;  // [depth] a ring
  std::shared_ptr<File> files_[kMaxRanges];  // by range
  int under_way_ = 0;
  enum class State { kWorking, kWaiting, kGivenUp };
  std::atomic<State> state_{State::kWorking};
};

}  // namespace pointsman
