// SPDX-License-Identifier: Apache-2.0
//
// Measures which path (ops/panel_paths.h) is fastest on this machine: for shapes of mixtures, formats of weights and rows of an expert, each path
// multiplies a layer's experts, in turn with the others, over weights that come from memory.
#pragma once

#include <span>
#include <string>

#include "base/function_ref.h"
#include "ops/kernels.h"
#include "ops/path_table.h"

namespace pointsman::ops {

// Mixtures of many small and of few large experts; any other is served by the nearest.
inline constexpr MoeShape kTunedShapes[] = {{.experts = 8, .top_k = 2, .hidden = 2048, .width = 4096},
                                            {.experts = 64, .top_k = 8, .hidden = 1024, .width = 512},
                                            {.experts = 128, .top_k = 8, .hidden = 2048, .width = 768},
                                            {.experts = 256, .top_k = 8, .hidden = 4096, .width = 1024}};

struct TuneOptions {
  std::span<const MoeShape> shapes = kTunedShapes;
  int repeats = 9;
  int64_t weight_bytes = int64_t{256} << 20;  // that calls wander through
};

// What was measured for one number of rows.
struct TuneTiming {
  MoeShape shape;
  DType format = DType::kBF16;
  int64_t rows = 0;
  double quartile_s[kNumPanelPaths] = {};  // of a group of experts; the lowest quartile: other processes only ever slow down. 0: not measured
  PanelPath chosen = PanelPath::kSmallTile, built_in = PanelPath::kSmallTile;
};
struct Tuning {
  PathTable table;
  std::vector<TuneTiming> timings;
};

// A path is chosen over the built-in one when it is at least 3 % faster in four of five turns and at best. Needs weight_bytes and some 100 MiB of memory. `progress` after each shape and
// format, with how many are done and how many there are.
Result<Tuning> tune_paths(Device& device, ThreadPool& pool, const KernelTable& kernels, const MachineKey& key, const TuneOptions& options,
                          FunctionRef<void(int done, int all)> progress);

// Table for people: where the measured choice is not the built-in one, and what it gains.
std::string tuning_text(const Tuning& tuning);

}  // namespace pointsman::ops
