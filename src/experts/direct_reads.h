// SPDX-License-Identifier: Apache-2.0
//
// Whether experts are read past the page cache (O_DIRECT).
//
// Past it: no copy, no page that pushes another out, and what the process may have is what its budget says - under a container's
// limit, cached pages count. Through it: what does not fit into the slots may still be in memory that nobody needs, five times as
// fast as a disk. So memory decides first, then a measurement.
#pragma once

#include <cstdint>
#include <string>

#include "checkpoint/checkpoint.h"
#include "device/device.h"
#include "experts/catalogue.h"
#include "memory/budget.h"
#include "memory/memory_limit.h"
#include "pointsman/status.h"

namespace pointsman {

// Can free memory hold every expert in the page cache, beside a process of `process_bytes`? Then reads should go through it.
bool page_cache_holds(const ExpertCatalogue& catalogue, uint64_t process_bytes, const MemoryLimits& limits);

struct DirectChoice {
  bool direct = false;
  // 0: not measured. Bytes per second of cold reads of experts.
  double direct_rate = 0, cached_rate = 0;
  std::string why;  // for people: "1.31 GB/s past the page cache, 1.02 through it"
};

// Reads a few experts both ways, in turn, each cold, for at most a quarter of a second or so; remembers the result by device and method
// for the life of the process. Whatever fails on the way - a file system without O_DIRECT, a failing disk - decides for the page cache:
// the readers will meet it again. Charges and returns two read buffers.
DirectChoice measure_direct_reads(const Checkpoint& checkpoint, const ExpertCatalogue& catalogue, ReadMethod method, Device& host,
                                  MemoryBudget& budget);

}  // namespace pointsman
