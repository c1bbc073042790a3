// SPDX-License-Identifier: Apache-2.0
#include "tools/routing_target.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "base/fs.h"
#include "base/log.h"
#include "base/philox.h"
#include "cli/routing_trace_file.h"
#include "experts/routing_stats.h"

namespace pointsman::tools {
namespace {

// Ids that a Zipf-Markov trace is measured on.
constexpr int64_t kMeasuredIds = int64_t{1} << 21;

std::vector<double> shuffled(std::vector<double> values, uint64_t seed, uint32_t layer) {
  for (size_t i = values.size(); i > 1; --i) {
    const double draw = uniform_open(random_u32(seed, RandomPurpose::kTest, 1, layer, i, 0));
    std::swap(values[i - 1], values[static_cast<size_t>(draw * static_cast<double>(i))]);
  }
  return values;
}

double chance_of(const RoutingTarget& t) {
  double sum = 0;
  for (const auto& layer : t.frequency) sum += std::inner_product(layer.begin(), layer.end(), layer.begin(), 0.0) / t.shape.top_k;
  return sum / t.shape.layers;
}

Result<RoutingTarget> zipf_target(const std::string& text, RoutingTarget target) {
  constexpr const char* kOfTheModel[] = {"layers", "experts", "top-k", "tokens"};
  for (const char* key : kOfTheModel) {
    if (text.find(format(":{}=", key)) == std::string::npos && text.find(format(",{}=", key)) == std::string::npos) continue;
    return error(StatusCode::kInvalidArgument, "{}: {} is the model's; expected zipf:s=0.6,stay=0.3,seed=0, any of them", text, key);
  }
  PM_ASSIGN_OR_RETURN(ZipfMarkov z, parse_zipf_markov(text));
  z.num_layers = 1;
  z.num_experts = target.shape.experts;
  z.top_k = target.shape.top_k;
  z.num_tokens = kMeasuredIds / z.top_k;
  const RoutingStats stats = routing_stats(make_trace(z));
  const std::vector<double> by_rank = frequencies_of(stats.by_rank(), z.top_k);
  for (int layer = 0; layer < target.shape.layers; ++layer) target.frequency.push_back(shuffled(by_rank, z.seed, static_cast<uint32_t>(layer)));
  target.kept = stats.kept();
  target.chance = chance_of(target);
  return target;
}

Result<RoutingTarget> trace_target(const std::string& path, RoutingTarget target, uint64_t seed) {
  PM_ASSIGN_OR_RETURN(const cli::RecordedRoutes routes, cli::read_routes(FileSystem::real(), path));
  const RoutingTrace& trace = routes.trace;
  const int64_t pairs = trace.num_tokens() - static_cast<int64_t>(trace.run_starts.size());
  if (pairs < 100) return error(StatusCode::kInvalidArgument, "{}: {} tokens that follow another; expected 100 or more to tell frequencies and persistence from", path, pairs);
  const RoutingStats stats = routing_stats(trace);
  const RoutingShape& shape = target.shape;
  const bool is_same = trace.num_layers == shape.layers && trace.num_experts == shape.experts;
  for (int layer = 0; layer < shape.layers; ++layer) {
    std::vector<double> shares = stats.layers[static_cast<size_t>(int64_t{layer} * trace.num_layers / shape.layers)].frequency;
    if (!is_same) {
      std::sort(shares.begin(), shares.end(), std::greater<>());
      shares = shuffled(stretch_ranks(shares, static_cast<size_t>(shape.experts)), seed, static_cast<uint32_t>(layer));
    }
    target.frequency.push_back(frequencies_of(shares, shape.top_k));
  }
  target.chance = chance_of(target);
  const double beyond = stats.chance() < 1 ? std::max(0.0, (stats.kept() - stats.chance()) / (1 - stats.chance())) : 0;
  target.kept = target.chance + beyond * (1 - target.chance);
  return target;
}

}  // namespace

std::vector<double> frequencies_of(const std::vector<double>& shares, int top_k) {
  const auto scaled = [&](double factor) {
    std::vector<double> f;
    for (const double s : shares) f.push_back(std::clamp(s * factor, kLeastFrequency, kMostFrequency));
    return f;
  };
  double low = 0, high = 1;
  const auto sum = [&](double factor) {
    const std::vector<double> f = scaled(factor);
    return std::accumulate(f.begin(), f.end(), 0.0);
  };
  // With few that are ever chosen the limits may not leave room for the sum; then all others share the rest.
  while (sum(high) < top_k && high < 1e12) high *= 2;
  for (int i = 0; i < 100; ++i) (sum((low + high) / 2) < top_k ? low : high) = (low + high) / 2;
  std::vector<double> f = scaled(high);
  const double rest = top_k - std::accumulate(f.begin(), f.end(), 0.0);
  double room = 0;
  for (const double x : f) room += rest > 0 ? kMostFrequency - x : x - kLeastFrequency;
  if (room > 0) {
    for (double& x : f) x += rest * (rest > 0 ? kMostFrequency - x : x - kLeastFrequency) / room;
  }
  return f;
}

std::vector<double> stretch_ranks(const std::vector<double>& shares, size_t ranks) {
  std::vector<double> sums = {0};
  for (const double s : shares) sums.push_back(sums.back() + s);
  const auto sum_below = [&](double x) {  // of the first x of the old ranks
    const size_t whole = std::min(static_cast<size_t>(x), shares.size());
    return whole == shares.size() ? sums.back() : sums[whole] + shares[whole] * (x - static_cast<double>(whole));
  };
  std::vector<double> out;
  const double width = static_cast<double>(shares.size()) / static_cast<double>(ranks);
  for (size_t i = 0; i < ranks; ++i) out.push_back(std::max(0.0, sum_below(static_cast<double>(i + 1) * width) - sum_below(static_cast<double>(i) * width)));
  return out;
}

Result<RoutingTarget> routing_target(const std::string& text, const RoutingShape& shape, uint64_t seed) {
  if (shape.top_k >= shape.experts) return error(StatusCode::kInvalidArgument, "{} of {} experts per token: there is nothing to choose", shape.top_k, shape.experts);
  if (shape.layers > 1024 || shape.experts > 4096 || shape.top_k > 64) {
    return error(StatusCode::kInvalidArgument, "{} layers of {} experts, {} per token: expected at most 1024, 4096 and 64", shape.layers, shape.experts, shape.top_k);
  }
  RoutingTarget target{.text = text, .shape = shape};
  if (text == "zipf" || text.starts_with("zipf:")) return zipf_target(text, std::move(target));
  if (text.starts_with("trace:") && text.size() > 6) return trace_target(text.substr(6), std::move(target), seed);
  return error(StatusCode::kInvalidArgument, "'{}': expected zipf:s=0.6,stay=0.3,seed=0 (any of them) or trace:PATH, routes that 'pointsman trace --what router' recorded", text);
}

}  // namespace pointsman::tools
