// SPDX-License-Identifier: Apache-2.0
//
// The fused gate: one pass per token from logits to ids, weights and counts. Selection compares and never rounds, so it may go its own
// way on every instruction set and still chooses the same experts; scores and sums are the same operations everywhere.
// Include a vec_*.h, isa/math.h and matmul/matmul_isa.h first.
#pragma once

#include "base/thread_pool.h"
#include "ops/moe/router.h"

namespace pointsman::ops {
namespace {

inline constexpr float kBelowAll = -__builtin_inff();
// Up to this many are chosen by ranks in registers, beyond by insertion.
inline constexpr int32_t kRankedTopK = 16;

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

// Row buffers are padded to whole vectors, and a last one for stores that run over.
inline constexpr int32_t kRowRoom = kMaxExperts + 16;

struct RouteScratch {
  float score[kRowRoom], selection[kRowRoom], value[kRowRoom], index[kRowRoom];
};

// The k largest of `vectors` x 16 numbers (none NaN), best first, equal ones by place: for k <= 16 in lanes, with their places, and true; else (or
// where many are equal) in `best`. REQUIRES: k <= 16 * vectors; at least k above the padding.
inline bool choose_best(const float* s, int64_t vectors, int32_t k, RouteScratch& scratch, Vec* value, Vec* place, Best* best) {
  const Vec lanes = lane_numbers();
  if (vectors == 1 && k <= kRankedTopK) {
    *value = vload(s), *place = lanes;
    vsort(value, place);
    return true;
  }
  Vec threshold = vset(kBelowAll);
  if (k <= kRankedTopK) {
    // The maxima of sixteen columns are sixteen different numbers of the row: its k-th largest is at least theirs.
    Vec column[2] = {vload(s), vload(s + 16)};
    int64_t v = 2;
    for (; v + 2 <= vectors; v += 2) column[0] = vmax(column[0], vload(s + 16 * v)), column[1] = vmax(column[1], vload(s + 16 * v + 16));
    if (v < vectors) column[0] = vmax(column[0], vload(s + 16 * v));
    threshold = vkth(vmax(column[0], column[1]), k);
    Vec found = vset(kBelowAll), where = lanes, here = lanes;
    int64_t count = 0;
    for (v = 0; v < vectors; ++v, here = vadd(here, vset(16))) {
      const Vec x = vload(s + 16 * v);
      const uint32_t mask = ~vmask_less(x, threshold) & 0xffff;
      if (vectors > 8 && mask == 0) continue;
      found = vappend(found, count, x, mask), where = vappend(where, count, here, mask);
      count += __builtin_popcount(mask);
    }
    if (count <= 16) {
      *value = lanes_below(found, count, kBelowAll), *place = where;
      vsort(value, place);
      return true;
    }
  }
  int64_t count = 0;
  Vec here = lanes;
  for (int64_t v = 0; v < vectors; ++v, here = vadd(here, vset(16))) {
    const Vec x = vload(s + 16 * v);
    const uint32_t mask = ~vmask_less(x, threshold) & 0xffff;
    vcompress(scratch.value + count, x, mask), vcompress(scratch.index + count, here, mask);
    count += __builtin_popcount(mask);
  }
  best->size = 0;
  for (int64_t i = 0; i < count; ++i) best->show(scratch.value[i], static_cast<int32_t>(scratch.index[i]), k);
  if (k > kRankedTopK) return false;
  float v[16] = {}, p[16] = {};
  for (int32_t i = 0; i < k; ++i) v[i] = best->score[i], p[i] = static_cast<float>(best->id[i]);
  *value = vload(v), *place = vload(p);
  return true;
}

// The two largest of n numbers.
inline void two_best(const float* s, int64_t n, float* first, float* second) {
  Vec high = vset(kBelowAll), low = high;
  for (int64_t i = 0; i < n; i += 16) {
    const Vec x = n - i >= 16 ? vload(s + i) : lanes_below(vload_n(s + i, n - i), n - i, kBelowAll);
    low = vmax(low, vmin(high, x));
    high = vmax(high, x);
  }
  *first = vhighest(high);
  // One lane holds the largest; the second is in another lane, or below it in the same.
  const uint32_t holders = ~vmask_less(high, vset(*first)) & 0xffff;
  if ((holders & (holders - 1)) != 0) {
    *second = *first;
    return;
  }
  const Vec is_top = vselect_less(high, vset(*first), high, low);
  *second = vhighest(is_top);
}

// Puts -infinity on experts outside the best groups: 0 would let a masked expert win when biased scores are negative.
inline void mask_groups(const RouterContract& c, float* selection, RouteScratch& scratch) {
  const int64_t size = c.num_experts / c.n_group, vectors = (c.n_group + 15) / 16;
  float group[kMaxTopK + 16];
  for (int64_t g = 0; g < c.n_group; ++g) {
    float first, second;
    two_best(selection + g * size, size, &first, &second);
    group[g] = c.group_score == GroupScore::kTop2Sum && size > 1 ? first + second : first;
  }
  for (int64_t g = c.n_group; g < 16 * vectors; ++g) group[g] = kBelowAll;
  int32_t kept[kMaxTopK];
  Vec value, place;
  Best best;
  const bool in_lanes = choose_best(group, vectors, c.topk_group, scratch, &value, &place, &best);
  if (in_lanes) vstore_ids(kept, place, c.topk_group);
  uint64_t keep = 0;
  for (int32_t i = 0; i < c.topk_group; ++i) keep |= uint64_t{1} << (in_lanes ? kept[i] : best.id[i]);
  for (int64_t g = 0; g < c.n_group; ++g) {
    if ((keep >> g & 1) != 0) continue;
    for (int64_t i = 0; i < size; i += 16) vstore_n(selection + g * size + i, vset(kBelowAll), smaller(16, size - i));
  }
}

inline float highest_of(const float* z, int64_t n) {
  Vec highest = vset(kBelowAll);
  for (int64_t i = 0; i < n; i += 16) highest = vmax(highest, n - i >= 16 ? vload(z + i) : lanes_below(vload_n(z + i, n - i), n - i, kBelowAll));
  return vhighest(highest);
}
// sum of exp(z - highest): lanes, then the tree.
inline float softmax_sum(const float* z, int64_t n, float highest) {
  Vec sum = vzero();
  for (int64_t i = 0; i < n; i += 16) {
    const Vec e = vexp(vsub(vload_n(z + i, n - i), vset(highest)));
    sum = vadd(sum, n - i >= 16 ? e : lanes_below(e, n - i, 0));
  }
  return vsum(sum);
}

// Scores of all experts; lanes past n: nothing of meaning. out is not z.
inline void score_row(ScoreFunction f, const float* z, int64_t n, float* out) {
  const auto each = [&](auto&& score) {
    for (int64_t i = 0; i < n; i += 16) vstore(out + i, score(n - i >= 16 ? vload(z + i) : vload_n(z + i, n - i)));
  };
  switch (f) {
    case ScoreFunction::kSoftmax: {
      const float highest = highest_of(z, n), sum = softmax_sum(z, n, highest);
      return each([&](Vec x) { return vdiv(vexp(vsub(x, vset(highest))), vset(sum)); });
    }
    case ScoreFunction::kSigmoid: return each([](Vec x) { return vsigmoid(x); });
    case ScoreFunction::kSqrtSoftplus:
      // In three passes: as one, each expert is a chain of operations so long that the processor overlaps too few of them (a third slower).
      each([](Vec x) { return vexp(x); });
      for (int64_t i = 0; i < n; i += 16) vstore(out + i, vlog1p(vload(out + i)));
      for (int64_t i = 0; i < n; i += 16) {
        const Vec x = n - i >= 16 ? vload(z + i) : vload_n(z + i, n - i);
        // log(1 + e^x) is x to the last bit of fp32 beyond 20.
        vstore(out + i, vsqrt(vselect_less(vset(20), x, x, vload(out + i))));
      }
      return;
    case ScoreFunction::kSoftmaxOverTopK: return each([](Vec x) { return x; });
  }
}

// Softmax is monotone: without a bias and sums over groups the logits themselves choose, and only the chosen need an exponential.
inline bool logits_choose(const RouteArgs& a) {
  const RouterContract& c = a.contract;
  return c.score == ScoreFunction::kSoftmaxOverTopK ||
         (c.score == ScoreFunction::kSoftmax && a.bias == nullptr && (c.n_group == 1 || c.group_score == GroupScore::kMax));
}

// The row of selection scores, padded with -infinity: z itself where that will do.
inline const float* selection_row(const RouteArgs& a, int64_t t, const float* z, bool by_logits, const float* score, RouteScratch& scratch) {
  const RouterContract& c = a.contract;
  const int64_t n = c.num_experts;
  float* selection = scratch.selection;
  if (by_logits && a.bias == nullptr && !a.noise.enabled && c.n_group == 1 && n % 16 == 0) return z;
  if (a.noise.enabled) {
    const int64_t token = a.sequences.position(a.sequences.of_row(t), t);
    float* noisy = scratch.value;
    for (int64_t e = 0; e < n; ++e) noisy[e] = z[e] + static_cast<float>(gumbel_noise(a.noise, token, static_cast<int32_t>(e)));
    if (!by_logits) score_row(c.score, noisy, n, selection);
  }
  const float* from = a.noise.enabled ? (by_logits ? scratch.value : selection) : by_logits ? z : score;
  for (int64_t i = 0; i < n; i += 16) {
    const int64_t count = smaller(16, n - i);
    Vec s = vload_n(from + i, count);
    if (a.bias != nullptr) s = vadd(s, vload_n(a.bias + i, count));
    vstore(selection + i, count == 16 ? s : lanes_below(s, count, kBelowAll));
  }
  if (c.n_group > 1) mask_groups(c, selection, scratch);
  return selection;
}

// Weights of the chosen from their clean logits or scores in `raw` (lanes past top_k: anything). Returns false when they failed the guard.
template <int kVecs>
bool weigh(const RouterContract& c, const float* z, bool from_logits, Vec* raw, float* weights) {
  const int64_t k = c.top_k;
  const bool normalized = c.normalize || c.score == ScoreFunction::kSoftmaxOverTopK;
  const auto each = [&](auto&& change) {
    for (int i = 0; i < kVecs; ++i) raw[i] = change(raw[i]);
  };
  const auto added = [&] {
    Vec sum = lanes_below(raw[0], k, 0);
    for (int i = 1; i < kVecs; ++i) sum = vadd(sum, lanes_below(raw[i], k - 16 * i, 0));
    return vsum(sum);
  };
  if (from_logits) {
    // Divided by their sum, softmax scores are the softmax over the chosen: the sum over all experts cancels.
    const bool over_chosen = normalized && c.norm_epsilon == 0;
    float highest;
    if (over_chosen || c.score == ScoreFunction::kSoftmaxOverTopK) {
      Vec largest = lanes_below(raw[0], k, kBelowAll);
      for (int i = 1; i < kVecs; ++i) largest = vmax(largest, lanes_below(raw[i], k - 16 * i, kBelowAll));
      highest = vhighest(largest);
      each([&](Vec x) { return vexp(vsub(x, vset(highest))); });
    } else {
      highest = highest_of(z, c.num_experts);
      const Vec sum = vset(softmax_sum(z, c.num_experts, highest));
      each([&](Vec x) { return vdiv(vexp(vsub(x, vset(highest))), sum); });
    }
  }
  if (normalized) {
    const Vec sum = vset(added() + c.norm_epsilon);
    each([&](Vec x) { return vdiv(x, sum); });
  }
  const float total = added();
  // Written so that NaN fails: every comparison with NaN is false.
  const bool good = normalized ? __builtin_fabsf(total - 1) <= c.guard_tolerance : __builtin_isfinite(total);
  if (!good && c.guard == GuardAction::kUniform) each([&](Vec) { return vset(1 / static_cast<float>(k)); });
  for (int i = 0; i < kVecs && 16 * i < k; ++i) vstore_n(weights + 16 * i, vmul(raw[i], vset(c.scale)), k - 16 * i);
  return good;
}

inline bool all_finite(const float* z, int64_t n) {
  Vec sum = vzero();
  for (int64_t i = 0; i < n; i += 16) sum = vfma(n - i >= 16 ? vload(z + i) : vload_n(z + i, n - i), vzero(), sum);
  return vmask_less(sum, vset(1)) == 0xffff;  // infinity times zero is NaN, as NaN is
}

inline bool route_token(const RouteArgs& a, int64_t t, const float* z, bool by_logits, RouteScratch& scratch) {
  const RouterContract& c = a.contract;
  const int32_t k = c.top_k;
  int32_t* id = a.ids + t * k;
  const float* score = z;
  if (!by_logits) {
    score_row(c.score, z, c.num_experts, scratch.score);
    score = scratch.score;
  }
  Vec raw[kMaxTopK / 16];
  if (a.given_ids == nullptr) {
    Vec value, place;
    Best best;
    const float* selection = selection_row(a, t, z, by_logits, score, scratch);
    if (choose_best(selection, (c.num_experts + 15) / 16, k, scratch, &value, &place, &best)) {
      vstore_ids(id, place, k);
      raw[0] = by_logits && a.bias == nullptr && !a.noise.enabled ? value : vgather_n(score, place, k);
      return weigh<1>(c, z, by_logits, raw, a.weights + t * k);
    }
    for (int32_t i = 0; i < k; ++i) id[i] = best.id[i];
  } else {
    for (int32_t i = 0; i < k; ++i) id[i] = a.given_ids[t * k + i];
  }
  float chosen[kMaxTopK] = {};
  for (int32_t i = 0; i < k; ++i) chosen[i] = score[id[i]];
  for (int i = 0; i < kMaxTopK / 16; ++i) raw[i] = vload(chosen + 16 * i);
  return weigh<kMaxTopK / 16>(c, z, by_logits, raw, a.weights + t * k);
}

inline void lower(int32_t& least, int32_t v) {
  int32_t now = __atomic_load_n(&least, __ATOMIC_RELAXED);
  while (v < now && !__atomic_compare_exchange_n(&least, &now, v, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
}

inline void route_kernel(ThreadPool& pool, const RouteArgs& a) {
  constexpr int32_t kNone = __INT32_MAX__;
  int32_t bad = kNone, guard = kNone, guard_count = 0;
  const int64_t n = a.contract.num_experts, k = a.contract.top_k, tokens = a.logits.rows;
  const bool by_logits = logits_choose(a);
  // Any comparison with NaN is false: such a bias would choose, and silently.
  const bool is_choice_sound = a.bias == nullptr || a.given_ids != nullptr || all_finite(a.bias, n);
  if (a.counts != nullptr) __builtin_memset(a.counts, 0, static_cast<size_t>(n) * sizeof(int32_t));
  // At least 8192 scores per range; and with counts few ranges, because each adds its own up.
  const int64_t grain = larger(larger(1, 8192 / n), (tokens + 8 * pool.num_threads() - 1) / (8 * pool.num_threads()));
  pool.parallel_for(tokens, grain, [&](int64_t first, int64_t last) {
    RouteScratch scratch;
    int32_t counts[kMaxExperts];
    const bool alone = first == 0 && last == tokens;
    int32_t* count = alone ? a.counts : counts;
    if (a.counts != nullptr && !alone) __builtin_memset(counts, 0, static_cast<size_t>(n) * sizeof(int32_t));
    for (int64_t t = first; t < last; ++t) {
      const float* z = a.logits.row<const float>(t);
      if (!is_choice_sound || !all_finite(z, n)) {
        lower(bad, static_cast<int32_t>(t));
        __builtin_memset(a.ids + t * k, 0, static_cast<size_t>(k) * sizeof(int32_t));
        __builtin_memset(a.weights + t * k, 0, static_cast<size_t>(k) * sizeof(float));
      } else if (!route_token(a, t, z, by_logits, scratch)) {
        lower(guard, static_cast<int32_t>(t));
        __atomic_fetch_add(&guard_count, 1, __ATOMIC_RELAXED);
      }
      if (a.counts == nullptr) continue;
      for (int64_t i = 0; i < k; ++i) ++count[a.ids[t * k + i]];
    }
    if (a.counts == nullptr || alone) return;
    for (int64_t e = 0; e < n; ++e) {
      if (counts[e] != 0) __atomic_fetch_add(a.counts + e, counts[e], __ATOMIC_RELAXED);
    }
  });
  *a.report = {.bad_token = bad == kNone ? -1 : bad, .guard_token = guard == kNone ? -1 : guard, .guard_count = guard_count};
}

}  // namespace
}  // namespace pointsman::ops
