// SPDX-License-Identifier: Apache-2.0
#include "tools/route_calibration.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

#include "base/log.h"
#include "base/philox.h"
#include "experts/routing_stats.h"
#include "tools/random_values.h"

namespace pointsman::tools {
namespace {

constexpr int64_t kTokens = 8192;         // simulated, to find offsets
constexpr int64_t kSequence = 4096;       // in a row, to find persistence
constexpr double kSlowest = 0.02, kFastest = 1.5;  // rates of kernels
constexpr int kOffsetRounds = 12, kHalvings = 10;

enum Stream : uint32_t { kCodes = 11, kSequenceCodes, kDirections, kOwnNumbers };

// A table of standard normal numbers (Box and Muller).
std::vector<float> normals(uint64_t seed, Stream stream, uint32_t layer, int64_t n) {
  std::vector<float> out(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; i += 2) {
    const double radius = std::sqrt(-2 * std::log(uniform_open(random_u32(seed, RandomPurpose::kTest, stream, layer, static_cast<uint64_t>(i), 0))));
    const double angle = 2 * std::numbers::pi * uniform_open(random_u32(seed, RandomPurpose::kTest, stream, layer, static_cast<uint64_t>(i) + 1, 0));
    out[static_cast<size_t>(i)] = static_cast<float>(radius * std::cos(angle));
    if (i + 1 < n) out[static_cast<size_t>(i) + 1] = static_cast<float>(radius * std::sin(angle));
  }
  return out;
}

void scale_to(std::span<float> v, double length) {
  const float squares = std::inner_product(v.begin(), v.end(), v.begin(), 0.0f);
  for (float& x : v) x *= length == 0 ? 0 : static_cast<float>(length) / std::sqrt(squares);
}

class Calibration {
 public:
  Calibration(const RoutingTarget& target, int code_dims, int own_dims, uint64_t seed, ThreadPool& pool)
      : target_(target), codes_(code_dims), dims_(code_dims + own_dims), experts_(target.shape.experts), seed_(seed), pool_(pool) {
    routes_.code_dims = code_dims;
    routes_.own_dims = own_dims;
    routes_.layers.resize(static_cast<size_t>(target.shape.layers));
    const double stays = std::max(0.0, (target.kept - target.chance) / (1 - target.chance));
    own_noise_ = own_dims > 0 ? kOwnNoise * (1 - stays) * (1 - stays) : 0;
  }

  CalibratedRoutes& routes() { return routes_; }

  void find_offsets() {
    const std::vector<float> h = normals(seed_, kCodes, 0, kTokens * dims_);
    for_each_layer([&](size_t l) {
      CalibratedRoutes::Layer& layer = routes_.layers[l];
      layer.direction = normals(seed_, kDirections, static_cast<uint32_t>(l), int64_t{experts_} * dims_);
      for (int e = 0; e < experts_; ++e) {
        const auto row = std::span(layer.direction).subspan(static_cast<size_t>(e * dims_), static_cast<size_t>(dims_));
        const double own = l > 0 ? own_noise_ : 0;
        scale_to(row.first(static_cast<size_t>(codes_)), std::sqrt(1 - own));
        scale_to(row.subspan(static_cast<size_t>(codes_)), std::sqrt(own));
      }
      const std::vector<float> noise = noise_of(layer, h, kTokens);
      const std::vector<double>& wanted = target_.frequency[l];
      for (const double f : wanted) layer.offset.push_back(static_cast<float>(kNoise * normal_quantile(f)));
      for (int round = 0; round < kOffsetRounds; ++round) {
        std::vector<int64_t> counts(static_cast<size_t>(experts_));
        choose(layer, noise, kTokens, [&](int64_t, const std::vector<int>& ids, const std::vector<float>&) {
          for (const int e : ids) ++counts[static_cast<size_t>(e)];
        });
        for (size_t e = 0; e < wanted.size(); ++e) {
          const double found = (static_cast<double>(counts[e]) + 0.5) / static_cast<double>(kTokens + 1);
          layer.offset[e] += static_cast<float>(0.8 * kNoise * (normal_quantile(wanted[e]) - normal_quantile(found)));
        }
      }
    });
  }

