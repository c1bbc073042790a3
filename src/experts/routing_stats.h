// SPDX-License-Identifier: Apache-2.0
//
// What a cache of experts lives on: how unevenly a trace's experts are chosen, and how many of them stay from one token to the next.
#pragma once

#include <vector>

#include "experts/routing_trace.h"

namespace pointsman {

struct RoutingStats {
  struct Layer {
    std::vector<double> frequency;  // by expert: share of the tokens that chose it; the sum is top_k
    double kept = 0;    // share of a token's experts that the token before it in the same run chose, too; 0 without such a pair
    double chance = 0;  // what `kept` would be if tokens chose with these frequencies, each for itself: sum of squares / top_k
  };
  std::vector<Layer> layers;

  double kept() const;    // means over the layers
  double chance() const;
  // Frequencies from the most chosen expert of a layer to its least chosen, mean over the layers. In short traces chance alone makes
  // the first ones larger.
  std::vector<double> by_rank() const;
};

// REQUIRES: trace.check() is ok.
RoutingStats routing_stats(const RoutingTrace& trace);

}  // namespace pointsman
