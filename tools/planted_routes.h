// SPDX-License-Identifier: Apache-2.0
//
// Wanted routes inside a random qwen3_moe checkpoint. The first 1 + 2n + m * layers dimensions of the residual stream carry them and nothing else:
//   0           a constant, the same for every token: routers turn it into each expert's popularity;
//   1 .. n      the token's code, n random numbers of its embedding: routers turn them into noise of each expert's own;
//   n+1 .. 2n   the mean of the codes of this token and those before it, which head 0 of layer 0 writes: what makes experts stay;
//   then m for each layer, which the experts of the layer before write and only this layer's router reads: a small part of its noise, so that
//               routes cannot be told before those experts have been computed.
// Nothing else writes these dimensions (rows of o_proj and down_proj are zero) and routers read no others, so the residual stream's scale,
// which its norm divides by, changes all logits of a token alike and never the choice. All other weights are as without routes.
#pragma once

#include "tools/random_checkpoint.h"
#include "tools/route_calibration.h"

namespace pointsman::tools {

// Numbers in a token's code; smaller models have fewer.
inline constexpr int64_t kMostCodeDims = 63;
// Numbers of a layer's own; models with little room for them have fewer, or none.
inline constexpr int64_t kMostOwnDims = 4;

// Changes `model`, made by random_qwen3_moe(shape), and gives it a label, routing.json. `routing`: see tools/routing_target.h; `seed`: that of
// the weights. kInvalidArgument: routes that cannot be had, with what would do.
Status plant_routes(RandomModel& model, const RandomShape& shape, const std::string& routing, uint64_t seed, int threads);

}  // namespace pointsman::tools
