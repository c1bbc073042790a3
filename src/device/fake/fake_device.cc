// SPDX-License-Identifier: Apache-2.0
#include "device/fake/fake_device.h"

#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <vector>

#include "base/check.h"
#include "base/log.h"
#include "base/philox.h"
#include "base/thread.h"
#include "device/fake/fake_memory.h"

namespace pointsman {
namespace {

// What all streams of one device share.
struct Shared {
  explicit Shared(const FakeOptions& o) : options(o), memory(o.memory_limit_bytes) {}

  // True when this operation is the one that was chosen to fail.
  bool fails(uint64_t FakeOptions::*which, uint64_t& count) {
    std::lock_guard lock(mutex);
    return ++count == options.*which;
  }
  void count_copy(uint64_t FakeCounters::*copies, uint64_t FakeCounters::*bytes, size_t n) {
    std::lock_guard lock(mutex);
    ++(counters.*copies);
    if (bytes != nullptr) counters.*bytes += n;
  }

  FakeOptions options;
  FakeMemory memory;
  std::mutex mutex;  // counters, failures
  FakeCounters counters;
  uint64_t num_allocations = 0, num_copies = 0, num_kernels = 0;  // tried since set_failures()
  std::mutex kernel_mutex;                                        // a thread pool serves one caller at a time
  std::atomic<int> num_streams{0};
  std::atomic<uint32_t> next_stream_id{0};
};

class FakeStream final : public Stream {
 public:
  explicit FakeStream(Shared& shared)
      : shared_(shared), id_(shared.next_stream_id.fetch_add(1)), worker_([this] { run_worker(); }) {
    shared_.num_streams.fetch_add(1);
  }
  ~FakeStream() override {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    worker_.join();  // after what was submitted
    if (!failure_.ok()) log_warning("fake: a stream ended with an error that nobody asked for: {}", failure_.message());
    shared_.num_streams.fetch_sub(1);
  }

  Status copy_to_device(void* dst, const void* src, size_t bytes) override {
    return submit_copy(Item::kToDevice, dst, src, bytes);
  }
  Status copy_to_host(void* dst, const void* src, size_t bytes) override { return submit_copy(Item::kToHost, dst, src, bytes); }
  Status copy_on_device(void* dst, const void* src, size_t bytes) override {
    return submit_copy(Item::kOnDevice, dst, src, bytes);
  }

  uint64_t record() override {
    std::lock_guard lock(mutex_);
    return num_submitted_;
  }
  Status wait(uint64_t ticket) override {
    std::unique_lock lock(mutex_);
    PM_CHECK(ticket <= num_submitted_, "fake: wait for a ticket of another stream");
    changed_.wait(lock, [&] { return num_done_ >= ticket; });
    if (failure_.ok() || failed_item_ > ticket) return ok_status();
    return std::exchange(failure_, ok_status());
  }
  Status synchronize() override { return wait(record()); }
  Status wait_from_any_thread(uint64_t ticket) override {
    std::unique_lock lock(mutex_);
    PM_CHECK(ticket <= num_submitted_, "fake: wait for a ticket of another stream");
    changed_.wait(lock, [&] { return num_done_ >= ticket; });
    return ok_status();
  }

  bool is_immediate() const override { return false; }
  Status defer(const Deferred& work) override {
    Item item{.kind = Item::kKernel, .work = work};
    const auto* args = static_cast<const std::byte*>(work.args);
    item.args.assign(args, args + work.bytes);
    return submit(std::move(item));
  }

 private:
  struct Item {
    enum Kind { kToDevice, kToHost, kOnDevice, kKernel };
    Kind kind = kKernel;
    void* dst = nullptr;
    const void* src = nullptr;
    size_t bytes = 0;
    Deferred work{};
    std::vector<std::byte> args;
  };

  Status submit_copy(Item::Kind kind, void* dst, const void* src, size_t bytes) {
    return submit({.kind = kind, .dst = dst, .src = src, .bytes = bytes});
  }
  Status submit(Item item) {
    {
      std::lock_guard lock(mutex_);
      items_.push_back(std::move(item));
      ++num_submitted_;
    }
    changed_.notify_all();
    return ok_status();
  }

