// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>

#include "base/thread_pool.h"
#include "ops/dispatch.h"
#include "ops/moe/router.h"

namespace pointsman::ops {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// Keeps the k best of what it is shown, best first; equal scores keep the earlier (lower) id.
struct Best {
  float score[kMaxTopK];
  int32_t id[kMaxTopK];
  int32_t size = 0;

  void show(float s, int32_t e, int32_t k) {
    if (size == k && !(s > score[k - 1])) return;
    int32_t at = size < k ? size++ : k - 1;
    for (; at > 0 && s > score[at - 1]; --at) {
      score[at] = score[at - 1];
      id[at] = id[at - 1];
    }
    score[at] = s;
    id[at] = e;
  }
};

void scores(ScoreFunction f, const float* z, int32_t n, float* s) {
  switch (f) {
    case ScoreFunction::kSoftmax: {
      const float highest = *std::max_element(z, z + n);
      float sum = 0;
      for (int32_t e = 0; e < n; ++e) sum += s[e] = std::exp(z[e] - highest);
      for (int32_t e = 0; e < n; ++e) s[e] /= sum;
      return;
    }
    case ScoreFunction::kSigmoid:
      for (int32_t e = 0; e < n; ++e) s[e] = 1 / (1 + std::exp(-z[e]));
      return;
    case ScoreFunction::kSqrtSoftplus:
      // log1p(e^z) is z beyond 20 to the last bit of fp32, and e^z would overflow beyond 88.
      for (int32_t e = 0; e < n; ++e) s[e] = std::sqrt(z[e] > 20 ? z[e] : std::log1p(std::exp(z[e])));
      return;
    case ScoreFunction::kSoftmaxOverTopK: std::copy(z, z + n, s); return;
  }
}

// Puts -infinity on experts outside the best groups: 0 would let a masked expert win when biased scores are negative.
void mask_groups(const RouterContract& c, float* selection) {
  const int32_t size = c.num_experts / c.n_group;
  Best best;
  for (int32_t g = 0; g < c.n_group; ++g) {
    float first = kMinusInfinity, second = kMinusInfinity;
    for (int32_t e = g * size; e < (g + 1) * size; ++e) {
      if (selection[e] > first) {
        second = std::exchange(first, selection[e]);
      } else if (selection[e] > second) {
        second = selection[e];
      }
    }
    best.show(c.group_score == GroupScore::kTop2Sum && size > 1 ? first + second : first, g, c.topk_group);
  }
  for (int32_t g = 0; g < c.n_group; ++g) {
    if (std::find(best.id, best.id + best.size, g) == best.id + best.size) std::fill_n(selection + g * size, size, kMinusInfinity);
  }
}

// The experts of one token, by selection score.
void choose(const RouteArgs& a, int64_t t, const float* z, const float* score, float* selection, Best& best) {
  const RouterContract& c = a.contract;
  const int32_t n = c.num_experts;
  if (a.noise.enabled) {
    for (int32_t e = 0; e < n; ++e) selection[e] = z[e] + static_cast<float>(gumbel_noise(a.noise, a.first_token + t, e));
    scores(c.score, selection, n, selection);
  } else {
    std::copy(score, score + n, selection);
  }
  for (int32_t e = 0; e < n && a.bias != nullptr; ++e) selection[e] += a.bias[e];
  if (c.n_group > 1) mask_groups(c, selection);
  for (int32_t e = 0; e < n; ++e) best.show(selection[e], e, c.top_k);
}

// One token. Returns false when its weights failed the guard.
bool route_token(const RouteArgs& a, int64_t t, const float* z, float* score, float* selection) {
  const RouterContract& c = a.contract;
  scores(c.score, z, c.num_experts, score);
  Best best;
  if (a.given_ids != nullptr) {
    std::copy_n(a.given_ids + t * c.top_k, c.top_k, best.id);
  } else {
    choose(a, t, z, score, selection, best);
  }

  int32_t* ids = a.ids + t * c.top_k;
  float* weights = a.weights + t * c.top_k;
  const bool normalized = c.normalize || c.score == ScoreFunction::kSoftmaxOverTopK;
  float highest = kMinusInfinity;
  for (int32_t k = 0; k < c.top_k; ++k) highest = std::max(highest, score[best.id[k]]);
  float sum = 0;
  for (int32_t k = 0; k < c.top_k; ++k) {
    ids[k] = best.id[k];
    weights[k] = c.score == ScoreFunction::kSoftmaxOverTopK ? std::exp(score[best.id[k]] - highest) : score[best.id[k]];
    sum += weights[k];
  }
  float total = 0;
  for (int32_t k = 0; k < c.top_k; ++k) {
    if (normalized) weights[k] /= sum + c.norm_epsilon;
    total += weights[k];
  }
  // Written so that NaN fails: every comparison with NaN is false.
  const bool good = normalized ? std::fabs(total - 1) <= c.guard_tolerance : std::isfinite(total);
  if (!good && c.guard == GuardAction::kUniform) std::fill_n(weights, c.top_k, 1 / static_cast<float>(c.top_k));
  for (int32_t k = 0; k < c.top_k; ++k) weights[k] *= c.scale;
  return good;
}

void lower(std::atomic<int32_t>& least, int32_t v) {
  int32_t now = least.load(std::memory_order_relaxed);
  while (v < now && !least.compare_exchange_weak(now, v, std::memory_order_relaxed)) {
  }
}

}  // namespace

