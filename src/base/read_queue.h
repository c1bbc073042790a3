// SPDX-License-Identifier: Apache-2.0
//
// ReadQueue: reads that are under way while the caller does something else. One attempt each, as File::pread() is; who needs all
// bytes asks again for the rest (checkpoint/range_reader.h).
//
//   kPread  the read happens inside wait(), in order. Works with every File
//   kUring  the kernel reads meanwhile (io_uring), completions come in any order. Needs files with a descriptor
//
// Made by a FileSystem, so that tests can put faults between. A queue belongs to one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "pointsman/status.h"

namespace pointsman {

class File;

enum class ReadMethod { kPread, kUring };
const char* read_method_name(ReadMethod m);  // "pread", "uring"

class ReadQueue {
 public:
  struct Completion {
    uint32_t tag = 0;
    // Bytes, 0 at the end of the file; kUnavailable: interrupted, ask again; kIo.
    Result<size_t> bytes{size_t{0}};
  };

  // Waits for what is under way: nobody writes to a buffer any more.
  virtual ~ReadQueue() = default;
  // `file` and `out` live until wait() has returned `tag`. A failure comes with the completion.
  // REQUIRES: fewer reads under way than the queue's depth; `out` is not empty.
  virtual void submit(File& file, std::span<std::byte> out, uint64_t offset, uint32_t tag) = 0;
  // REQUIRES: something is under way.
  virtual Completion wait() = 0;
};

inline constexpr int kMaxReadQueueDepth = 64;

std::unique_ptr<ReadQueue> make_pread_queue(int depth);
// kUnavailable: the kernel has no io_uring, or a seccomp profile or a limit refuses it.
Result<std::unique_ptr<ReadQueue>> make_uring_queue(int depth);

}  // namespace pointsman
