// SPDX-License-Identifier: Apache-2.0
//
// Rows are the heads of one token; keys are a list of rows in ring, chunk and entries. Include compress_isa.h and
// attention/attention_isa.h first.
#pragma once

#include "ops/compress/compress.h"

namespace pointsman::ops {
namespace {

// The keys of one token in order, by number.
template <class C>
struct KeyList {
  const CompressedAttentionArgs& a;
  int sequence;
  int64_t position, token;
  int64_t lowest;      // of the window
  int64_t in_window;
  int64_t size;

  KeyList(const CompressedAttentionArgs& args, int64_t t)
      : a(args), sequence(args.sequences.of_row(t)), position(args.sequences.position(sequence, t)), token(t) {
    lowest = larger(0, position - a.window + 1);
    in_window = position - lowest + 1;
    size = in_window;
    if (a.has_entries()) size += a.ids != nullptr ? a.counts[t] : (position + 1) / a.ratio;
  }
  const C* at(int64_t i) const {
    if (i >= in_window) {
      const int64_t e = a.ids != nullptr ? a.ids[token * a.max_ids + i - in_window] : i - in_window;
      return static_cast<const C*>(a.entries[sequence]) + e * a.dim;
    }
    const int64_t p = lowest + i;
    const int64_t first = a.sequences.first_position[sequence];
    if (p >= first) return a.new_keys.row<const C>(a.sequences.first_row[sequence] + p - first);
    return static_cast<const C*>(a.ring[sequence]) + p % a.ring_rows * a.dim;
  }
};

// scores[r][j] = q[r] . keys[j]; runs of keys that follow one another in memory are one call.
template <class Dot, class C>
void score_keys(const C* const* q, int rows, const C* const* keys, int64_t n, int64_t dim, float* scores) {
  for (int64_t from = 0; from < n;) {
    int64_t to = from + 1;
    while (to < n && keys[to] == keys[to - 1] + dim) ++to;
    dot_rows<Dot>(q, rows, keys[from], dim, to - from, dim, scores + from, kAttentionKeyBlock, false);
    from = to;
  }
}

// o[r][d] += sum over j of p[r][j] * keys[j][d], j ascending.
template <class C>
void add_listed_values(const float* p, int rows, const C* const* keys, int64_t n, int64_t dim, float* o) {
  for (int64_t d = 0; d < dim; d += 16) {
    const int64_t c = smaller(16, dim - d);
    Vec acc[kTileRows];
    for (int r = 0; r < rows; ++r) acc[r] = vload_n(o + r * kMaxHeadDim + d, c);
    for (int64_t j = 0; j < n; ++j) {
      const Vec v = c == 16 ? vload(keys[j] + d) : vload_n(keys[j] + d, c);
      for (int r = 0; r < rows; ++r) acc[r] = vfma(vset(p[r * kAttentionKeyBlock + j]), v, acc[r]);
    }
    for (int r = 0; r < rows; ++r) vstore_n(o + r * kMaxHeadDim + d, acc[r], c);
  }
}

// Up to kTileRows heads of one token.
template <class Dot, class C>
void attend_heads(const CompressedAttentionArgs& a, int64_t t, int64_t head, int rows) {
  const KeyList<C> list(a, t);
  float scores[kTileRows * kAttentionKeyBlock];
  float o[kTileRows * kMaxHeadDim];
  C q[kTileRows * kMaxHeadDim];
  const C* q_rows[kTileRows];
  float max[kTileRows], sum[kTileRows * 16];
  for (int r = 0; r < rows; ++r) {
    to_cache(a.q.row<const float>(t) + (head + r) * a.dim, q + r * kMaxHeadDim, a.dim);
    q_rows[r] = q + r * kMaxHeadDim;
    max[r] = kMinusInfinity;
    vstore(sum + 16 * r, vzero());
    __builtin_memset(o + r * kMaxHeadDim, 0, static_cast<size_t>(a.dim) * sizeof(float));
  }
  for (int64_t b = 0; b < list.size; b += kAttentionKeyBlock) {
    const int64_t n = smaller(kAttentionKeyBlock, list.size - b);
    const C* keys[kAttentionKeyBlock];
    for (int64_t j = 0; j < n; ++j) keys[j] = list.at(b + j);
    score_keys<Dot>(q_rows, rows, keys, n, a.dim, scores);
    for (int r = 0; r < rows; ++r) {
      float* s = scores + r * kAttentionKeyBlock;
      online_softmax(s, 0, n, a.scale, a.dim, max[r], sum + 16 * r, o + r * kMaxHeadDim, s);
    }
    add_listed_values(scores, rows, keys, n, a.dim, o);
  }
  for (int r = 0; r < rows; ++r) {
    // The sink joins the denominator alone.
    const float sink = a.sinks[head + r];
    const float highest = sink > max[r] ? sink : max[r];
    const float correction = first_lane(vexp(vset(max[r] - highest)));
    const Vec total = vset(vsum(vload(sum + 16 * r)) * correction + first_lane(vexp(vset(sink - highest))));
    float* out = a.out.row<float>(t) + (head + r) * a.dim;
    for (int64_t d = 0; d < a.dim; d += 16) {
      const int64_t c = smaller(16, a.dim - d);
      vstore_n(out + d, vdiv(vmul(vload_n(o + r * kMaxHeadDim + d, c), vset(correction)), total), c);
    }
  }
}

template <class Dot, class C>
void compressed_attention_kernel(ThreadPool& pool, const CompressedAttentionArgs& a) {
  const int64_t blocks = (a.heads + kTileRows - 1) / kTileRows;
  pool.parallel_for(a.q.rows * blocks, 1, [&](int64_t first, int64_t last) {
    [[maybe_unused]] const typename Dot::Denormals denormals;
    for (int64_t i = first; i < last; ++i) {
      const int64_t head = i % blocks * kTileRows;
      attend_heads<Dot, C>(a, i / blocks, head, static_cast<int>(smaller(kTileRows, a.heads - head)));
    }
  });
  // Only now: the ring held what the queries above needed.
  for (int s = 0; s < a.sequences.count; ++s) {
    const int64_t first_row = a.sequences.first_row[s], n = a.sequences.rows_of(s);
    for (int64_t i = larger(0, n - a.ring_rows); i < n; ++i) {
      __builtin_memcpy(static_cast<C*>(a.ring[s]) + (a.sequences.first_position[s] + i) % a.ring_rows * a.dim, a.new_keys.row<const C>(first_row + i),
                       static_cast<size_t>(a.dim) * sizeof(C));
    }
  }
}

}  // namespace
}  // namespace pointsman::ops
