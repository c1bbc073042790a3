// SPDX-License-Identifier: Apache-2.0
//
// Routers for wanted routes. A token has a code of standard normal numbers; a router's logit of expert e is offset[e] + kNoise * direction[e] . h,
// where h, of variance 1 per dimension, is the token's code mixed with a mean of the codes before it (position_kernel.h), followed by a few numbers
// that nobody knows before the layer comes. Offsets are found from simulated tokens so that frequencies come out as wanted, kernel and mixture so
// that as many experts stay as wanted.
#pragma once

#include <functional>
#include <vector>

#include "base/thread_pool.h"
#include "tools/position_kernel.h"
#include "tools/routing_target.h"

namespace pointsman::tools {

// Deviation of the noise in a logit: that of a Gumbel distribution, with which offsets would be logarithms of weights.
inline constexpr double kNoise = 1.28;

// Share of the noise's variance that comes from the numbers of a layer's own, in all layers but the first, where no expert stays beyond chance; with s of
// the experts staying beyond it, (1 - s)^2 of this. With it, four of five experts are foreseen
// from the layer before (shape M, s=0.8, stay=0.3: 82.7 %), near what the bundled trained model has (76.2 %).
inline constexpr double kOwnNoise = 0.2;

struct CalibratedRoutes {
  int code_dims = 0, own_dims = 0;
  PositionKernel kernel;
  // h = code * code_factor + (mean of codes under the kernel) * mean_factor
  double code_factor = 0, mean_factor = 0;
  struct Layer {
    std::vector<float> offset;     // [experts]
    std::vector<float> direction;  // [experts, code_dims + own_dims], each of length 1
    double weight_squares = 0;     // mean sum of the squares of a token's routing weights
  };
  std::vector<Layer> layers;
  // Of the simulated tokens, means over the layers; by_rank: frequencies in the order of the wanted ones.
  double kept = 0, chance = 0;
  std::vector<double> by_rank;
};

// `kernel_of`: the kernel for a rate (position_kernel.h). kInvalidArgument: more shall stay than routes of this kind can keep.
// The same for any number of threads.
Result<CalibratedRoutes> calibrate_routes(const RoutingTarget& target, int code_dims, int own_dims, const std::function<PositionKernel(double rate)>& kernel_of, uint64_t seed,
                                          ThreadPool& pool);

}  // namespace pointsman::tools
