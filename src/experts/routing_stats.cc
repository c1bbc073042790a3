// SPDX-License-Identifier: Apache-2.0
#include "experts/routing_stats.h"

#include <algorithm>
#include <functional>

namespace pointsman {

RoutingStats routing_stats(const RoutingTrace& trace) {
  RoutingStats stats;
  const int64_t tokens = trace.num_tokens();
  std::vector<int64_t> chosen_at(static_cast<size_t>(trace.num_experts)), counts(static_cast<size_t>(trace.num_experts));
  for (int layer = 0; layer < trace.num_layers; ++layer) {
    std::fill(chosen_at.begin(), chosen_at.end(), -1);
    std::fill(counts.begin(), counts.end(), 0);
    int64_t kept = 0, followers = 0;
    size_t run = 0;
    for (int64_t token = 0; token < tokens; ++token) {
      while (run < trace.run_starts.size() && trace.run_starts[run] < token) ++run;
      const bool follows = token > 0 && !(run < trace.run_starts.size() && trace.run_starts[run] == token);
      followers += follows ? 1 : 0;
      for (const int32_t id : trace.experts(token, layer)) {
        const auto e = static_cast<size_t>(id);
        kept += follows && chosen_at[e] == token - 1 ? 1 : 0;
        chosen_at[e] = token;
        ++counts[e];
      }
    }
    RoutingStats::Layer& out = stats.layers.emplace_back();
    double squares = 0;
    for (const int64_t n : counts) {
      out.frequency.push_back(tokens == 0 ? 0 : static_cast<double>(n) / static_cast<double>(tokens));
      squares += out.frequency.back() * out.frequency.back();
    }
    out.chance = squares / trace.top_k;
    if (followers > 0) out.kept = static_cast<double>(kept) / static_cast<double>(followers * trace.top_k);
  }
  return stats;
}

double RoutingStats::kept() const {
  double sum = 0;
  for (const Layer& l : layers) sum += l.kept;
  return layers.empty() ? 0 : sum / static_cast<double>(layers.size());
}

double RoutingStats::chance() const {
  double sum = 0;
  for (const Layer& l : layers) sum += l.chance;
  return layers.empty() ? 0 : sum / static_cast<double>(layers.size());
}

std::vector<double> RoutingStats::by_rank() const {
  std::vector<double> mean(layers.empty() ? 0 : layers[0].frequency.size());
  for (const Layer& l : layers) {
    std::vector<double> sorted = l.frequency;
    std::sort(sorted.begin(), sorted.end(), std::greater<>());
    for (size_t i = 0; i < mean.size(); ++i) mean[i] += sorted[i] / static_cast<double>(layers.size());
  }
  return mean;
}

}  // namespace pointsman
