// SPDX-License-Identifier: Apache-2.0
//
// The two address ranges of the fake device, and which parts of them are allocated. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include "pointsman/status.h"

namespace pointsman {

class FakeMemory {
 public:
  explicit FakeMemory(uint64_t limit_bytes);
  ~FakeMemory();
  FakeMemory(const FakeMemory&) = delete;
  FakeMemory& operator=(const FakeMemory&) = delete;

  Result<void*> allocate(size_t bytes);
  void free(void* address, size_t bytes);
  // The real place of `bytes` bytes at a device address; null when they are not all inside one live allocation.
  std::byte* translate(const void* address, size_t bytes) const;
  // True for any address of the reserved range, live or not.
  bool is_device_address(const void* address) const;
  // "2 allocations were not freed: 4096 bytes at 0x..., ..."; empty when all were.
  std::string leaks() const;

  uint64_t live_allocations() const;
  uint64_t live_bytes() const;
  uint64_t peak_bytes() const;

 private:
  const uint64_t limit_bytes_;
  std::byte* device_base_ = nullptr;  // never accessible
  std::byte* real_base_ = nullptr;
  mutable std::mutex mutex_;
  std::map<size_t, size_t> live_;  // offset -> bytes
  size_t next_offset_ = 0;
  uint64_t live_bytes_ = 0, peak_bytes_ = 0;
};

}  // namespace pointsman
