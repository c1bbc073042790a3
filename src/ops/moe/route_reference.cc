// SPDX-License-Identifier: Apache-2.0
//
// The router in float64, one step per line of router.h. Clarity over speed: kernels are tested against it.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "base/log.h"
#include "base/philox.h"
#include "ops/moe/router.h"

namespace pointsman::ops {

double gumbel_noise(const RouterNoise& noise, int64_t token, int32_t expert) {
  const uint32_t r = random_u32(noise.seed, RandomPurpose::kRouteNoise, noise.step, noise.layer, static_cast<uint64_t>(token), static_cast<uint32_t>(expert));
  return -std::log(-std::log(uniform_open(r)));
}

namespace {

bool all_finite(std::span<const float> logits) {
  return std::all_of(logits.begin(), logits.end(), [](float z) { return std::isfinite(z); });
}

// Step 1.
std::vector<double> score_all(const RouterContract& c, const std::vector<double>& z) {
  std::vector<double> s(z.size());
  const double highest = *std::max_element(z.begin(), z.end());
  double sum = 0;
  for (const double v : z) sum += std::exp(v - highest);
  for (size_t e = 0; e < z.size(); ++e) {
    switch (c.score) {
      case ScoreFunction::kSoftmax: s[e] = std::exp(z[e] - highest) / sum; break;
      case ScoreFunction::kSigmoid: s[e] = 1 / (1 + std::exp(-z[e])); break;
      case ScoreFunction::kSqrtSoftplus: s[e] = std::sqrt(z[e] > 30 ? z[e] : std::log1p(std::exp(z[e]))); break;
      case ScoreFunction::kSoftmaxOverTopK: s[e] = z[e]; break;
    }
  }
  return s;
}

// Step 5, for the chosen `ids`.
void weigh(const RouterContract& c, const std::vector<double>& score, std::span<const int32_t> ids, std::span<double> weights,
           RouterReport& report) {
  const size_t k = static_cast<size_t>(c.top_k);
  double highest = -std::numeric_limits<double>::infinity(), sum = 0;
  for (size_t i = 0; i < k; ++i) highest = std::max(highest, score[static_cast<size_t>(ids[i])]);
  for (size_t i = 0; i < k; ++i) {
    weights[i] = score[static_cast<size_t>(ids[i])];
    if (c.score == ScoreFunction::kSoftmaxOverTopK) weights[i] = std::exp(weights[i] - highest);
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
}

}  // namespace

RouterReport route_reference(const RouterContract& c, std::span<const float> logits, std::span<const float> bias, const RouterNoise& noise,
                             int64_t token, std::span<int32_t> ids, std::span<double> weights) {
  constexpr double kNegativeInfinity = -std::numeric_limits<double>::infinity();
  RouterReport report;
  const size_t n = logits.size();
  if (!all_finite(logits) || !all_finite(bias)) {
    report.bad_token = 0;
    return report;
  }

  // 1. Scores, from clean logits; and from noisy ones for the selection.
  std::vector<double> clean(logits.begin(), logits.end()), noisy = clean;
  if (noise.enabled) {
    for (size_t e = 0; e < n; ++e) noisy[e] += gumbel_noise(noise, token, static_cast<int32_t>(e));
  }
  const std::vector<double> score = score_all(c, clean);
  // 2. Selection score.
  std::vector<double> selection = score_all(c, noisy);
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
  std::copy_n(order.begin(), c.top_k, ids.begin());
  weigh(c, score, ids, weights, report);
  return report;
}

Status route_forced(const RouterContract& c, std::span<const float> logits, std::span<const int32_t> ids, std::span<float> weights) {
  std::vector<bool> seen(logits.size());
  for (const int32_t id : ids) {
    if (id < 0 || static_cast<size_t>(id) >= logits.size() || seen[static_cast<size_t>(id)]) {
      return error(StatusCode::kInvalidArgument, "expert {}: expected {} different ids from 0 to {}", id, ids.size(), logits.size() - 1);
    }
    seen[static_cast<size_t>(id)] = true;
  }
  if (!all_finite(logits)) return {StatusCode::kCorrupt, "a router logit is NaN or infinite"};
  std::vector<double> exact(ids.size());
  RouterReport report;
  weigh(c, score_all(c, std::vector<double>(logits.begin(), logits.end())), ids, exact, report);
  if (report.guard_count > 0 && c.guard == GuardAction::kRefuse)
    return {StatusCode::kCorrupt, "the weights of the recorded experts are no numbers, or do not sum to 1"};
  std::copy(exact.begin(), exact.end(), weights.begin());
  return ok_status();
}

}  // namespace pointsman::ops
