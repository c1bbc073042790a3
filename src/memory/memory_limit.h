// SPDX-License-Identifier: Apache-2.0
//
// How much memory this process may have, asked of the kernel: the machine's available memory, and the limits of every memory
// cgroup (v1 and v2) from the process's own up to the root of the mount. And how much it has: resident set, now and at its
// peak.
//
// Every function takes the file system and a prefix for "/proc" and the cgroup mounts, so that a test can show it another
// machine. Files that are missing or make no sense count as "no limit known"; nothing here fails a start.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/fs.h"

namespace pointsman {

struct MemoryLimits {
  std::optional<uint64_t> available_bytes;  // MemAvailable
  // Of the cgroup level that leaves least.
  std::optional<uint64_t> container_limit_bytes;
  uint64_t container_used_bytes = 0;  // without page cache, which yields to us
  std::string container_path;         // the directory with the limit, for messages

  // What the container's limit leaves, or nothing when there is no limit.
  std::optional<uint64_t> container_room_bytes() const;
};

// A limit of `max` (v2), or beyond 2^62 (v1's way to say none), is no limit. v2's memory.high counts like memory.max: beyond it
// the kernel slows the process down until it is of no use.
MemoryLimits read_memory_limits(FileSystem& fs = FileSystem::real(), const std::string& root = "");

// The default of `--memory`: 80 % of the smaller of MemAvailable and the container's room. The rest is for the binary, libc and
// the neighbours. 1 GiB when the kernel says nothing.
uint64_t default_budget_bytes(const MemoryLimits& limits);
uint64_t default_budget_bytes();

// VmRSS and VmHWM of /proc/self/status; 0 when unknown. The kernel's counters lag by some hundred KiB per thread.
uint64_t current_rss_bytes(FileSystem& fs = FileSystem::real(), const std::string& root = "");
uint64_t peak_rss_bytes(FileSystem& fs = FileSystem::real(), const std::string& root = "");

}  // namespace pointsman
