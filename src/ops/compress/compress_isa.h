// SPDX-License-Identifier: Apache-2.0
//
// Pooling and the indexer. Include a vec_*.h, isa/math.h, isa/tile.h, matmul/matmul_isa.h, norm/rms_norm_isa.h and rope/rotate_tail_isa.h first.
#pragma once

#include "ops/compress/compress.h"

namespace pointsman::ops {
namespace {

// Where the tokens of a window of one sequence are: `a` of token p, its gate, and the row of ape that is still to be added (null: it has been).
struct PoolRow {
  const float* a;
  const float* s;
  const float* ape;
};
inline PoolRow pool_row(const CompressArgs& c, int sequence, int64_t p) {
  const int64_t width = c.a.cols, first = c.sequences.first_position[sequence];
  if (p >= first) {
    const int64_t t = c.sequences.first_row[sequence] + p - first;
    return {c.a.row<const float>(t), c.gate.row<const float>(t), c.ape + p % c.ratio * width};
  }
  const float* row = static_cast<const float*>(c.ring[sequence]) + p % c.ring_rows * 2 * width;
  return {row, row + width, nullptr};
}
inline Vec pool_score(const PoolRow& r, int64_t i, int64_t c) {
  const Vec s = vload_n(r.s + i, c);
  return r.ape != nullptr ? vadd(s, vload_n(r.ape + i, c)) : s;
}

// Channels of one entry before norm and rotation.
inline void pool_entry(const CompressArgs& c, int sequence, int64_t entry, float* out) {
  const int64_t begin = entry * c.ratio, end = begin + c.ratio;
  const int64_t from = c.overlap && entry > 0 ? begin - c.ratio : begin;
  for (int64_t i = 0; i < c.dim; i += 16) {
    const int64_t n = smaller(16, c.dim - i);
    // Tokens of the window before lend their first half, those of this window their second.
    const auto channel = [&](int64_t p) { return c.overlap && p >= begin ? i + c.dim : i; };
    Vec highest = vset(-__builtin_inff());
    for (int64_t p = from; p < end; ++p) highest = vmax(highest, pool_score(pool_row(c, sequence, p), channel(p), n));
    Vec sum = vzero(), total = vzero();
    for (int64_t p = from; p < end; ++p) {
      const PoolRow r = pool_row(c, sequence, p);
      const Vec e = vexp(vsub(pool_score(r, channel(p), n), highest));
      sum = vfma(e, vload_n(r.a + channel(p), n), sum);
      total = vadd(total, e);
    }
    vstore_n(out + i, vdiv(sum, total), n);
  }
}

template <class C>
void compress_kernel(ThreadPool& pool, const CompressArgs& c) {
  const Sequences closing = closing_entries(c.sequences, c.ratio);
  pool.parallel_for(closing.rows(), larger(1, 16384 / (c.ratio * c.a.cols)), [&](int64_t first, int64_t last) {
    float row[512];
    for (int64_t e = first; e < last; ++e) {
      const int s = closing.of_row(e);
      const int64_t entry = closing.position(s, e);
      pool_entry(c, s, entry, row);
      norm_head(row, c.dim, c.norm, c.eps);
      rotate_pairs(row + c.dim - c.rotary_dim, c.rotary_dim, c.cos + e * (c.rotary_dim / 2), c.sin + e * (c.rotary_dim / 2), false);
      copy_row(row, static_cast<C*>(c.entries[s]) + entry * c.dim, c.dim);
    }
  });
  // Only now: the ring held what the entries above were made of.
  const int64_t width = c.a.cols;
  for (int s = 0; s < c.sequences.count; ++s) {
    const int64_t end = c.sequences.end_position(s);
    for (int64_t p = larger(c.sequences.first_position[s], end - c.ring_rows); p < end; ++p) {
      float* row = static_cast<float*>(c.ring[s]) + p % c.ring_rows * 2 * width;
      const PoolRow r = pool_row(c, s, p);
      for (int64_t i = 0; i < width; i += 16) {
        const int64_t n = smaller(16, width - i);
        vstore_n(row + i, vload_n(r.a + i, n), n);
        vstore_n(row + width + i, pool_score(r, i, n), n);
      }
    }
  }
}

// The best so far as a heap whose root is the worst of them.
struct BestEntries {
  float score[kMaxIndexTopK];
  int32_t id[kMaxIndexTopK];
  int64_t size = 0;

