// SPDX-License-Identifier: Apache-2.0
#include "cli/stream_rate.h"

#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <vector>

#include "base/thread_pool.h"
#include "cli/quantiles.h"

namespace pointsman::cli {
namespace {

constexpr int64_t kRangeBytes = 1 << 20;
constexpr int kPasses = 7;

// Eight independent sums: the loads, not the additions, are the limit. Plain 64-bit lanes, which the compiler widens to the baseline's
// vectors; on the machines measured so far wider ones read no faster from DRAM.
uint64_t sum(const uint64_t* p, int64_t n) {
  uint64_t s[8] = {};
  for (int64_t i = 0; i + 8 <= n; i += 8) {
    for (int64_t j = 0; j < 8; ++j) s[j] += p[i + j];
  }
  return s[0] + s[1] + s[2] + s[3] + s[4] + s[5] + s[6] + s[7];
}

}  // namespace

double measure_stream_gbps(ThreadPool& pool, uint64_t bytes) {
  const int64_t ranges = static_cast<int64_t>(bytes) / kRangeBytes;
  const size_t mapped = static_cast<size_t>(ranges * kRangeBytes);
  void* const memory = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return 0;
  // As weights are held: see CpuDevice.
  madvise(memory, mapped, MADV_HUGEPAGE);
  uint64_t* const words = static_cast<uint64_t*>(memory);
  const int64_t words_per_range = kRangeBytes / 8;
  pool.parallel_for(ranges, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin * words_per_range; i < end * words_per_range; ++i) words[i] = static_cast<uint64_t>(i);
  });
  std::atomic<uint64_t> sink{0};
  std::vector<double> rates;
  for (int pass = 0; pass < kPasses; ++pass) {
    const auto start = std::chrono::steady_clock::now();
    pool.parallel_for(ranges, 1, [&](int64_t begin, int64_t end) {
      sink += sum(words + begin * words_per_range, (end - begin) * words_per_range);
    });
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    rates.push_back(static_cast<double>(mapped) / seconds * 1e-9);
  }
  munmap(memory, mapped);
  return median(rates);
}

}  // namespace pointsman::cli
