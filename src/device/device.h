// SPDX-License-Identifier: Apache-2.0
//
// The one door to a device: memory, copies, streams, events, kernels. The model, the expert store and the ops know nothing else
// of the hardware; a back end is a Device, a Stream and a table of kernels (ops/op_list.inc).
//
// On the CPU the door costs one branch: memory is host memory, a stream runs its work inside the call that submits it. The `fake`
// device (device/fake) keeps its memory at addresses that the host cannot read, runs work later on a thread of its own, fills
// fresh memory with NaN patterns and can be told to refuse: what works there needs only kernels on a real accelerator.
//
// Rules for callers:
//   * a device address is opaque unless host_visible();
//   * host memory given to an asynchronous copy must live until the stream is synchronised or an event after it is reached;
//   * an error of asynchronous work is reported by the next synchronize() or wait of that stream, and stays until then.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>

#include "base/function_ref.h"
#include "memory/budget.h"
#include "pointsman/status.h"
#include "tensor/tensor.h"

namespace pointsman {

class ThreadPool;

// Work on a stream in the order of submission. Used by one thread at a time, but for wait_from_any_thread().
class Stream {
 public:
  virtual ~Stream() = default;

  // Copies. The CPU's are done on return.
  virtual Status copy_to_device(void* device_dst, const void* host_src, size_t bytes) = 0;
  virtual Status copy_to_host(void* host_dst, const void* device_src, size_t bytes) = 0;
  virtual Status copy_on_device(void* device_dst, const void* device_src, size_t bytes) = 0;

  // A point in the stream's work. Tickets grow; waiting for one waits for all work submitted before it. 0 is a point that has
  // always been passed: an immediate stream knows no other.
  virtual uint64_t record() = 0;
  virtual Status wait(uint64_t ticket) = 0;    // blocks the host; reports the first error before the ticket
  virtual Status synchronize() = 0;            // wait() for everything
  // For a thread that wants to overwrite memory which this stream's work may still read: blocks it until the stream has passed a
  // ticket that record() returned before. Thread-safe. Errors of the work stay for the stream's own thread; a failure here means
  // that the device cannot say whether the work has ended, and the memory must not be touched.
  virtual Status wait_from_any_thread(uint64_t ticket) = 0;

  // True when submitted work has already run: launch() then calls the kernel directly.
  virtual bool is_immediate() const = 0;
  // Deferred form of launch(): `bytes` of `args` are copied; when the stream gets there, `run` is called with the copy, with
  // every device address in it made readable by `each_address` first. Used by launch() only.
  struct Deferred {
    const void* args;
    size_t bytes;
    void (*each_address)(void* args, FunctionRef<void(void*&)> visit);
    Status (*run)(const void* kernel, void* pool, void* args);
    const void* kernel;
    void* pool;
  };
  virtual Status defer(const Deferred& work) = 0;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual std::string_view name() const = 0;  // "cpu", "fake", ...
  // True: a device address can be read and written by host code (and read into directly from a file).
  virtual bool host_visible() const = 0;
  virtual Result<void*> allocate(size_t bytes) = 0;  // page-aligned, every page present; kUnavailable when refused
  virtual void free(void* address, size_t bytes) = 0;
  virtual Result<std::unique_ptr<Stream>> make_stream() = 0;
};

// Owns device memory, charged to a budget when made and credited when destroyed. Move-only.
class Buffer {
 public:
  Buffer() = default;
  // Charges align_up(bytes, page) first; fails with kBudgetExceeded without touching the device when that does not fit.
  static Result<Buffer> make(Device& device, MemoryBudget& budget, MemoryClass c, size_t bytes);
  ~Buffer() { reset(); }
  Buffer(Buffer&& o) noexcept
      : device_(std::exchange(o.device_, nullptr)), charge_(std::move(o.charge_)), data_(std::exchange(o.data_, nullptr)), bytes_(o.bytes_) {}
  Buffer& operator=(Buffer&& o) noexcept;
  void reset();

  void* data() const { return data_; }
  std::byte* bytes() const { return static_cast<std::byte*>(data_); }
  size_t size_bytes() const { return data_ != nullptr ? bytes_ : 0; }
  explicit operator bool() const { return data_ != nullptr; }

 private:
  Device* device_ = nullptr;
  Charge charge_;
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

inline constexpr size_t kPageBytes = 4096;

// The host's own memory and cores.
std::unique_ptr<Device> make_cpu_device();

// Runs `kernel(pool, args)` in stream order. Args is trivially copyable and has
//   template <class F> void each_address(F&& visit)   -- calls visit(void*&) for every device address it holds.
template <class Args>
Status launch(Stream& stream, ThreadPool& pool, void (*kernel)(ThreadPool&, const Args&), const Args& args) {
  if (stream.is_immediate()) {
    kernel(pool, args);
    return ok_status();
  }
  return stream.defer({
      .args = &args,
      .bytes = sizeof(Args),
      .each_address = [](void* a, FunctionRef<void(void*&)> visit) { static_cast<Args*>(a)->each_address(visit); },
      .run =
          [](const void* k, void* p, void* a) {
            reinterpret_cast<void (*)(ThreadPool&, const Args&)>(const_cast<void*>(k))(*static_cast<ThreadPool*>(p), *static_cast<const Args*>(a));
            return ok_status();
          },
      .kernel = reinterpret_cast<const void*>(kernel),
      .pool = &pool,
  });
}

}  // namespace pointsman
