// SPDX-License-Identifier: Apache-2.0
//
// Times of ops at the sizes that models use, each beside what the machine's limits would allow. For bench/micro and the command line.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "ops/bench/machine_limits.h"
#include "ops/kernels.h"

namespace pointsman::ops {

struct OpTiming {
  std::string op;       // "matmul_bf16_bf16"
  std::string shape;    // "64 x 2048 -> 768"
  double bytes = 0;     // that must come from memory: weights and cache; 0 when they stay in the caches
  double flops = 0;
  double peak_gflop_s = 0;
  double best_s = 0, median_s = 0;
  double limit_s = 0;   // the larger of bytes over bandwidth and flops over peak
  double fraction() const { return best_s > 0 ? limit_s / best_s : 0; }
};

struct OpBenchOptions {
  int repeats = 15;
  std::string filter;                             // part of "op shape"; empty: all
  int64_t weight_bytes = int64_t{512} << 20;      // memory that decode-like ops wander through, larger than the caches
};

// Interleaves the repeats of all ops: a disturbance of a second hits every op once, not one op always.
Result<std::vector<OpTiming>> bench_ops(Device& device, ThreadPool& pool, const KernelTable& table, const MachineLimits& limits,
                                        const OpBenchOptions& options = {});

// For people, and for programs.
std::string op_bench_table(const MachineLimits& limits, const std::vector<OpTiming>& timings);
std::string op_bench_markdown(const MachineLimits& limits, const std::vector<OpTiming>& timings);
Json op_bench_json(const MachineLimits& limits, const std::vector<OpTiming>& timings);

}  // namespace pointsman::ops
