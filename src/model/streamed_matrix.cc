// SPDX-License-Identifier: Apache-2.0
//
// Threads: the model's thread calls everything public. The reader takes windows in order; the mutex guards who may touch which
// buffer and is never held while bytes move. Window w lies in buffer w % 2, and is submitted when the use of w - 2 is over.
#include "model/streamed_matrix.h"

#include <algorithm>
#include <chrono>
#include <numeric>

#include "base/check.h"
#include "base/checked_math.h"
#include "base/log.h"
#include "model/weight_loader.h"

namespace pointsman {
namespace {

constexpr uint64_t kSmallestShare = 16;
// Hash contexts and the object itself.
constexpr uint64_t kObjectBytes = 4096;

using Clock = std::chrono::steady_clock;

uint64_t ns_since(Clock::time_point start) {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count());
}

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

}  // namespace

StreamedMatrix::Layout StreamedMatrix::layout_of(const TensorEntry& entry, bool whole, int64_t rows_together) {
  const int64_t rows = entry.shape[0];
  Layout l;
  l.row_bytes = entry.size_bytes / static_cast<uint64_t>(rows);
  const uint64_t share = entry.size_bytes / kSmallestShare;
  l.rows_per_block = std::max<int64_t>(1, static_cast<int64_t>(std::min(kStreamBlockBytes, share) / l.row_bytes) / rows_together) * rows_together;
  l.num_blocks = ceil_div(rows, l.rows_per_block);
  const uint64_t block_bytes = static_cast<uint64_t>(l.rows_per_block) * l.row_bytes;
  l.blocks_per_window = std::max<int64_t>(1, static_cast<int64_t>(std::min(kStreamWindowBytes, share) / block_bytes));
  l.num_windows = ceil_div(l.num_blocks, l.blocks_per_window);
  l.buffer_bytes = align_up(block_bytes * static_cast<uint64_t>(whole ? l.blocks_per_window : 1), 64);
  l.num_buffers = whole ? 2 : 1;
  return l;
}

uint64_t StreamedMatrix::table_bytes(const Layout& l) {
  return kObjectBytes + align_up(static_cast<uint64_t>(l.num_blocks) * sizeof(Xxh3Digest), kPageBytes);
}

StreamedMatrix::Cost StreamedMatrix::cost(const TensorEntry& entry, bool whole, bool host_visible, int64_t rows_together) {
  const Layout l = layout_of(entry, whole, rows_together);
  const uint64_t buffers = align_up(l.buffer_bytes * static_cast<uint64_t>(l.num_buffers), kPageBytes);
  return {.read_buffer_bytes = whole && !host_visible ? 2 * buffers : buffers,
          .table_bytes = table_bytes(l),
          .stack_bytes = whole ? kThreadStackBytes : 0};
}

uint64_t StreamedMatrix::block_bytes(const TensorEntry& entry) {
  return layout_of(entry, false, 1).buffer_bytes;
}

StreamedMatrix::StreamedMatrix(const Checkpoint& checkpoint, const TensorEntry& entry, bool whole, int64_t rows_together)
    : checkpoint_(checkpoint),
      entry_(entry),
      layout_(layout_of(entry, whole, rows_together)),
      digests_(static_cast<size_t>(layout_.num_blocks)) {}

Result<std::unique_ptr<StreamedMatrix>> StreamedMatrix::open(Device& device, MemoryBudget& budget, const Checkpoint& checkpoint,
                                                             const TensorEntry& entry, const LockFile* lock, bool whole,
                                                             FunctionRef<void(uint64_t)> progress, int64_t rows_together) {
  PM_CHECK(rows_together >= 1 && entry.shape[0] % rows_together == 0);
  const Cost cost = StreamedMatrix::cost(entry, whole, device.host_visible(), rows_together);
  // Charged before anything is allocated.
  PM_ASSIGN_OR_RETURN(Charge tables, Charge::make(budget, MemoryClass::kCatalogue, cost.table_bytes));
  PM_ASSIGN_OR_RETURN(Charge stacks, Charge::make(budget, MemoryClass::kThreadStacks, cost.stack_bytes));
  auto m = std::unique_ptr<StreamedMatrix>(new StreamedMatrix(checkpoint, entry, whole, rows_together));
  m->table_charge_ = std::move(tables);
  m->stack_charge_ = std::move(stacks);
  const uint64_t bytes = m->layout_.buffer_bytes * static_cast<uint64_t>(m->layout_.num_buffers);
  // Rows of a gather are copied to the device; windows are used where they were read when the device can follow host addresses.
  PM_ASSIGN_OR_RETURN(m->buffers_,
                      Buffer::make(device.host_visible() ? device : *m->host_, budget, MemoryClass::kReadBuffers, bytes));
  if (whole && !device.host_visible()) {
    PM_ASSIGN_OR_RETURN(m->device_windows_, Buffer::make(device, budget, MemoryClass::kReadBuffers, bytes));
  }
  PM_RETURN_IF_ERROR(m->verify_all(lock, progress));
  if (whole) m->reader_ = Thread([matrix = m.get()] { matrix->run_reader(); });
  return m;
}