  bool worse(int64_t i, int64_t j) const { return score[i] < score[j] || (score[i] == score[j] && id[i] > id[j]); }
  void swap(int64_t i, int64_t j) {
    const float s = score[i];
    const int32_t e = id[i];
    score[i] = score[j], id[i] = id[j];
    score[j] = s, id[j] = e;
  }
  void sink(int64_t i) {
    for (;;) {
      int64_t least = i;
      for (int64_t child = 2 * i + 1; child <= 2 * i + 2 && child < size; ++child) {
        if (worse(child, least)) least = child;
      }
      if (least == i) return;
      swap(i, least);
      i = least;
    }
  }
  // Entries come ascending, so one that only equals the worst is worse.
  void show(float s, int32_t e, int64_t k) {
    if (size < k) {
      score[size] = s, id[size] = e;
      for (int64_t i = size++; i > 0 && worse(i, (i - 1) / 2); i = (i - 1) / 2) swap(i, (i - 1) / 2);
    } else if (s > score[0]) {
      score[0] = s, id[0] = e;
      sink(0);
    }
  }
  // id[0 .. size) ascending; the scores are lost.
  void sort_ids() {
    for (int64_t i = 0; i < size; ++i) score[i] = 0;  // then the highest id is the worst: heap sort puts it last
    for (int64_t i = size / 2 - 1; i >= 0; --i) sink(i);
    const int64_t n = size;
    while (size > 1) {
      swap(0, --size);
      sink(0);
    }
    size = n;
  }
};

inline constexpr int64_t kScoredKeys = 64;  // in one go

// Scores of the entries [e, e + keys) for token t into sum [kScoredKeys].
template <class C>
void score_entries(const IndexSelectArgs& a, int64_t t, const C* keys_of, int64_t e, int64_t keys, float* sum) {
  float scores[kTileRows * kScoredKeys];
  const float* weights = a.weights.row<const float>(t);
  for (int64_t i = 0; i < kScoredKeys; ++i) sum[i] = 0;
  for (int64_t h = 0; h < a.heads; h += kTileRows) {
    const int rows = static_cast<int>(smaller(kTileRows, a.heads - h));
    const float* q[kTileRows];
    for (int r = 0; r < rows; ++r) q[r] = a.q.row<const float>(t) + (h + r) * a.dim;
    dot_rows<F32Dot<C>>(q, rows, keys_of + e * a.dim, a.dim, keys, a.dim, scores, kScoredKeys, false);
    for (int r = 0; r < rows; ++r) {
      const Vec weight = vset(weights[h + r] * a.scale);
      for (int64_t i = 0; i < keys; i += 16) {
        const int64_t n = smaller(16, keys - i);
        // The score second: vmax gives the second operand when either is NaN.
        vstore_n(sum + i, vfma(weight, vmax(vzero(), vload_n(scores + r * kScoredKeys + i, n)), vload_n(sum + i, n)), n);
      }
    }
  }
}

// A token of `visible` entries by one thread, or its choice by one after all have scored: the same scores in the same order.
template <class C>
void select_entries(const IndexSelectArgs& a, int64_t t, const C* keys_of, int64_t visible, const float* scored) {
  BestEntries best;
  float sum[kScoredKeys];
  for (int64_t e = 0; e < visible; e += kScoredKeys) {
    const int64_t keys = smaller(kScoredKeys, visible - e);
    if (scored == nullptr) score_entries(a, t, keys_of, e, keys, sum);
    const float* of = scored != nullptr ? scored + e : sum;
    for (int64_t i = 0; i < keys; ++i) best.show(of[i], static_cast<int32_t>(e + i), a.top_k);
  }
  best.sort_ids();
  int32_t* ids = a.ids + t * a.top_k;
  for (int64_t i = 0; i < a.top_k; ++i) ids[i] = best.id[i];
}

template <class C>
void index_select_kernel(ThreadPool& pool, const IndexSelectArgs& a) {
  // Few tokens: the threads share the entries of each.
  const bool shares = a.scores != nullptr && a.q.rows < pool.num_threads();
  const auto keys_of = [&](int64_t t) { return static_cast<const C*>(a.keys[a.sequences.of_row(t)]); };
  const auto visible_to = [&](int64_t t) { return (a.sequences.position(a.sequences.of_row(t), t) + 1) / a.ratio; };
  const auto is_shared = [&](int64_t visible) { return shares && visible > a.top_k && visible <= a.num_scores; };
  for (int64_t t = 0; shares && t < a.q.rows; ++t) {
    const int64_t visible = visible_to(t);
    if (!is_shared(visible)) continue;
    const C* const keys = keys_of(t);
    pool.parallel_for((visible + kScoredKeys - 1) / kScoredKeys, 4, [&](int64_t first, int64_t last) {
      float sum[kScoredKeys];
      for (int64_t block = first; block < last; ++block) {
        const int64_t e = block * kScoredKeys, n = smaller(kScoredKeys, visible - e);
        score_entries(a, t, keys, e, n, sum);
        __builtin_memcpy(a.scores + e, sum, static_cast<size_t>(n) * sizeof(float));
      }
    });
    select_entries(a, t, keys, visible, a.scores);
  }
  pool.parallel_for(a.q.rows, 1, [&](int64_t first, int64_t last) {
    for (int64_t t = first; t < last; ++t) {
      const int64_t visible = visible_to(t);
      int32_t* ids = a.ids + t * a.top_k;
      a.counts[t] = static_cast<int32_t>(smaller(visible, a.top_k));
      if (visible <= a.top_k) {
        for (int64_t e = 0; e < visible; ++e) ids[e] = static_cast<int32_t>(e);
      } else if (!is_shared(visible)) {
        select_entries(a, t, keys_of(t), visible, nullptr);
      }
    }
  });
}

}  // namespace
}  // namespace pointsman::ops
