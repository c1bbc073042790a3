// SPDX-License-Identifier: Apache-2.0
#include "ops/bench/machine_limits.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>

#include "base/log.h"
#include "base/thread_pool.h"
#include "ops/bench/limit_loops.h"

namespace pointsman::ops {
namespace {

double seconds(FunctionRef<void()> work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

float read_sum(const float* p, int64_t n) {
  float s[8] = {};
  for (int64_t i = 0; i < n; i += 8) {
    for (int j = 0; j < 8; ++j) s[j] += p[i + j];
  }
  return s[0] + s[1] + s[2] + s[3] + s[4] + s[5] + s[6] + s[7];
}

float multiply_add_chains(int64_t steps) {  // multiply and add apart: the reference has no fma instruction
  float acc[kFmaChains] = {};
  for (int64_t i = 0; i < steps; ++i) {
    for (float& v : acc) v = v * 0.5f + 1.0f;
  }
  float sum = 0;
  for (const float v : acc) sum += v;
  return sum;
}

LimitLoops loops_of(Isa isa) {
  return isa == Isa::kAvx512 ? limit_loops_avx512() : isa == Isa::kAvx2 ? limit_loops_avx2() : limit_loops_scalar();
}

constexpr int64_t kRange = int64_t{1} << 18;  // floats: 1 MiB, 20 us or more: long against handing out a range
constexpr int64_t kWindow = 32;               // ranges

}  // namespace

LimitLoops limit_loops_scalar() {
  return {read_sum, multiply_add_chains, nullptr, nullptr, 1, [](const float* from, float* to, int64_t n) { std::memcpy(to, from, static_cast<size_t>(n) * 4); }};
}

Result<MachineLimits> measure_machine_limits(Device& device, ThreadPool& pool, Isa isa, const CpuFeatures& cpu, const LimitOptions& options) {
  if (!device.host_visible()) return error(StatusCode::kUnsupported, "machine limits: device {} is not the host", device.name());
  const LimitLoops loops = loops_of(isa);
  std::atomic<float> sink{0};  // every result goes here, so no loop is dead code
  const auto keep = [&](float v) { sink.store(v, std::memory_order_relaxed); };
  MachineLimits limits{.threads = pool.num_threads()};

  const int64_t ranges = std::max<int64_t>(1, options.read_bytes / (kRange * 4));
  PM_ASSIGN_OR_RETURN(void* memory, device.allocate(static_cast<size_t>(ranges * kRange * 4)));
  std::memset(memory, 0, static_cast<size_t>(ranges * kRange * 4));
  float* const memory_floats = static_cast<float*>(memory);
  const float* p = memory_floats;
  // Short windows, many of them: on a shared machine half a quiet millisecond is found more easily than a quiet second. They wander over all
  // of the memory, so that a window has left the caches when it is read again.
  const int64_t window = std::min<int64_t>(ranges, kWindow), windows = ranges / window;
  // 12 chains at two per cycle are 6 cycles a step: about 0.3 ms per range.
  constexpr int64_t kSteps = 200'000;
  const int64_t fma_ranges = 4 * pool.num_threads();

  double read_one = 1e9, read_all = 1e9, copy_one = 1e9, copy_all = 1e9, fma_one = 1e9, fma_all = 1e9, bf16_one = 1e9, bf16_all = 1e9, int8_one = 1e9, int8_all = 1e9;
  // Interleaved, so that a disturbance of a second does not spoil all repeats of one figure.
  for (int64_t repeat = 0; repeat < options.repeats * windows; ++repeat) {
    const float* here = p + repeat % windows * window * kRange;
    read_one = std::min(read_one, seconds([&] { keep(loops.read(here, window * kRange)); }));
    here = p + (repeat + windows / 2) % windows * window * kRange;
    read_all = std::min(read_all, seconds([&] {
      pool.parallel_for(window, 1, [&](int64_t begin, int64_t end) { keep(loops.read(here + begin * kRange, (end - begin) * kRange)); });
    }));
    // Half a window to the other half: as many bytes move as are read above. Windows of their own, which were not read a moment ago.
    if (const int64_t half = window / 2; half > 0) {
      float* from = memory_floats + (repeat + windows / 4) % windows * window * kRange;
      copy_one = std::min(copy_one, seconds([&] { loops.copy(from, from + half * kRange, half * kRange); }));
      from = memory_floats + (repeat + windows * 3 / 4) % windows * window * kRange;
      copy_all = std::min(copy_all, seconds([&] {
        pool.parallel_for(half, 1, [&](int64_t begin, int64_t end) {
          loops.copy(from + begin * kRange, from + (half + begin) * kRange, (end - begin) * kRange);
        });
      }));
    }
    fma_one = std::min(fma_one, seconds([&] { keep(loops.fma(kSteps)); }));
    fma_all = std::min(fma_all, seconds([&] { pool.parallel_for(fma_ranges, 1, [&](int64_t, int64_t) { keep(loops.fma(kSteps)); }); }));
    if (loops.int8 != nullptr && cpu.avx512_vnni) {
      int8_one = std::min(int8_one, seconds([&] { keep(loops.int8(kSteps)); }));
      int8_all = std::min(int8_all, seconds([&] { pool.parallel_for(fma_ranges, 1, [&](int64_t, int64_t) { keep(loops.int8(kSteps)); }); }));
    }
    if (loops.bf16 == nullptr || !cpu.avx512_bf16) continue;
    bf16_one = std::min(bf16_one, seconds([&] { keep(loops.bf16(kSteps)); }));
    bf16_all = std::min(bf16_all, seconds([&] { pool.parallel_for(fma_ranges, 1, [&](int64_t, int64_t) { keep(loops.bf16(kSteps)); }); }));
  }
  device.free(memory, static_cast<size_t>(ranges * kRange * 4));

  const double bytes = static_cast<double>(window * kRange * 4), flops = 2.0 * kFmaChains * loops.lanes * static_cast<double>(kSteps);
  limits.read_gb_s_one = bytes / read_one * 1e-9;
  limits.read_gb_s = bytes / std::min(read_one, read_all) * 1e-9;
  if (copy_one < 1e9) {
    const double copied = static_cast<double>(window / 2 * 2 * kRange * 4);
    limits.copy_gb_s_one = copied / copy_one * 1e-9;
    limits.copy_gb_s = copied / std::min(copy_one, copy_all) * 1e-9;
  }
  limits.fma_gflop_s_one = flops / fma_one * 1e-9;
  limits.fma_gflop_s = flops * static_cast<double>(fma_ranges) / fma_all * 1e-9;
  if (bf16_one < 1e9) {
    limits.bf16_gflop_s_one = 2 * flops / bf16_one * 1e-9;
    limits.bf16_gflop_s = 2 * flops * static_cast<double>(fma_ranges) / bf16_all * 1e-9;
  }
  if (int8_one < 1e9) {
    limits.int8_gop_s_one = 4 * flops / int8_one * 1e-9;
    limits.int8_gop_s = 4 * flops * static_cast<double>(fma_ranges) / int8_all * 1e-9;
  }
  // Cores share no arithmetic units: n threads below 0.8 n times one thread never had their cores to themselves.
  limits.disturbed = limits.fma_gflop_s < 0.8 * limits.threads * limits.fma_gflop_s_one;
  return limits;
}

void measure_read_rate(ThreadPool& pool, Isa isa, const void* memory, size_t bytes, int64_t first, int64_t count, std::vector<double>& gb_s) {
  const LimitLoops loops = loops_of(isa);
  const int64_t window_bytes = kWindow * kRange * 4, windows = static_cast<int64_t>(bytes) / window_bytes;
  if (windows < 4) return;
  std::atomic<float> sink{0};
  for (int64_t i = first; i < first + count; ++i) {
    const float* here = static_cast<const float*>(memory) + i % windows * kWindow * kRange;
    const double s = seconds([&] {
      pool.parallel_for(kWindow, 1,
                        [&](int64_t begin, int64_t end) { sink.store(loops.read(here + begin * kRange, (end - begin) * kRange), std::memory_order_relaxed); });
    });
    gb_s.push_back(static_cast<double>(window_bytes) / s * 1e-9);
  }
}

}  // namespace pointsman::ops