  void set_mixture(PositionKernel kernel, double slow) {
    // Codes are independent: the variance of a sum is the sum of the squares of its weights.
    double squares = 0;
    for (const double w : kernel.weights) squares += w * w;
    const double mean_factor = slow / std::sqrt(squares), code_factor = 1 - slow;
    double total = 0;
    for (size_t d = 0; d < kernel.weights.size(); ++d) total += std::pow(kernel.weights[d] * mean_factor + (d == 0 ? code_factor : 0), 2);
    routes_.kernel = std::move(kernel);
    routes_.mean_factor = mean_factor / std::sqrt(total);
    routes_.code_factor = code_factor / std::sqrt(total);
  }

  // Simulates tokens in a row; gives the share of experts that stay.
  double measure() {
    const std::vector<float> h = sequence();
    const auto layers = static_cast<size_t>(target_.shape.layers), top_k = static_cast<size_t>(target_.shape.top_k);
    RoutingTrace trace{.num_layers = target_.shape.layers, .num_experts = experts_, .top_k = target_.shape.top_k, .run_starts = {0}};
    trace.ids.resize(static_cast<size_t>(kSequence) * layers * top_k);
    for_each_layer([&](size_t l) {
      double squares = 0;
      choose(routes_.layers[l], noise_of(routes_.layers[l], h, kSequence), kSequence, [&](int64_t token, const std::vector<int>& ids, const std::vector<float>& logits) {
        std::copy(ids.begin(), ids.end(), trace.ids.begin() + static_cast<ptrdiff_t>((static_cast<size_t>(token) * layers + l) * top_k));
        double sum = 0, sum_of_squares = 0;
        for (const int e : ids) {
          sum += std::exp(logits[static_cast<size_t>(e)]);
          sum_of_squares += std::exp(2 * logits[static_cast<size_t>(e)]);
        }
        squares += sum_of_squares / (sum * sum);
      });
      routes_.layers[l].weight_squares = squares / static_cast<double>(kSequence);
    });
    const RoutingStats stats = routing_stats(trace);
    routes_.kept = stats.kept();
    routes_.chance = stats.chance();
    // In the order of the wanted frequencies, not of those that chance gave.
    routes_.by_rank.assign(static_cast<size_t>(experts_), 0);
    for (size_t l = 0; l < layers; ++l) {
      std::vector<size_t> order(static_cast<size_t>(experts_));
      std::iota(order.begin(), order.end(), size_t{0});
      std::stable_sort(order.begin(), order.end(), [&](size_t x, size_t y) { return target_.frequency[l][x] > target_.frequency[l][y]; });
      for (size_t i = 0; i < order.size(); ++i) routes_.by_rank[i] += stats.layers[l].frequency[order[i]] / static_cast<double>(layers);
    }
    return routes_.kept;
  }

 private:
  void for_each_layer(const std::function<void(size_t)>& run) {
    pool_.parallel_for(target_.shape.layers, 1, [&](int64_t first, int64_t last) {
      for (int64_t l = first; l < last; ++l) run(static_cast<size_t>(l));
    });
  }

  // [tokens, experts] of directions times h [tokens, dims].
  std::vector<float> noise_of(const CalibratedRoutes::Layer& layer, const std::vector<float>& h, int64_t tokens) const {
    const auto dims = static_cast<size_t>(dims_), experts = static_cast<size_t>(experts_);
    std::vector<float> by_dim(dims * experts), noise(static_cast<size_t>(tokens) * experts);
    for (size_t e = 0; e < experts; ++e) {
      for (size_t j = 0; j < dims; ++j) by_dim[j * experts + e] = static_cast<float>(kNoise) * layer.direction[e * dims + j];
    }
    for (size_t t = 0; t < static_cast<size_t>(tokens); ++t) {
      float* const out = noise.data() + t * experts;
      for (size_t j = 0; j < dims; ++j) {
        const float x = h[t * dims + j];
        const float* const row = by_dim.data() + j * experts;
        for (size_t e = 0; e < experts; ++e) out[e] += x * row[e];
      }
    }
    return noise;
  }