  void run_worker() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return stop_ || !items_.empty(); });
      if (items_.empty()) return;
      Item item = std::move(items_.front());
      items_.pop_front();
      const bool skip = !failure_.ok();
      const uint64_t number = num_done_ + 1;
      lock.unlock();
      pause_before(number);
      Status status = skip ? ok_status() : execute(item);
      lock.lock();
      if (!status.ok()) {
        failure_ = std::move(status);
        failed_item_ = number;
      }
      num_done_ = number;
      changed_.notify_all();
    }
  }

  void pause_before(uint64_t number) {
    if (shared_.options.max_delay_us <= 0) return;
    const uint32_t r = random_u32(shared_.options.seed, RandomPurpose::kTest, number, id_, 0, 0);
    const auto us = static_cast<useconds_t>(uniform_open(r) * (shared_.options.max_delay_us + 1));
    if (us > 0) ::usleep(us);
  }

  Status execute(Item& item) {
    if (item.kind == Item::kKernel) return execute_kernel(item);
    if (shared_.fails(&FakeOptions::fail_copy, shared_.num_copies)) {
      return error(StatusCode::kIo, "fake: a copy of {} bytes failed (injected)", item.bytes);
    }
    void* dst = item.dst;
    const void* src = item.src;
    if (item.kind == Item::kToHost ? shared_.memory.is_device_address(dst) : (dst = device(dst, item.bytes)) == nullptr) {
      return bad_address("destination", item.dst, item.bytes);
    }
    if (item.kind == Item::kToDevice ? shared_.memory.is_device_address(src) : (src = device(src, item.bytes)) == nullptr) {
      return bad_address("source", item.src, item.bytes);
    }
    if (item.bytes != 0) std::memmove(dst, src, item.bytes);
    switch (item.kind) {
      case Item::kToDevice:
        shared_.count_copy(&FakeCounters::copies_to_device, &FakeCounters::bytes_to_device, item.bytes);
        break;
      case Item::kToHost: shared_.count_copy(&FakeCounters::copies_to_host, &FakeCounters::bytes_to_host, item.bytes); break;
      default: shared_.count_copy(&FakeCounters::copies_on_device, nullptr, 0); break;
    }
    return ok_status();
  }
  void* device(const void* address, size_t bytes) { return shared_.memory.translate(address, bytes); }
  static Status bad_address(const char* what, const void* address, size_t bytes) {
    return error(StatusCode::kInternal, "fake: the {} of a copy, {} bytes at {}, is on the wrong side or in no live allocation",
                 what, bytes, fmt::ptr(address));
  }

  Status execute_kernel(Item& item) {
    if (shared_.fails(&FakeOptions::fail_kernel, shared_.num_kernels)) {
      return error(StatusCode::kUnavailable, "fake: a kernel failed (injected)");
    }
    const void* bad = nullptr;
    item.work.each_address(item.args.data(), [&](void*& address) {
      if (address == nullptr) return;
      void* const real = device(address, 0);
      if (real == nullptr) bad = address;
      address = real;
    });
    if (bad != nullptr) {
      return error(StatusCode::kInternal, "fake: host pointer given to a kernel: {} is in no live allocation of the device",
                   fmt::ptr(bad));
    }
    std::lock_guard one_at_a_time(shared_.kernel_mutex);
    PM_RETURN_IF_ERROR(item.work.run(item.work.kernel, item.work.pool, item.args.data()));
    std::lock_guard lock(shared_.mutex);
    ++shared_.counters.kernels;
    return ok_status();
  }

  Shared& shared_;
  const uint32_t id_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Item> items_;
  uint64_t num_submitted_ = 0, num_done_ = 0;
  Status failure_;            // not yet reported
  uint64_t failed_item_ = 0;  // its number
  bool stop_ = false;
  Thread worker_;  // last: it uses all of the above
};

class FakeDeviceImpl final : public FakeDevice {
 public:
  explicit FakeDeviceImpl(const FakeOptions& options) : shared_(options) {}
  ~FakeDeviceImpl() override {
    PM_CHECK(shared_.num_streams.load() == 0, "a stream outlives the fake device");
    const std::string leaks = shared_.memory.leaks();
    if (shared_.options.leak_report != nullptr) {
      *shared_.options.leak_report = leaks;
    } else {
      PM_CHECK(leaks.empty(), "%s", leaks.c_str());
    }
  }

  std::string_view name() const override { return "fake"; }
  bool host_visible() const override { return false; }
  Result<void*> allocate(size_t bytes) override {
    if (shared_.fails(&FakeOptions::fail_allocation, shared_.num_allocations)) {
      return error(StatusCode::kUnavailable, "fake: no memory for {} bytes (injected)", bytes);
    }
    auto address = shared_.memory.allocate(bytes);
    if (address.ok()) {
      std::lock_guard lock(shared_.mutex);
      ++shared_.counters.allocations;
    }
    return address;
  }
  void free(void* address, size_t bytes) override { shared_.memory.free(address, bytes); }
  Result<std::unique_ptr<Stream>> make_stream() override { return std::unique_ptr<Stream>(new FakeStream(shared_)); }

  FakeCounters counters() const override {
    std::lock_guard lock(shared_.mutex);
    FakeCounters c = shared_.counters;
    c.live_allocations = shared_.memory.live_allocations();
    c.live_bytes = shared_.memory.live_bytes();
    c.peak_bytes = shared_.memory.peak_bytes();
    return c;
  }
  void set_failures(uint64_t fail_allocation, uint64_t fail_copy, uint64_t fail_kernel) override {
    std::lock_guard lock(shared_.mutex);
    shared_.options.fail_allocation = fail_allocation;
    shared_.options.fail_copy = fail_copy;
    shared_.options.fail_kernel = fail_kernel;
    shared_.num_allocations = shared_.num_copies = shared_.num_kernels = 0;
  }
  void* host_view(const void* device_address) const override { return shared_.memory.translate(device_address, 1); }

 private:
  mutable Shared shared_;
};

}  // namespace

std::unique_ptr<FakeDevice> make_fake_device(FakeOptions options) {
  return std::make_unique<FakeDeviceImpl>(options);
}

}  // namespace pointsman
