// SPDX-License-Identifier: Apache-2.0
//
// How fast this machine reads memory: what decode is held against.
#pragma once

#include <cstdint>

namespace pointsman {
class ThreadPool;
}

namespace pointsman::cli {

// GB/s (1e9) at which all threads of the pool together read a buffer of `bytes` once; the median of several passes. The buffer should be
// several times the last-level cache. 0 when it cannot be allocated.
double measure_stream_gbps(ThreadPool& pool, uint64_t bytes);

}  // namespace pointsman::cli
