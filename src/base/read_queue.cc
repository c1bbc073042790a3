// SPDX-License-Identifier: Apache-2.0
#include "base/read_queue.h"

#include <vector>

#include "base/check.h"
#include "base/fs.h"

namespace pointsman {
namespace {

class PreadQueue final : public ReadQueue {
 public:
  explicit PreadQueue(int depth) : reads_(static_cast<size_t>(depth)) {}

  void submit(File& file, std::span<std::byte> out, uint64_t offset, uint32_t tag) override {
    PM_CHECK(size_ < reads_.size());
    reads_[(head_ + size_++) % reads_.size()] = {&file, out, offset, tag};
  }
  Completion wait() override {
    PM_CHECK(size_ > 0);
    const Read& r = reads_[head_];
    head_ = (head_ + 1) % reads_.size();
    --size_;
    return {.tag = r.tag, .bytes = r.file->pread(r.out, r.offset)};
  }

 private:
  struct Read {
    File* file = nullptr;
    std::span<std::byte> out;
    uint64_t offset = 0;
    uint32_t tag = 0;
  };
  std::vector<Read> reads_;  // a ring
  size_t head_ = 0, size_ = 0;
};

}  // namespace

const char* read_method_name(ReadMethod m) {
  return m == ReadMethod::kUring ? "uring" : "pread";
}

std::unique_ptr<ReadQueue> make_pread_queue(int depth) {
  PM_CHECK(depth >= 1 && depth <= kMaxReadQueueDepth);
  return std::make_unique<PreadQueue>(depth);
}

}  // namespace pointsman
