// SPDX-License-Identifier: Apache-2.0
//
// Operators of the mixture beside another way to do the same work, in one interleaved run: the fused gate beside separate passes; permute and
// combine beside a copy of as many bytes past the caches, and beside the plain chain of expand, sort and gather; and what routing and
// moving rows cost of a whole layer.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"
#include "ops/kernels.h"

namespace pointsman::ops {

struct Comparison {
  std::string op, shape;
  std::string other;               // what stands beside it
  double median_s = 0, low_s = 0, high_s = 0;       // of the op: median, 10th and 90th percentile
  double other_median_s = 0, other_low_s = 0, other_high_s = 0;
  double bytes = 0;                // that the op must read and write in memory, 0: they stay in the caches
  double ratio() const { return median_s > 0 ? other_median_s / median_s : 0; }
};

struct LayerShare {
  std::string step;
  double median_s = 0, share = 0;
};

struct MoeBench {
  std::vector<Comparison> comparisons;
  std::string layer;               // its shape
  std::vector<LayerShare> shares;
};

struct MoeBenchOptions {
  int repeats = 15;
  std::string filter;  // part of "op shape"; empty: all. "layer" asks for the shares
};

// Needs up to 2.2 GiB of memory from `device`, host-visible.
Result<MoeBench> bench_moe(Device& device, ThreadPool& pool, const KernelTable& table, const MoeBenchOptions& options = {});

std::string moe_bench_table(const MoeBench& bench);
std::string moe_bench_markdown(const MoeBench& bench);
void add_moe_bench(const MoeBench& bench, Json& out);  // "comparisons" and "layer"

}  // namespace pointsman::ops
