// SPDX-License-Identifier: Apache-2.0
//
// The router in float64, one step per line of router.h. Clarity over speed: kernels are tested against it.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "base/philox.h"
#include "ops/moe/router.h"

namespace pointsman::ops {

double gumbel_noise(const RouterNoise& noise, int64_t token, int32_t expert) {
  const uint32_t r = random_u32(noise.seed, RandomPurpose::kRouteNoise, noise.step, noise.layer, static_cast<uint64_t>(token), static_cast<uint32_t>(expert));
  return -std::log(-std::log(uniform_open(r)));
}

RouterReport route_reference(const RouterContract& c, std::span<const float> logits, std::span<const float> bias, const RouterNoise& noise,
                             int64_t token, std::span<int32_t> ids, std::span<double> weights) {
  constexpr double kNegativeInfinity = -std::numeric_limits<double>::infinity();
  RouterReport report;
  const size_t n = logits.size();
  for (const float z : logits) {
    if (!std::isfinite(z)) report.bad_token = 0;
  }
  if (report.bad_token == 0) return report;

  // 1. Scores, from clean logits; and from noisy ones for the selection.
  const auto score_all = [&](const std::vector<double>& z) {
    std::vector<double> s(n);
    const double highest = *std::max_element(z.begin(), z.end());
    double sum = 0;
    for (const double v : z) sum += std::exp(v - highest);
    for (size_t e = 0; e < n; ++e) {
      switch (c.score) {
        case ScoreFunction::kSoftmax: s[e] = std::exp(z[e] - highest) / sum; break;
        case ScoreFunction::kSigmoid: s[e] = 1 / (1 + std::exp(-z[e])); break;
        case ScoreFunction::kSqrtSoftplus: s[e] = std::sqrt(z[e] > 30 ? z[e] : std::log1p(std::exp(z[e]))); break;
        case ScoreFunction::kSoftmaxOverTopK: s[e] = z[e]; break;
      }
    }
    return s;
  };
  std::vector<double> clean(logits.begin(), logits.end()), noisy = clean;
  if (noise.enabled) {
    for (size_t e = 0; e < n; ++e) noisy[e] += gumbel_noise(noise, token, static_cast<int32_t>(e));
  }
  const std::vector<double> score = score_all(clean);
  // 2. Selection score.
  std::vector<double> selection = score_all(noisy);
  for (size_t e = 0; e < n && !bias.empty(); ++e) selection[e] += bias[e];
  // 3. Groups.
  if (c.n_group > 1) {
    const size_t size = n / static_cast<size_t>(c.n_group);
    std::vector<double> group(static_cast<size_t>(c.n_group));
    for (size_t g = 0; g < group.size(); ++g) {
      std::vector<double> members(selection.begin() + static_cast<ptrdiff_t>(g * size), selection.begin() + static_cast<ptrdiff_t>((g + 1) * size));
      std::sort(members.rbegin(), members.rend());
      group[g] = members[0] + (c.group_score == GroupScore::kTop2Sum && size > 1 ? members[1] : 0);
    }
    std::vector<size_t> order(group.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return group[a] > group[b]; });
    for (size_t i = static_cast<size_t>(c.topk_group); i < order.size(); ++i) {
      for (size_t e = order[i] * size; e < (order[i] + 1) * size; ++e) selection[e] = kNegativeInfinity;
    }
  }
  // 4. Top-k, ties to the lower id.
  std::vector<int32_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return selection[static_cast<size_t>(a)] > selection[static_cast<size_t>(b)]; });
  // 5. Weights.
  const size_t k = static_cast<size_t>(c.top_k);
  double sum = 0;
  for (size_t i = 0; i < k; ++i) {
    ids[i] = order[i];
    weights[i] = score[static_cast<size_t>(order[i])];
    if (c.score == ScoreFunction::kSoftmaxOverTopK) weights[i] = std::exp(weights[i] - score[static_cast<size_t>(*std::max_element(order.begin(), order.begin() + static_cast<ptrdiff_t>(k), [&](int32_t a, int32_t b) { return score[static_cast<size_t>(a)] < score[static_cast<size_t>(b)]; }))]);
    sum += weights[i];
  }
  const bool normalized = c.normalize || c.score == ScoreFunction::kSoftmaxOverTopK;
  double total = 0;
  for (size_t i = 0; i < k; ++i) {
    if (normalized) weights[i] /= sum + c.norm_epsilon;
    total += weights[i];
  }
  const bool sums_to_one = std::fabs(total - 1) <= c.guard_tolerance;
  if (normalized ? !sums_to_one : !std::isfinite(total)) {
    report.guard_token = 0;
    report.guard_count = 1;
    if (c.guard == GuardAction::kUniform) std::fill(weights.begin(), weights.begin() + static_cast<ptrdiff_t>(k), 1.0 / static_cast<double>(k));
  }
  for (size_t i = 0; i < k; ++i) weights[i] *= c.scale;
  return report;
}

}  // namespace pointsman::ops
