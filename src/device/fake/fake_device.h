// SPDX-License-Identifier: Apache-2.0
//
// The fake device: an accelerator for tests that behaves as badly as a real one may.
//
//   * Its addresses mean nothing to host code: they lie in a reserved range without access, and following one is a segmentation
//     fault. The bytes are in a second range, at a constant distance that only the device adds.
//   * Work runs later, on a thread per stream, in order, after a random pause when asked for. A copy takes its data when it
//   runs, so
//     host memory that was changed or freed too early shows.
//   * Fresh memory is full of NaN (0xFF bytes). Freed memory is gone: work that still names it is an error, and an address is
//   not
//     given out again while the reserve lasts.
//   * It refuses and fails on command. After an error the stream skips what follows until the error is reported.
//   * Kernels are the CPU's, with every device address in their arguments translated first. An address that is in no live
//     allocation is kInternal.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "device/device.h"

namespace pointsman {

struct FakeOptions {
  uint64_t memory_limit_bytes = 0;  // 0: none
  int max_delay_us = 0;             // before every item of a stream: uniform in [0, max]
  uint64_t seed = 1;                // of the delays
  // The n-th such operation of the device fails, counted from 1 over all streams; 0: none does.
  uint64_t fail_allocation = 0;  // kUnavailable
  uint64_t fail_copy = 0;        // kIo, when the copy runs
  uint64_t fail_kernel = 0;      // kUnavailable, when the kernel runs
  // Where the destructor says what was not freed (empty: nothing). Without it a leak aborts.
  std::string* leak_report = nullptr;
};

struct FakeCounters {
  uint64_t allocations = 0;  // granted
  uint64_t live_allocations = 0;
  uint64_t live_bytes = 0, peak_bytes = 0;
  uint64_t copies_to_device = 0, copies_to_host = 0, copies_on_device = 0;  // run
  uint64_t bytes_to_device = 0, bytes_to_host = 0;
  uint64_t kernels = 0;
};

// Thread-safe like any Device.
class FakeDevice : public Device {
 public:
  virtual FakeCounters counters() const = 0;
  // Counts the n of fail_... from now on.
  virtual void set_failures(uint64_t fail_allocation, uint64_t fail_copy, uint64_t fail_kernel) = 0;
  // Where the bytes behind a live device address really are, for a test to look at; null for any other address.
  virtual void* host_view(const void* device_address) const = 0;
};

// REQUIRES: at destruction, all streams are gone.
std::unique_ptr<FakeDevice> make_fake_device(FakeOptions options = {});

}  // namespace pointsman
