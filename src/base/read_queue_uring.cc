// SPDX-License-Identifier: Apache-2.0
//
// The only file that knows io_uring (through liburing).
#include <liburing.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <limits>
#include <vector>

#include "base/check.h"
#include "base/fs.h"
#include "base/log.h"
#include "base/read_queue.h"

namespace pointsman {
namespace {

class UringQueue final : public ReadQueue {
 public:
  explicit UringQueue(int depth) : reads_(static_cast<size_t>(depth)) {
    for (uint32_t i = 0; i < reads_.size(); ++i) free_.push_back(i);
  }
  ~UringQueue() override {
    if (!is_open_) return;
    while (free_.size() < reads_.size()) static_cast<void>(wait());
    io_uring_queue_exit(&ring_);
  }

  // 0, or an error number. One empty request goes through: profiles may allow the set-up and refuse the use.
  int init() {
    int rc = io_uring_queue_init(static_cast<unsigned>(reads_.size()), &ring_, 0);
    if (rc != 0) return -rc;
    is_open_ = true;
    io_uring_prep_nop(io_uring_get_sqe(&ring_));
    rc = io_uring_submit_and_wait(&ring_, 1);
    io_uring_cqe* cqe = nullptr;
    if (rc >= 0) rc = io_uring_peek_cqe(&ring_, &cqe);
    if (rc < 0) return -rc;
    const int result = cqe->res;
    io_uring_cqe_seen(&ring_, cqe);
    return result < 0 ? -result : 0;
  }

  void submit(File& file, std::span<std::byte> out, uint64_t offset, uint32_t tag) override {
    PM_CHECK(!free_.empty() && file.descriptor() >= 0 && out.size() <= std::numeric_limits<int32_t>::max());
    const uint32_t i = free_.back();
    free_.pop_back();
    reads_[i] = {&file, tag};
    io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
    PM_CHECK(sqe != nullptr, "the ring holds as many entries as reads may be under way");
    io_uring_prep_read(sqe, file.descriptor(), out.data(), static_cast<unsigned>(out.size()), offset);
    io_uring_sqe_set_data64(sqe, i);
    // When the kernel has no memory for it right now, wait() submits it again.
    static_cast<void>(io_uring_submit(&ring_));
  }

  Completion wait() override {
    PM_CHECK(free_.size() < reads_.size());
    io_uring_cqe* cqe = nullptr;
    while (io_uring_peek_cqe(&ring_, &cqe) != 0) {
      const int rc = io_uring_submit_and_wait(&ring_, 1);
      if (rc >= 0 || rc == -EINTR) continue;
      // Out of memory or of room for completions: passes. Anything else is our mistake.
      PM_CHECK(rc == -EAGAIN || rc == -EBUSY || rc == -ENOMEM, "io_uring_enter: %s", std::strerror(-rc));
      constexpr timespec kPause{.tv_sec = 0, .tv_nsec = 1'000'000};
      ::nanosleep(&kPause, nullptr);
    }
    const auto i = static_cast<uint32_t>(io_uring_cqe_get_data64(cqe));
    const int result = cqe->res;
    io_uring_cqe_seen(&ring_, cqe);
    free_.push_back(i);
    const Read& r = reads_[i];
    if (result >= 0) return {.tag = r.tag, .bytes = static_cast<size_t>(result)};
    const StatusCode code = result == -EINTR || result == -EAGAIN ? StatusCode::kUnavailable : StatusCode::kIo;
    return {.tag = r.tag, .bytes = error(code, "{}: read: {}", r.file->path(), std::strerror(-result))};
  }

 private:
  struct Read {
    File* file = nullptr;
    uint32_t tag = 0;
  };
  io_uring ring_{};
  bool is_open_ = false;
  std::vector<Read> reads_;
  std::vector<uint32_t> free_;  // indices into reads_ that are not under way
};

}  // namespace

Result<std::unique_ptr<ReadQueue>> make_uring_queue(int depth) {
  PM_CHECK(depth >= 1 && depth <= kMaxReadQueueDepth);
  auto queue = std::make_unique<UringQueue>(depth);
  if (const int err = queue->init(); err != 0) {
    return error(StatusCode::kUnavailable, "io_uring: {} (an old kernel, sysctl kernel.io_uring_disabled, or the container's seccomp profile)",
                 std::strerror(err));
  }
  return std::unique_ptr<ReadQueue>(std::move(queue));
}

}  // namespace pointsman
