// SPDX-License-Identifier: Apache-2.0
//
// Attention: rows are the query heads of one token that share a key/value head; keys come in blocks of 64 at absolute positions.
// Include a vec_*.h, isa/math.h, isa/tile.h, matmul/matmul_isa.h and norm/rms_norm_isa.h first.
#pragma once

#include "ops/attention/attention.h"

namespace pointsman::ops {
namespace {

inline constexpr float kMinusInfinity = -__builtin_inff();

inline void to_cache(const float* src, float* dst, int64_t n) { __builtin_memcpy(dst, src, static_cast<size_t>(n) * sizeof(float)); }
inline void to_cache(const float* src, bf16* dst, int64_t n) {
  for (int64_t i = 0; i < n; i += 16) vstore_n(dst + i, vload_n(src + i, smaller(16, n - i)), smaller(16, n - i));
}

inline void clamp_row(float* x, float limit, int64_t n) {
  for (int64_t i = 0; i < n; i += 16) {
    const int64_t c = smaller(16, n - i);
    // x second: vmax and vmin give the second operand when either is NaN.
    vstore_n(x + i, vmin(vset(limit), vmax(vset(-limit), vload_n(x + i, c))), c);
  }
}

// Norm, clamp and rotation of one head, in place.
inline void prepare_head(float* x, const float* norm, const QkvPrepareArgs& a, int64_t token) {
  if (norm != nullptr) {
    const Vec scale = vset(inverse_rms(x, a.head_dim, a.eps));
    for (int64_t i = 0; i < a.head_dim; i += 16) {
      const int64_t c = smaller(16, a.head_dim - i);
      vstore_n(x + i, vmul(vmul(vload_n(x + i, c), scale), vload_n(norm + i, c)), c);
    }
  }
  if (a.clip > 0) clamp_row(x, a.clip, a.head_dim);
  const int64_t half = a.rotary_dim / 2;
  for (int64_t i = 0; i < half; i += 16) {
    const int64_t c = smaller(16, half - i);
    const Vec cos = vload_n(a.cos + token * half + i, c), sin = vload_n(a.sin + token * half + i, c);
    const Vec first = vload_n(x + i, c), second = vload_n(x + half + i, c);
    vstore_n(x + i, vsub(vmul(first, cos), vmul(second, sin)), c);
    vstore_n(x + half + i, vadd(vmul(second, cos), vmul(first, sin)), c);
  }
}

template <class C>
void qkv_prepare_kernel(ThreadPool& pool, const QkvPrepareArgs& a) {
  pool.parallel_for(a.q.rows, larger(1, 8192 / larger(1, (a.heads + 2 * a.kv_heads) * a.head_dim)), [&](int64_t first, int64_t last) {
    for (int64_t t = first; t < last; ++t) {
      for (int64_t h = 0; h < a.heads; ++h) prepare_head(a.q.row<float>(t) + h * a.head_dim, a.q_norm, a, t);
      for (int64_t h = 0; h < a.kv_heads; ++h) {
        float* k = a.k.row<float>(t) + h * a.head_dim;
        prepare_head(k, a.k_norm, a, t);
        const int64_t at = (h * a.capacity + a.first_position + t) * a.head_dim;
        to_cache(k, static_cast<C*>(a.k_cache) + at, a.head_dim);
        if (a.clip > 0) clamp_row(a.v.row<float>(t) + h * a.head_dim, a.clip, a.head_dim);
        to_cache(a.v.row<const float>(t) + h * a.head_dim, static_cast<C*>(a.v_cache) + at, a.head_dim);
      }
    }
  });
}

// o[r][d] += sum over the keys j of p[r][j] * v[j][d], j ascending. Rows of v are v_row elements apart.
template <int R, class C>
void add_values(const float* p, const C* v, int64_t from, int64_t to, int64_t head_dim, int64_t v_row, float* o) {
  int64_t d = 0;
  for (; d + 32 <= head_dim; d += 32) {
    Vec acc[R][2];
    for (int r = 0; r < R; ++r) acc[r][0] = vload(o + r * kMaxHeadDim + d), acc[r][1] = vload(o + r * kMaxHeadDim + d + 16);
    for (int64_t j = from; j < to; ++j) {
      const Vec v0 = vload(v + j * v_row + d), v1 = vload(v + j * v_row + d + 16);
      for (int r = 0; r < R; ++r) {
        const Vec pj = vset(p[r * kAttentionKeyBlock + j]);
        acc[r][0] = vfma(pj, v0, acc[r][0]);
        acc[r][1] = vfma(pj, v1, acc[r][1]);
      }
    }
    for (int r = 0; r < R; ++r) vstore(o + r * kMaxHeadDim + d, acc[r][0]), vstore(o + r * kMaxHeadDim + d + 16, acc[r][1]);
  }
  for (; d < head_dim; d += 16) {
    const int64_t c = smaller(16, head_dim - d);
    for (int r = 0; r < R; ++r) {
      Vec acc = vload_n(o + r * kMaxHeadDim + d, c);
      for (int64_t j = from; j < to; ++j) acc = vfma(vset(p[r * kAttentionKeyBlock + j]), vload_n(v + j * v_row + d, c), acc);
      vstore_n(o + r * kMaxHeadDim + d, acc, c);
    }
  }
}
template <class C>
void add_values_of(int rows, const float* p, const C* v, int64_t from, int64_t to, int64_t head_dim, int64_t v_row, float* o) {
  switch (rows) {
    case 1: return add_values<1>(p, v, from, to, head_dim, v_row, o);
    case 2: return add_values<2>(p, v, from, to, head_dim, v_row, o);
    case 3: return add_values<3>(p, v, from, to, head_dim, v_row, o);
    case 4: return add_values<4>(p, v, from, to, head_dim, v_row, o);
    case 5: return add_values<5>(p, v, from, to, head_dim, v_row, o);
    case 6: return add_values<6>(p, v, from, to, head_dim, v_row, o);
  }
}

inline float first_lane(Vec v) {
  float f[16];
  vstore(f, v);
  return f[0];
}

// Scores of one row become probabilities relative to the new maximum; what was summed so far is scaled down to it.
inline void online_softmax(float* s, int64_t from, int64_t to, float scale, int64_t head_dim, float& max, float& sum, float* o) {
  for (int64_t j = 0; j < from; ++j) s[j] = kMinusInfinity;
  for (int64_t j = to; j < kAttentionKeyBlock; ++j) s[j] = kMinusInfinity;
  Vec v[4];
  for (int i = 0; i < 4; ++i) v[i] = vmul(vload(s + 16 * i), vset(scale));
  const float highest = vhighest(vmax(vmax(v[0], v[1]), vmax(v[2], v[3])));
  const float next = highest > max ? highest : max;
  for (int i = 0; i < 4; ++i) {
    v[i] = vexp(vsub(v[i], vset(next)));
    vstore(s + 16 * i, v[i]);
  }
  const float correction = first_lane(vexp(vset(max - next)));
  sum = sum * correction + vsum(vadd(vadd(v[0], v[1]), vadd(v[2], v[3])));
  if (correction != 1.0f) {
    for (int64_t d = 0; d < head_dim; d += 16) {
      const int64_t c = smaller(16, head_dim - d);
      vstore_n(o + d, vmul(vload_n(o + d, c), vset(correction)), c);
    }
  }
  max = next;
}

// The values of a block are read in columns, a pattern that no processor guesses: asked for while the scores are computed.
template <class C>
inline void ask_for(const C* p, int64_t n) {
  for (int64_t i = 0; i < n; i += static_cast<int64_t>(64 / sizeof(C))) __builtin_prefetch(p + i);
}

template <class Dot, class C>
void attention_kernel(ThreadPool& pool, const AttentionArgs& a) {
  const int64_t tokens = a.q.rows;
  const int64_t group = a.heads / a.kv_heads;
  const int64_t dim = a.head_dim;
  const int64_t v_dim = a.v_head_dim > 0 ? a.v_head_dim : dim;
  const int64_t v_row = a.v_row > 0 ? a.v_row : v_dim;
  const int64_t tiles = (group + kTileRows - 1) / kTileRows;
  // Per (kv head, token, tile of heads): about (position x heads x dim) products. Tokens of one kv head follow one another and share its keys;
  // one key head for many query heads (latent attention) still keeps all threads busy.
  const bool from_memory = tokens == 1;  // of many tokens, one reads the keys and the others find them in the cache
  const int64_t grain = larger(1, (1 << 18) / larger(1, (a.first_position + tokens) * smaller(group, kTileRows) * dim));
  pool.parallel_for(a.kv_heads * tokens * tiles, grain, [&](int64_t first, int64_t last) {
    [[maybe_unused]] const typename Dot::Denormals denormals;
    float scores[kTileRows * kAttentionKeyBlock];
    float o[kTileRows * kMaxHeadDim];
    C q[kTileRows * kMaxHeadDim];
    for (int64_t index = first; index < last; ++index) {
      const int64_t kv_head = index / tiles / tokens, t = index / tiles % tokens, g = index % tiles * kTileRows;
      const int64_t position = a.first_position + t;
      const int64_t lowest = a.window > 0 ? larger(0, position - a.window + 1) : 0;
      const C* keys = static_cast<const C*>(a.k_cache) + kv_head * a.capacity * dim;
      const C* values = static_cast<const C*>(a.v_cache) + kv_head * a.capacity * v_row;
      const int rows = static_cast<int>(smaller(kTileRows, group - g));
      const int64_t head = kv_head * group + g;
      const C* q_rows[kTileRows];
      float max[kTileRows], sum[kTileRows];
      for (int r = 0; r < rows; ++r) {
        to_cache(a.q.row<const float>(t) + (head + r) * dim, q + r * kMaxHeadDim, dim);
        q_rows[r] = q + r * kMaxHeadDim;
        max[r] = kMinusInfinity;
        sum[r] = 0;
        __builtin_memset(o + r * kMaxHeadDim, 0, static_cast<size_t>(v_dim) * sizeof(float));
      }
      for (int64_t b = lowest / kAttentionKeyBlock * kAttentionKeyBlock; b <= position; b += kAttentionKeyBlock) {
        if (from_memory && g == 0) ask_for(values + b * v_row, v_row * smaller(kAttentionKeyBlock, position - b + 1));
        const int64_t from = larger(0, lowest - b), to = smaller(kAttentionKeyBlock, position - b + 1);
        dot_rows<Dot>(q_rows, rows, keys + b * dim, dim, to, dim, scores, kAttentionKeyBlock, from_memory && g == 0);
        for (int r = 0; r < rows; ++r) {
          online_softmax(scores + r * kAttentionKeyBlock, from, to, a.scale, v_dim, max[r], sum[r], o + r * kMaxHeadDim);
        }
        add_values_of(rows, scores, values + b * v_row, from, to, v_dim, v_row, o);
      }
      for (int r = 0; r < rows; ++r) {
        Vec factor = vset(1), total = vset(sum[r]);
        if (a.sinks != nullptr) {
          const float sink = a.sinks[head + r], next = sink > max[r] ? sink : max[r];
          factor = vexp(vset(max[r] - next));
          total = vadd(vmul(total, factor), vexp(vset(sink - next)));
        }
        for (int64_t d = 0; d < v_dim; d += 16) {
          const int64_t c = smaller(16, v_dim - d);
          Vec y = vload_n(o + r * kMaxHeadDim + d, c);
          if (a.sinks != nullptr) y = vmul(y, factor);
          y = vdiv(y, total);
          const int64_t column = (head + r) * v_dim + d;
          if (a.out.dtype == DType::kBF16) {
            vstore_n(a.out.row<bf16>(t) + column, y, c);
          } else {
            vstore_n(a.out.row<float>(t) + column, y, c);
          }
        }
      }
    }
  });
}

}  // namespace
}  // namespace pointsman::ops