void route_kernel(ThreadPool& pool, const RouteArgs& a) {
  constexpr int32_t kNone = INT32_MAX;
  std::atomic<int32_t> bad{kNone}, guard{kNone}, guard_count{0};
  const int32_t n = a.contract.num_experts;
  const auto is_finite = [](float v) { return std::isfinite(v); };
  // Any comparison with NaN is false: such a bias would choose, and silently.
  const bool is_choice_sound = a.bias == nullptr || a.given_ids != nullptr || std::all_of(a.bias, a.bias + n, is_finite);
  pool.parallel_for(a.logits.rows, std::max<int64_t>(1, 8192 / n), [&](int64_t first, int64_t last) {
    float score[kMaxExperts], selection[kMaxExperts];
    for (int64_t t = first; t < last; ++t) {
      const float* z = a.logits.row<const float>(t);
      if (!is_choice_sound || !std::all_of(z, z + n, is_finite)) {
        lower(bad, static_cast<int32_t>(t));
        std::fill_n(a.ids + t * a.contract.top_k, a.contract.top_k, 0);
        std::fill_n(a.weights + t * a.contract.top_k, a.contract.top_k, 0.0f);
      } else if (!route_token(a, t, z, score, selection)) {
        lower(guard, static_cast<int32_t>(t));
        guard_count.fetch_add(1, std::memory_order_relaxed);
      }
    }
  });
  *a.report = {.bad_token = bad == kNone ? -1 : bad.load(), .guard_token = guard == kNone ? -1 : guard.load(), .guard_count = guard_count.load()};
}

Status check_contract(const RouterContract& c) {
  if (c.num_experts < 1 || c.num_experts > kMaxExperts || c.top_k < 1 || c.top_k > kMaxTopK || c.top_k > c.num_experts) {
    return error(StatusCode::kInvalidArgument, "router: top {} of {} experts (at most {} of {})", c.top_k, c.num_experts, kMaxTopK, kMaxExperts);
  }
  if (c.n_group < 1 || c.n_group > kMaxTopK || c.num_experts % c.n_group != 0 || c.topk_group < 1 || c.topk_group > c.n_group ||
      c.topk_group * (c.num_experts / c.n_group) < c.top_k) {
    return error(StatusCode::kInvalidArgument, "router: the {} best of {} groups of {} experts cannot give {} experts", c.topk_group, c.n_group, c.num_experts,
                 c.top_k);
  }
  if (!(c.scale > 0) || !std::isfinite(c.scale) || !(c.norm_epsilon >= 0) || !(c.guard_tolerance > 0)) {
    return error(StatusCode::kInvalidArgument, "router: scale {}, epsilon {}, tolerance {} must be positive", c.scale, c.norm_epsilon, c.guard_tolerance);
  }
  return ok_status();
}

Status route(OpContext& ctx, const RouteArgs& a) {
  PM_RETURN_IF_ERROR(check_contract(a.contract));
  if (a.logits.dtype != DType::kF32 || a.logits.cols != a.contract.num_experts || a.ids == nullptr || a.weights == nullptr || a.report == nullptr) {
    return error(StatusCode::kInvalidArgument, "route: logits [{}, {}] {} for {} experts", a.logits.rows, a.logits.cols, dtype_name(a.logits.dtype),
                 a.contract.num_experts);
  }
  return PM_DISPATCH(ctx, route, a);
}

}  // namespace pointsman::ops
