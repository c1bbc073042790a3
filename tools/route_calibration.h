// SPDX-License-Identifier: Apache-2.0
//
// Routers for wanted routes. A token has a code of standard normal numbers; a router's logit of expert e is offset[e] + kNoise * direction[e] . h,
// where h, of variance 1 per dimension, is the token's code mixed with a mean of the codes before it (position_kernel.h). Offsets are found
// from simulated tokens so that frequencies come out as wanted, kernel and mixture so that as many experts stay as wanted.
#pragma once

#include <functional>
#include <vector>

#include "base/thread_pool.h"
#include "tools/position_kernel.h"
#include "tools/routing_target.h"

namespace pointsman::tools {

// Deviation of the noise in a logit: that of a Gumbel distribution, with which offsets would be logarithms of weights.
inline constexpr double kNoise = 1.28;

struct CalibratedRoutes {
  int code_dims = 0;
  PositionKernel kernel;
  // h = code * code_factor + (mean of codes under the kernel) * mean_factor
  double code_factor = 0, mean_factor = 0;
  struct Layer {
    std::vector<float> offset;     // [experts]
    std::vector<float> direction;  // [experts, code_dims], each of length 1
  };
  std::vector<Layer> layers;
  // Of the simulated tokens, means over the layers; by_rank: frequencies in the order of the wanted ones.
  double kept = 0, chance = 0;
  std::vector<double> by_rank;
};

// `kernel_of`: the kernel for a rate (position_kernel.h). kInvalidArgument: more shall stay than routes of this kind can keep.
// The same for any number of threads.
Result<CalibratedRoutes> calibrate_routes(const RoutingTarget& target, int code_dims, const std::function<PositionKernel(double rate)>& kernel_of, uint64_t seed,
                                          ThreadPool& pool);

}  // namespace pointsman::tools
