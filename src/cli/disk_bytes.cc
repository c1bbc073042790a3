// SPDX-License-Identifier: Apache-2.0
#include "cli/disk_bytes.h"

#include <sys/sysmacros.h>

#include <fstream>

#include "base/log.h"

namespace pointsman::cli {

DiskCounter::DiskCounter(uint64_t device) : path_(format("/sys/dev/block/{}:{}/stat", major(device), minor(device))) {}

uint64_t DiskCounter::bytes_read() const {
  // reads, reads merged, sectors of 512 bytes, ... (kernel documentation, block/stat)
  std::ifstream in(path_);
  uint64_t reads = 0, merged = 0, sectors = 0;
  return in >> reads >> merged >> sectors ? sectors * 512 : 0;
}

}  // namespace pointsman::cli
