// SPDX-License-Identifier: Apache-2.0
#include "ops/bench/plain_permute.h"

#include <algorithm>
#include <numeric>

#include "base/thread_pool.h"

namespace pointsman::ops {
namespace {

constexpr int64_t kRowsPerRange = 64;

}  // namespace

PlainPermuted plain_permute(ThreadPool& pool, const bf16* x, const int32_t* ids, int64_t tokens, int64_t hidden, int32_t top_k) {
  const int64_t slots = tokens * top_k;
  std::vector<bf16> expanded(static_cast<size_t>(slots * hidden));
  pool.parallel_for(slots, kRowsPerRange, [&](int64_t first, int64_t last) {
    for (int64_t s = first; s < last; ++s) std::copy_n(x + s / top_k * hidden, hidden, expanded.data() + s * hidden);
  });
  PlainPermuted out;
  out.order.resize(static_cast<size_t>(slots));
  std::iota(out.order.begin(), out.order.end(), 0);
  std::stable_sort(out.order.begin(), out.order.end(), [&](int32_t a, int32_t b) { return ids[a] < ids[b]; });
  out.rows.resize(static_cast<size_t>(slots * hidden));
  pool.parallel_for(slots, kRowsPerRange, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) std::copy_n(expanded.data() + int64_t{out.order[static_cast<size_t>(r)]} * hidden, hidden, out.rows.data() + r * hidden);
  });
  return out;
}

std::vector<float> plain_combine(ThreadPool& pool, const PlainPermuted& permuted, const float* weights, int64_t tokens, int64_t hidden, int32_t top_k) {
  const int64_t slots = tokens * top_k;
  std::vector<bf16> back(static_cast<size_t>(slots * hidden));
  pool.parallel_for(slots, kRowsPerRange, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) {
      std::copy_n(permuted.rows.data() + r * hidden, hidden, back.data() + int64_t{permuted.order[static_cast<size_t>(r)]} * hidden);
    }
  });
  std::vector<float> weighted(static_cast<size_t>(slots * hidden));
  pool.parallel_for(slots, kRowsPerRange, [&](int64_t first, int64_t last) {
    for (int64_t s = first; s < last; ++s) {
      for (int64_t h = 0; h < hidden; ++h) weighted[static_cast<size_t>(s * hidden + h)] = weights[s] * to_float(back[static_cast<size_t>(s * hidden + h)]);
    }
  });
  std::vector<float> out(static_cast<size_t>(tokens * hidden));
  pool.parallel_for(tokens, kRowsPerRange, [&](int64_t first, int64_t last) {
    for (int64_t t = first; t < last; ++t) {
      for (int64_t k = 0; k < top_k; ++k) {
        for (int64_t h = 0; h < hidden; ++h) out[static_cast<size_t>(t * hidden + h)] += weighted[static_cast<size_t>((t * top_k + k) * hidden + h)];
      }
    }
  });
  return out;
}

}  // namespace pointsman::ops
