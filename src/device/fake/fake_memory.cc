// SPDX-License-Identifier: Apache-2.0
#include "device/fake/fake_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/checked_math.h"
#include "base/log.h"
#include "device/device.h"

namespace pointsman {
namespace {

// Addresses only; nothing is behind them until it is allocated. Offsets grow and are not used again.
constexpr size_t kReserveBytes = size_t{64} << 30;

std::byte* reserve() {
  void* p = ::mmap(nullptr, kReserveBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  PM_CHECK(p != MAP_FAILED, "fake device: no address space");
  return static_cast<std::byte*>(p);
}

}  // namespace

FakeMemory::FakeMemory(uint64_t limit_bytes) : limit_bytes_(limit_bytes), device_base_(reserve()), real_base_(reserve()) {}

FakeMemory::~FakeMemory() {
  ::munmap(device_base_, kReserveBytes);
  ::munmap(real_base_, kReserveBytes);
}

Result<void*> FakeMemory::allocate(size_t bytes) {
  PM_CHECK(bytes > 0);
  std::lock_guard lock(mutex_);
  if (limit_bytes_ != 0 && (bytes > limit_bytes_ || live_bytes_ > limit_bytes_ - bytes)) {
    return error(StatusCode::kUnavailable, "fake: no memory for {} bytes: {} of {} in use", bytes, live_bytes_, limit_bytes_);
  }
  // A page without access between neighbours, so that a kernel that runs off its end faults.
  if (bytes > kReserveBytes - next_offset_ - 2 * kPageBytes) {
    return error(StatusCode::kUnavailable, "fake: the address reserve of {} bytes is used up", kReserveBytes);
  }
  const size_t offset = next_offset_;
  if (::mprotect(real_base_ + offset, align_up(bytes, kPageBytes), PROT_READ | PROT_WRITE) != 0) {
    return error(StatusCode::kUnavailable, "fake: the host has no memory for {} bytes", bytes);
  }
  std::memset(real_base_ + offset, 0xFF, align_up(bytes, kPageBytes));
  next_offset_ += align_up(bytes, kPageBytes) + kPageBytes;
  live_[offset] = bytes;
  live_bytes_ += bytes;
  peak_bytes_ = std::max(peak_bytes_, live_bytes_);
  return static_cast<void*>(device_base_ + offset);
}

void FakeMemory::free(void* address, size_t bytes) {
  PM_CHECK(is_device_address(address), "fake: free of an address that is not the device's");
  std::lock_guard lock(mutex_);
  const size_t offset = static_cast<size_t>(static_cast<std::byte*>(address) - device_base_);
  const auto it = live_.find(offset);
  PM_CHECK(it != live_.end() && it->second == bytes, "fake: free of something that was not allocated like that");
  live_.erase(it);
  live_bytes_ -= bytes;
  ::madvise(real_base_ + offset, align_up(bytes, kPageBytes), MADV_DONTNEED);
  ::mprotect(real_base_ + offset, align_up(bytes, kPageBytes), PROT_NONE);
}

bool FakeMemory::is_device_address(const void* address) const {
  const auto at = reinterpret_cast<uintptr_t>(address), base = reinterpret_cast<uintptr_t>(device_base_);
  return at >= base && at - base < kReserveBytes;
}

std::byte* FakeMemory::translate(const void* address, size_t bytes) const {
  if (!is_device_address(address)) return nullptr;
  const size_t offset = static_cast<size_t>(static_cast<const std::byte*>(address) - device_base_);
  std::lock_guard lock(mutex_);
  auto it = live_.upper_bound(offset);
  if (it == live_.begin()) return nullptr;
  --it;
  const size_t inside = offset - it->first;
  // One past the end is a fair address of nothing.
  if (inside > it->second || bytes > it->second - inside) return nullptr;
  return real_base_ + offset;
}

std::string FakeMemory::leaks() const {
  std::lock_guard lock(mutex_);
  if (live_.empty()) return {};
  std::string text = format("fake device: {} allocations were not freed:", live_.size());
  int shown = 0;
  for (const auto& [offset, bytes] : live_) {
    if (++shown > 8) return text + " ...";
    text += format("{} {} bytes at {}", shown > 1 ? "," : "", bytes, fmt::ptr(device_base_ + offset));
  }
  return text;
}

uint64_t FakeMemory::live_allocations() const {
  std::lock_guard lock(mutex_);
  return live_.size();
}
uint64_t FakeMemory::live_bytes() const {
  std::lock_guard lock(mutex_);
  return live_bytes_;
}
uint64_t FakeMemory::peak_bytes() const {
  std::lock_guard lock(mutex_);
  return peak_bytes_;
}

}  // namespace pointsman