  // The top_k experts of each token, in any order.
  void choose(const CalibratedRoutes::Layer& layer, const std::vector<float>& noise, int64_t tokens, const std::function<void(int64_t, const std::vector<int>&, const std::vector<float>& logits)>& use) const {
    const auto experts = static_cast<size_t>(experts_);
    std::vector<float> logits(experts);
    std::vector<int> ids(experts);
    for (int64_t t = 0; t < tokens; ++t) {
      for (size_t e = 0; e < experts; ++e) logits[e] = layer.offset[e] + noise[static_cast<size_t>(t) * experts + e];
      ids.resize(experts);
      std::iota(ids.begin(), ids.end(), 0);
      std::nth_element(ids.begin(), ids.begin() + target_.shape.top_k - 1, ids.end(), [&](int a, int b) { return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)]; });
      ids.resize(static_cast<size_t>(target_.shape.top_k));
      use(t, ids, logits);
    }
  }

  // h of tokens in a row, the first with a whole past.
  std::vector<float> sequence() const {
    const std::vector<double>& weights = routes_.kernel.weights;
    int64_t reach = static_cast<int64_t>(weights.size());
    while (reach > 1 && (reach > 1024 || weights[static_cast<size_t>(reach - 1)] < 1e-4 * weights[0])) --reach;
    const auto dims = static_cast<size_t>(dims_), code_dims = static_cast<size_t>(codes_), own_dims = dims - code_dims;
    const std::vector<float> codes = normals(seed_, kSequenceCodes, 0, (kSequence + reach) * codes_);
    const std::vector<float> own = normals(seed_, kOwnNumbers, 0, kSequence * (dims_ - codes_));
    std::vector<float> h(static_cast<size_t>(kSequence) * dims);
    pool_.parallel_for(kSequence, 64, [&](int64_t first, int64_t last) {
      for (int64_t t = first; t < last; ++t) {
        float* const out = h.data() + static_cast<size_t>(t) * dims;
        for (int64_t d = 0; d < reach; ++d) {
          const auto w = static_cast<float>(weights[static_cast<size_t>(d)] * routes_.mean_factor + (d == 0 ? routes_.code_factor : 0));
          const float* const code = codes.data() + static_cast<size_t>(t + reach - d) * code_dims;
          for (size_t j = 0; j < code_dims; ++j) out[j] += w * code[j];
        }
        for (size_t j = 0; j < own_dims; ++j) out[code_dims + j] = own[static_cast<size_t>(t) * own_dims + j];
      }
    });
    return h;
  }

  const RoutingTarget& target_;
  const int codes_, dims_, experts_;  // dims_: codes and own numbers
  const uint64_t seed_;
  double own_noise_ = 0;
  ThreadPool& pool_;
  CalibratedRoutes routes_;
};

}  // namespace

Result<CalibratedRoutes> calibrate_routes(const RoutingTarget& target, int code_dims, int own_dims, const std::function<PositionKernel(double rate)>& kernel_of, uint64_t seed,
                                          ThreadPool& pool) {
  Calibration c(target, code_dims, own_dims, seed, pool);
  c.find_offsets();
  // The slower the kernel and the larger its part, the more stays. Kernels alone, down to the quickest; then less and less of that one.
  c.set_mixture(kernel_of(kSlowest), 1);
  if (const double most = c.measure(); most < target.kept) {
    return error(StatusCode::kInvalidArgument, "{}: {:.1f} % of the experts shall stay from one token to the next; routers of random weights keep at most {:.1f} %", target.text,
                 100 * target.kept, 100 * most);
  }
  c.set_mixture(kernel_of(kFastest), 1);
  if (c.measure() < target.kept) {
    double slow = std::log(kSlowest), fast = std::log(kFastest);
    for (int i = 0; i < kHalvings; ++i) {
      const double rate = (slow + fast) / 2;
      c.set_mixture(kernel_of(std::exp(rate)), 1);
      (c.measure() > target.kept ? slow : fast) = rate;
    }
  } else {
    double low = 0, high = 1;
    for (int i = 0; i < kHalvings; ++i) {
      const double slow = (low + high) / 2;
      c.set_mixture(kernel_of(kFastest), slow);
      (c.measure() < target.kept ? low : high) = slow;
    }
  }
  return std::move(c.routes());
}

}  // namespace pointsman::tools