StreamedMatrix::~StreamedMatrix() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  work_.notify_all();
  reader_.join();
}

uint64_t StreamedMatrix::block_offset(int64_t block) const {
  const int64_t row = std::min(entry_.shape[0], block * layout_.rows_per_block);
  return static_cast<uint64_t>(row) * layout_.row_bytes;
}

std::string StreamedMatrix::describe(int64_t first_block, int64_t num_blocks) const {
  const int64_t last_row = std::min(entry_.shape[0], (first_block + num_blocks) * layout_.rows_per_block) - 1;
  return format("{} rows {} to {} ({} @ {:#x})", entry_.name, first_block * layout_.rows_per_block, last_row,
                checkpoint_.files()[entry_.file_idx].name, entry_.offset + block_offset(first_block));
}

Status StreamedMatrix::verify_all(const LockFile* lock, FunctionRef<void(uint64_t)> progress) {
  Sha256 sha256;
  const auto per_read =
      std::max<int64_t>(1, static_cast<int64_t>(layout_.buffer_bytes / layout_.row_bytes) / layout_.rows_per_block);
  for (int64_t block = 0; block < layout_.num_blocks; block += per_read) {
    const int64_t n = std::min(per_read, layout_.num_blocks - block);
    const uint64_t begin = block_offset(block);
    const std::span<std::byte> bytes(buffers_.bytes(), static_cast<size_t>(block_offset(block + n) - begin));
    PM_RETURN_IF_ERROR(checkpoint_.read(entry_.file_idx, entry_.offset + begin, bytes).with_context(entry_.name));
    if (lock != nullptr) sha256.update(bytes);
    for (int64_t b = block; b < block + n; ++b) {
      hash_.reset();
      hash_.update(bytes.subspan(block_offset(b) - begin, block_offset(b + 1) - block_offset(b)));
      digests_[static_cast<size_t>(b)] = hash_.finish();
    }
    progress(bytes.size());
  }
  return lock == nullptr ? ok_status() : check_tensor_digest(checkpoint_, entry_, *lock, sha256.finish());
}

Status StreamedMatrix::read_blocks(int64_t first_block, int64_t num_blocks, std::byte* to, Xxh3& hash) {
  const auto start = Clock::now();
  const uint64_t begin = block_offset(first_block);
  const std::span<std::byte> bytes(to, static_cast<size_t>(block_offset(first_block + num_blocks) - begin));
  Status status = checkpoint_.read(entry_.file_idx, entry_.offset + begin, bytes);
  if (!status.ok()) status = status.with_context(describe(first_block, num_blocks));
  const uint64_t bytes_read = status.ok() ? bytes.size() : 0;
  uint64_t verified = 0;
  for (int64_t b = first_block; status.ok() && b < first_block + num_blocks; ++b) {
    hash.reset();
    hash.update(bytes.subspan(block_offset(b) - begin, block_offset(b + 1) - block_offset(b)));
    const Xxh3Digest found = hash.finish(), expected = digests_[static_cast<size_t>(b)];
    if (found == expected) {
      ++verified;
      continue;
    }
    status = error(StatusCode::kCorrupt,
                   "{}: the bytes are not those that were verified when the model was loaded: xxh3 {:016x}{:016x} expected "
                   "{:016x}{:016x}; the file, the disk or the memory changed: run 'pointsman lock --check'",
                   describe(b, 1), found.high, found.low, expected.high, expected.low);
  }
  std::lock_guard lock(mutex_);
  stats_.bytes_read += bytes_read;
  stats_.verified_xxh3 += verified;
  stats_.read_ns += ns_since(start);
  return status;
}

Status StreamedMatrix::gather(Stream& stream, std::span<const int32_t> rows, std::span<int32_t> order, const Tensor& out) {
  PM_CHECK(order.size() == rows.size() && out.dtype == entry_.dtype && out.cols == entry_.shape[1]);
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(),
            [&](int32_t a, int32_t b) { return rows[static_cast<size_t>(a)] < rows[static_cast<size_t>(b)]; });
  const Status status = gather_blocks(stream, rows, order, out);
  // Also after a failure: copies in flight read the buffer that the next call fills.
  const Status copied = stream.synchronize();
  return status.ok() ? copied : status;
}

