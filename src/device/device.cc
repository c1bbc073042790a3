// SPDX-License-Identifier: Apache-2.0
#include "device/device.h"

#include "base/checked_math.h"

namespace pointsman {

Result<Buffer> Buffer::make(Device& device, MemoryBudget& budget, MemoryClass c, size_t bytes) {
  bytes = align_up(bytes == 0 ? 1 : bytes, kPageBytes);
  PM_ASSIGN_OR_RETURN(Charge charge, Charge::make(budget, c, bytes));
  PM_ASSIGN_OR_RETURN(void* const data, device.allocate(bytes));
  Buffer buffer;
  buffer.device_ = &device;
  buffer.charge_ = std::move(charge);
  buffer.data_ = data;
  buffer.bytes_ = bytes;
  return buffer;
}

Buffer& Buffer::operator=(Buffer&& o) noexcept {
  if (this != &o) {
    reset();
    device_ = std::exchange(o.device_, nullptr);
    charge_ = std::move(o.charge_);
    data_ = std::exchange(o.data_, nullptr);
    bytes_ = o.bytes_;
  }
  return *this;
}

void Buffer::reset() {
  if (data_ == nullptr) return;
  device_->free(std::exchange(data_, nullptr), bytes_);
  charge_.reset();
}

}  // namespace pointsman
