// SPDX-License-Identifier: Apache-2.0
//
// Include a vec_*.h, matmul/matmul_isa.h and moe/permute_isa.h first.
#pragma once

#include "base/thread_pool.h"
#include "ops/moe/combine.h"

namespace pointsman::ops {
namespace {

// Columns summed at once: their sums stay in the first-level cache while row after row is read from end to end, as memory likes to be read.
inline constexpr int64_t kCombineColumns = 2048;

// sum[c] = (or +=, for is_first false) weight * row[c], and the lines of `ahead` are asked for along the way.
template <bool kFirst, class S>
void add_row(const S* row, float weight, int64_t cols, float* sum, const S* ahead) {
  const Vec w = vset(weight);
  constexpr int64_t kStep = 64 / static_cast<int64_t>(sizeof(S));  // a line
  int64_t i = 0;
  for (; i + kStep <= cols; i += kStep) {
    __builtin_prefetch(ahead + i);
    for (int64_t v = 0; v < kStep; v += 16) vstore(sum + i + v, vfma(w, vload(row + i + v), kFirst ? vzero() : vload(sum + i + v)));
  }
  for (; i < cols; i += 16) {
    const int64_t c = smaller(16, cols - i);
    vstore(sum + i, vfma(w, vload_n(row + i, c), kFirst ? vzero() : vload(sum + i)));
  }
}

template <class S>
void combine_rows(ThreadPool& pool, const CombineArgs& a) {
  const int64_t cols = a.out.cols, top_k = a.top_k;
  const bool stream = !a.accumulate && a.out.rows * cols * 4 > kStreamBytes;
  pool.parallel_for(a.out.rows, larger(1, 32768 / larger(1, cols * top_k)), [&](int64_t first, int64_t last) {
    alignas(64) float sum[kCombineColumns + 16];
    const auto row_of = [&](int64_t s) -> int64_t { return a.slot_row != nullptr ? a.slot_row[s] : s; };
    const int64_t end = last * top_k;
    for (int64_t t = first; t < last; ++t) {
      float* out = a.out.row<float>(t);
      const bool past_caches = stream && reinterpret_cast<uintptr_t>(out) % 64 == 0;
      for (int64_t c0 = 0; c0 < cols; c0 += kCombineColumns) {
        const int64_t c = smaller(kCombineColumns, cols - c0);
        bool empty = true;
        for (int64_t s = t * top_k; s < (t + 1) * top_k; ++s) {
          const int64_t r = row_of(s);
          if (r < 0) continue;
          // What is read next: the slot after this one, or the next columns of the first.
          const int64_t then = s + 1 < (t + 1) * top_k || c0 + c >= cols ? s + 1 : t * top_k, at = then == s + 1 && s + 1 < (t + 1) * top_k ? c0 : then == s + 1 ? 0 : c0 + c;
          const int64_t next = then < end ? row_of(then) : r;
          const S* ahead = a.slots.row<const S>(next < 0 ? r : next) + at;
          const float w = a.weights != nullptr ? a.weights[s] : 1.0f;
          if (empty) add_row<true>(a.slots.row<const S>(r) + c0, w, c, sum, ahead);
          else add_row<false>(a.slots.row<const S>(r) + c0, w, c, sum, ahead);
          empty = false;
        }
        if (empty) __builtin_memset(sum, 0, static_cast<size_t>(c) * sizeof(float));
        for (int64_t i = 0; i < c; i += 16) {
          float* to = out + c0 + i;
          const int64_t n = smaller(16, c - i);
          if (n < 16) {
            vstore_n(to, a.accumulate ? vadd(vload_n(to, n), vload(sum + i)) : vload(sum + i), n);
          } else if (past_caches) {
            vstream(to, vload(sum + i));
          } else {
            vstore(to, a.accumulate ? vadd(vload(to), vload(sum + i)) : vload(sum + i));
          }
        }
      }
    }
    if (stream) vstream_done();
  });
}

inline void combine_kernel(ThreadPool& pool, const CombineArgs& a) {
  if (a.slots.dtype == DType::kBF16) return combine_rows<bf16>(pool, a);
  combine_rows<float>(pool, a);
}

}  // namespace
}  // namespace pointsman::ops