Status StreamedMatrix::gather_blocks(Stream& stream, std::span<const int32_t> rows, std::span<const int32_t> order,
                                     const Tensor& out) {
  int64_t held = -1;  // the block in the buffer
  for (const int32_t i : order) {
    const int64_t row = rows[static_cast<size_t>(i)];
    const int64_t block = row / layout_.rows_per_block;
    if (block != held) {
      if (held >= 0) PM_RETURN_IF_ERROR(stream.synchronize());
      PM_RETURN_IF_ERROR(read_blocks(block, 1, buffers_.bytes(), hash_));
      held = block;
    }
    const std::byte* const from = buffers_.bytes() + static_cast<uint64_t>(row % layout_.rows_per_block) * layout_.row_bytes;
    PM_RETURN_IF_ERROR(stream.copy_to_device(out.slice_rows(i, 1).data, from, layout_.row_bytes));
  }
  return ok_status();
}

Status StreamedMatrix::for_each_window(Stream& stream, FunctionRef<Status(int64_t, const Tensor&)> use) {
  PM_CHECK(layout_.num_buffers == 2, "opened for rows only");
  const Status status = stream_windows(stream, use);
  drain();
  const Status done = stream.synchronize();
  return status.ok() ? done : status;
}

Status StreamedMatrix::stream_windows(Stream& stream, FunctionRef<Status(int64_t, const Tensor&)> use) {
  uint64_t tickets[2] = {0, 0};  // of the last use of each buffer
  submit();
  for (int64_t w = 0; w < layout_.num_windows; ++w) {
    const size_t half = static_cast<size_t>(w % 2);
    if (w + 1 < layout_.num_windows) {
      PM_RETURN_IF_ERROR(stream.wait(tickets[1 - half]));
      submit();
    }
    PM_RETURN_IF_ERROR(await(w));
    const int64_t first_row = w * layout_.blocks_per_window * layout_.rows_per_block;
    const int64_t rows = std::min(entry_.shape[0] - first_row, layout_.blocks_per_window * layout_.rows_per_block);
    std::byte* at = buffers_.bytes() + half * layout_.buffer_bytes;
    if (device_windows_) {
      std::byte* const on_device = device_windows_.bytes() + half * layout_.buffer_bytes;
      PM_RETURN_IF_ERROR(stream.copy_to_device(on_device, at, static_cast<uint64_t>(rows) * layout_.row_bytes));
      at = on_device;
    }
    PM_RETURN_IF_ERROR(use(first_row, Tensor::matrix(at, entry_.dtype, rows, entry_.shape[1])));
    tickets[half] = stream.record();
  }
  return ok_status();
}

Status StreamedMatrix::read_window(int64_t window) {
  const int64_t first = window * layout_.blocks_per_window;
  const int64_t n = std::min(layout_.blocks_per_window, layout_.num_blocks - first);
  return read_blocks(first, n, buffers_.bytes() + static_cast<uint64_t>(window % 2) * layout_.buffer_bytes, reader_hash_);
}

void StreamedMatrix::run_reader() {
  std::unique_lock lock(mutex_);
  for (;;) {
    work_.wait(lock, [this] { return stop_ || (read_ < submitted_ && failure_.ok()); });
    if (stop_) return;
    const int64_t window = read_;
    reading_ = true;
    lock.unlock();
    Status status = read_window(window);
    lock.lock();
    reading_ = false;
    ++read_;
    if (!status.ok()) failure_ = std::move(status);
    progress_.notify_one();
  }
}

void StreamedMatrix::submit() {
  {
    std::lock_guard lock(mutex_);
    ++submitted_;
  }
  work_.notify_one();
}

Status StreamedMatrix::await(int64_t window) {
  std::unique_lock lock(mutex_);
  const auto start = Clock::now();
  progress_.wait(lock, [&] { return read_ > window || !failure_.ok(); });
  stats_.wait_ns += ns_since(start);
  return failure_;
}

void StreamedMatrix::drain() {
  std::unique_lock lock(mutex_);
  submitted_ = 0;
  progress_.wait(lock, [this] { return !reading_; });
  read_ = 0;
  failure_ = ok_status();
}

StreamedStats StreamedMatrix::stats() const {
  std::lock_guard lock(mutex_);
  return stats_;
}

void StreamedMatrix::reset_stats() {
  std::lock_guard lock(mutex_);
  stats_ = {};
}

}  // namespace pointsman
