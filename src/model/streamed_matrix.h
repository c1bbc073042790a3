// SPDX-License-Identifier: Apache-2.0
//
// StreamedMatrix: a dense matrix of the vocabulary that stays on disk. A pass needs few rows of the embedding: gather() reads
// the blocks that hold them. The LM head is needed whole: for_each_window() brings it window by window through two buffers, one
// being read and checked by a thread of its own while the other is used.
//
// A block is a whole number of rows, at most kStreamBlockBytes or one row (or 32, a panel of a packed head, which go together); a
// window is a whole number of blocks. In a small
// matrix both are a sixteenth of it, so that buffers stay small against what they save. open() reads the matrix once from end
// to end, checks it against the lock file's SHA-256 and remembers an XXH3-128 of every block of the very same bytes; each later
// read of a block is checked against that before anybody sees it. What is remembered costs 16 bytes per block, 0.02 % of a
// large matrix.
//
// Used by the thread that runs the model. After open() nothing allocates unless it fails. Reads are positional and go through
// the Checkpoint, like those of experts.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "base/function_ref.h"
#include "base/hash.h"
#include "base/thread.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/lockfile.h"
#include "device/device.h"
#include "memory/budget.h"
#include "pointsman/status.h"
#include "tensor/tensor.h"

namespace pointsman {

// One row of an embedding costs one block: small, so that decode does not read much more than it needs; not smaller, since a
// read of 64 KiB takes a disk little longer than one of 4 KiB.
inline constexpr uint64_t kStreamBlockBytes = 64 * 1024;
// Where a disk's rate stops growing (docs/design/performance.md).
inline constexpr uint64_t kStreamWindowBytes = 1 << 20;

struct StreamedStats {
  uint64_t bytes_read = 0;     // since open(), also of reads that failed later
  uint64_t verified_xxh3 = 0;  // blocks
  uint64_t read_ns = 0;        // reading and verifying
  uint64_t wait_ns = 0;        // the model's thread waited for a window
};

class StreamedMatrix {
 public:
  // `whole`: for_each_window() will be used; otherwise only gather().
  struct Cost {
    uint64_t read_buffer_bytes = 0, table_bytes = 0, stack_bytes = 0;
  };
  // What open() will charge in all, by class (kReadBuffers, kCatalogue, kThreadStacks): the plan's numbers.
  static Cost cost(const TensorEntry& entry, bool whole, bool host_visible, int64_t rows_together = 1);
  static uint64_t block_bytes(const TensorEntry& entry);

  // Reads and checks all of `entry`, a matrix [rows, cols]; without `lock` the bytes are trusted and remembered. Windows begin and end
  // at multiples of `rows_together`, which divides the rows. All arguments
  // outlive the object. kCorrupt names tensor, file, offset and both digests. `progress(bytes)`: bytes newly read.
  static Result<std::unique_ptr<StreamedMatrix>> open(Device& device, MemoryBudget& budget, const Checkpoint& checkpoint,
                                                      const TensorEntry& entry, const LockFile* lock, bool whole,
                                                      FunctionRef<void(uint64_t)> progress, int64_t rows_together = 1);
  ~StreamedMatrix();

  // out[i] = row `rows[i]`, in the matrix's dtype; every block is read once however many of its rows are asked for.
  // `order` is host scratch of rows.size() elements. `out` [rows.size(), cols] is a device address.
  // REQUIRES: each row in range; the matrix lies in rows. kCorrupt, kIo: rows, file and offset are named, nothing of `out` may be used.
  Status gather(Stream& stream, std::span<const int32_t> rows, std::span<int32_t> order, const Tensor& out);

  // Calls use(first_row, rows [n, cols] at a device address, as they lie in the file) for all rows in order. What `use` submits to `stream` may read the
  // window later. Stops at the first failure. No work of the stream reads a window after return.
  Status for_each_window(Stream& stream, FunctionRef<Status(int64_t first_row, const Tensor& rows)> use);

  StreamedStats stats() const;
  void reset_stats();

 private:
  struct Layout {
    uint64_t row_bytes = 0;
    int64_t rows_per_block = 0, num_blocks = 0;
    int64_t blocks_per_window = 0, num_windows = 0;
    uint64_t buffer_bytes = 0;  // one window, or one block where only gather() is used
    int num_buffers = 1;
  };
  StreamedMatrix(const Checkpoint& checkpoint, const TensorEntry& entry, bool whole, int64_t rows_together);
  static Layout layout_of(const TensorEntry& entry, bool whole, int64_t rows_together);
  static uint64_t table_bytes(const Layout& layout);

  std::string describe(int64_t first_block, int64_t num_blocks) const;
  uint64_t block_offset(int64_t block) const;  // in the tensor; of num_blocks: its end
  Status verify_all(const LockFile* lock, FunctionRef<void(uint64_t)> progress);
  Status read_blocks(int64_t first_block, int64_t num_blocks, std::byte* to, Xxh3& hash);
  Status gather_blocks(Stream& stream, std::span<const int32_t> rows, std::span<const int32_t> order, const Tensor& out);
  Status stream_windows(Stream& stream, FunctionRef<Status(int64_t, const Tensor&)> use);
  Status read_window(int64_t window);
  void run_reader();
  void submit();  // the next window
  Status await(int64_t window);
  void drain();  // cancels what was submitted; waits for the read under way

  const Checkpoint& checkpoint_;
  const TensorEntry& entry_;
  const Layout layout_;
  std::unique_ptr<Device> host_ = make_cpu_device();
  Charge table_charge_, stack_charge_;
  std::vector<Xxh3Digest> digests_;  // [blocks]
  Buffer buffers_;                   // host-readable: windows or the one block
  Buffer device_windows_;            // where the device is not host_visible
  Xxh3 hash_, reader_hash_;          // of the model's thread; of the reader

  mutable std::mutex mutex_;
  std::condition_variable work_, progress_;
  StreamedStats stats_;
  int64_t submitted_ = 0;  // windows asked for and windows read, since the start of a stream
  int64_t read_ = 0;
  bool reading_ = false;
  bool stop_ = false;
  Status failure_;
  Thread reader_;  // last: joined before anything it uses goes
};

}  // namespace pointsman
