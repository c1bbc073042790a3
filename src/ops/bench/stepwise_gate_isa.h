// SPDX-License-Identifier: Apache-2.0
//
// See stepwise_gate.h. Include a vec_*.h first.
#pragma once

#include "base/thread_pool.h"
#include "ops/bench/stepwise_gate.h"
#include "ops/isa/math.h"
#include "ops/isa/tile.h"
#include "ops/isa/weight_rows.h"
#include "ops/matmul/matmul_isa.h"
#include "ops/moe/route_isa.h"

namespace pointsman::ops {
namespace {

// The largest of a row and where it stands first; it is struck out.
inline int32_t take_largest(float* s, int64_t n, float* value) {
  Vec best = vload(s), place = lane_numbers(), here = place;
  for (int64_t i = 16; i < n; i += 16) {
    const Vec x = vload(s + i);
    here = vadd(here, vset(16));
    place = vselect_less(best, x, here, place);
    best = vselect_less(best, x, x, best);
  }
  *value = vhighest(best);
  const Vec first = vselect_less(best, vset(*value), vset(-1e9f), vsub(vzero(), place));
  const auto e = static_cast<int32_t>(-vhighest(first));
  s[e] = kBelowAll;
  return e;
}

inline void stepwise_gate(ThreadPool& pool, const RouteArgs& a, const StepwiseGateBuffers& buffers) {
  const RouterContract& c = a.contract;
  const int64_t n = c.num_experts, k = c.top_k, tokens = a.logits.rows;
  const int64_t grain = larger(larger(1, 8192 / n), (tokens + 8 * pool.num_threads() - 1) / (8 * pool.num_threads()));
  const auto pass = [&](auto&& token) {
    pool.parallel_for(tokens, grain, [&](int64_t first, int64_t last) {
      for (int64_t t = first; t < last; ++t) token(t);
    });
  };
  pass([&](int64_t t) { score_row(c.score, a.logits.row<const float>(t), n, buffers.score + t * n); });
  const bool separate = a.bias != nullptr || c.n_group > 1;
  if (separate) {
    pass([&](int64_t t) {
      float* selection = buffers.selection + t * n;
      for (int64_t i = 0; i < n; i += 16) {
        const Vec s = vload(buffers.score + t * n + i);
        vstore(selection + i, a.bias != nullptr ? vadd(s, vload(a.bias + i)) : s);
      }
    });
  }
  if (c.n_group > 1) {
    pass([&](int64_t t) {
      RouteScratch scratch;
      mask_groups(c, buffers.selection + t * n, scratch);
    });
  }
  pass([&](int64_t t) {
    float* row = (separate ? buffers.selection : buffers.score) + t * n;
    for (int64_t i = 0; i < k; ++i) a.ids[t * k + i] = take_largest(row, n, a.weights + t * k + i);
  });
  pass([&](int64_t t) {
    float sum = 0;
    float* w = a.weights + t * k;
    for (int64_t i = 0; i < k; ++i) {
      if (separate) w[i] = buffers.score[t * n + a.ids[t * k + i]];
      sum += w[i];
    }
    for (int64_t i = 0; i < k; ++i) w[i] = w[i] / (sum + c.norm_epsilon) * c.scale;
  });
  __builtin_memset(a.counts, 0, static_cast<size_t>(n) * sizeof(int32_t));
  pool.parallel_for(tokens, grain, [&](int64_t first, int64_t last) {
    int32_t counts[kMaxExperts];
    int32_t* count = last - first == tokens ? a.counts : counts;
    if (count == counts) __builtin_memset(counts, 0, static_cast<size_t>(n) * sizeof(int32_t));
    for (int64_t i = first * k; i < last * k; ++i) ++count[a.ids[i]];
    for (int64_t e = 0; e < n && count == counts; ++e) __atomic_fetch_add(a.counts + e, counts[e], __ATOMIC_RELAXED);
  });
}

}  // namespace
}  // namespace pointsman::ops
