// SPDX-License-Identifier: Apache-2.0
//
// Which routes a checkpoint of random weights shall have: how often each expert of each layer is chosen, and how many experts stay from
// one token to the next.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "pointsman/status.h"

namespace pointsman::tools {

struct RoutingShape {
  int layers = 0, experts = 0, top_k = 0;  // MoE layers
};

struct RoutingTarget {
  std::string text;  // as it was asked for
  RoutingShape shape;
  std::vector<std::vector<double>> frequency;  // by layer and expert: share of the tokens that choose it; each layer's sum is top_k
  // Mean over the layers: share of a token's experts that the token before chose, too; and what it would be if tokens chose each for itself.
  double kept = 0, chance = 0;
};

// Every frequency lies within these, so that no expert is dead and none is in every token.
inline constexpr double kLeastFrequency = 1e-4, kMostFrequency = 0.995;

// "zipf:s=0.6,stay=0.3,seed=0" (each with that default): the frequencies and persistence of make_trace (experts/routing_trace.h) with these
// arguments, in an order of popularity of each layer's own.
// "trace:PATH": those of recorded routes (a file or a folder, cli/routing_trace_file.h), layer by layer and expert by expert if there are as many. With
// another number of layers, a layer gets the frequencies that the trace has at its relative depth; with another number of experts, the
// curve of choices over ranks is stretched; in both cases in an order of popularity drawn with `seed`. Persistence beyond chance is kept.
// kInvalidArgument, kNotFound, kIo: words that are not understood, files that are not traces, or a shape in which routes cannot be made.
Result<RoutingTarget> routing_target(const std::string& text, const RoutingShape& shape, uint64_t seed);

// `shares` (>= 0, any sum) scaled to a sum of `top_k`, each within the limits above. REQUIRES: top_k < shares.size().
std::vector<double> frequencies_of(const std::vector<double>& shares, int top_k);
// A falling curve of shares over ranks, stretched to another number of ranks; the sum stays.
std::vector<double> stretch_ranks(const std::vector<double>& shares, size_t ranks);

}  // namespace pointsman::tools
