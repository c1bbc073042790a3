// SPDX-License-Identifier: Apache-2.0
//
// Attention: rows are query heads of tokens of one sequence that share a key/value head; keys come in blocks of 64 at absolute positions.
// Include a vec_*.h, isa/math.h, isa/tile.h, matmul/matmul_isa.h and norm/rms_norm_isa.h first.
#pragma once

#include "ops/attention/attention.h"
#include "ops/sequences.h"

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

// One head's plane of the cache: elements as they are, eight-bit codes with one fp32 scale for each head and position (the scales of all
// heads before all codes), or tiles of bf16.
struct CacheTile {};
template <class C>
struct CacheHead {
  using Element = C;
  CacheHead(const void* plane, int64_t /*heads*/, int64_t head, int64_t capacity, int64_t row) : rows(static_cast<const C*>(plane) + head * capacity * row) {}
  const C* rows;
  static constexpr bool kScaled = false;
};
template <>
struct CacheHead<CacheTile> {
  using Element = bf16;
  CacheHead(const void* plane, int64_t /*heads*/, int64_t head, int64_t capacity, int64_t row)
      : rows(static_cast<const bf16*>(plane) + head * tiled_head_elements(capacity, row)) {}
  const bf16* rows;
  static constexpr bool kScaled = false;
};
template <>
struct CacheHead<int8_t> {
  using Element = int8_t;
  CacheHead(const void* plane, int64_t heads, int64_t head, int64_t capacity, int64_t row)
      : rows(static_cast<const int8_t*>(plane) + heads * capacity * static_cast<int64_t>(sizeof(float)) + head * capacity * row),
        scales(static_cast<const float*>(plane) + head * capacity) {}
  const int8_t* rows;
  const float* scales;
  static constexpr bool kScaled = true;
};

// The scale of a row is its largest magnitude over 127. A row that is not finite gets a scale of NaN, so that it shows.
inline float to_codes(const float* x, int8_t* codes, int64_t n) {
  Vec largest = vzero(), check = vzero();
  for (int64_t i = 0; i < n; i += 16) {
    const Vec v = vload_n(x + i, smaller(16, n - i));
    largest = vmax(largest, vmax(v, vsub(vzero(), v)));
    check = vfma(v, vzero(), check);
  }
  const float most = vhighest(largest);
  if (vmask_less(check, vset(1)) != 0xffff) {
    __builtin_memset(codes, 0, static_cast<size_t>(n));
    return __builtin_nanf("");
  }
  // A largest value so small that its inverse overflows: zeros.
  const float inverse = most > 1e-36f ? 127.0f / most : 0.0f;
  for (int64_t i = 0; i < n; i += 16) {
    const int64_t c = smaller(16, n - i);
    vstore_n(codes + i, vmax(vset(-127), vmin(vset(127), vmul(vload_n(x + i, c), vset(inverse)))), c);
  }
  return most / 127.0f;
}
enum class CachePart { kKey, kValue };
template <class C, CachePart kPart>
void store_in_cache(const float* x, void* plane, const QkvPrepareArgs& a, int64_t head, int64_t position) {
  const CacheHead<C> to(plane, a.kv_heads, head, a.capacity, a.head_dim);
  using Element = typename CacheHead<C>::Element;
  Element* const head_rows = const_cast<Element*>(to.rows);
  if constexpr (__is_same(C, CacheTile)) {
    bf16 row[kMaxHeadDim + 1];
    to_cache(x, row, a.head_dim);
    row[a.head_dim] = bf16{};
    if constexpr (kPart == CachePart::kKey) {
      bf16* at = head_rows + tiled_key_at(position, 0, a.head_dim);
      for (int64_t d = 0; d < a.head_dim; d += 2, at += 2 * kAttentionKeyBlock) __builtin_memcpy(at, row + d, 2 * sizeof(bf16));
    } else {
      // Element by element: the other position of the pair may be written by another thread at the same time.
      bf16* const at = head_rows + tiled_value_at(position, 0, a.head_dim);
      for (int64_t d = 0; d < a.head_dim; ++d) at[2 * d] = row[d];
    }
  } else {
    Element* const row = head_rows + position * a.head_dim;
    if constexpr (CacheHead<C>::kScaled) const_cast<float*>(to.scales)[position] = to_codes(x, row, a.head_dim);
    else to_cache(x, row, a.head_dim);
  }
}

// Asks for the tiles that a position belongs to, of every head: a new key touches a quarter of the lines, and attention is next. Not where they would be
// out of the second-level cache again by then.
inline constexpr int64_t kMostTilesAsked = 256 * 1024;
inline void ask_tiles(const QkvPrepareArgs& a, int s, int64_t position) {
  if (a.q.rows * a.kv_heads * 2 * tile_elements(a.head_dim) * static_cast<int64_t>(sizeof(bf16)) > kMostTilesAsked) return;
  for (int64_t h = 0; h < a.kv_heads; ++h) {
    for (const void* plane : {a.k_cache[s], a.v_cache[s]}) {
      const CacheHead<CacheTile> head(plane, a.kv_heads, h, a.capacity, a.head_dim);
      const auto* tile = reinterpret_cast<const char*>(head.rows + tiled_key_at(position / kAttentionKeyBlock * kAttentionKeyBlock, 0, a.head_dim));
      for (int64_t i = 0; i < tile_elements(a.head_dim) * static_cast<int64_t>(sizeof(bf16)); i += 64) __builtin_prefetch(tile + i, 1, 2);
    }
  }
}

template <class C>
void qkv_prepare_kernel(ThreadPool& pool, const QkvPrepareArgs& a) {
  pool.parallel_for(a.q.rows, larger(1, 8192 / larger(1, (a.heads + 2 * a.kv_heads) * a.head_dim)), [&](int64_t first, int64_t last) {
    for (int64_t t = first; t < last; ++t) {
      const int s = a.sequences.of_row(t);
      if constexpr (__is_same(C, CacheTile)) ask_tiles(a, s, a.sequences.position(s, t));
      for (int64_t h = 0; h < a.heads; ++h) prepare_head(a.q.row<float>(t) + h * a.head_dim, a.q_norm, a, t);
      for (int64_t h = 0; h < a.kv_heads; ++h) {
        float* k = a.k.row<float>(t) + h * a.head_dim;
        prepare_head(k, a.k_norm, a, t);
        store_in_cache<C, CachePart::kKey>(k, a.k_cache[s], a, h, a.sequences.position(s, t));
        if (a.clip > 0) clamp_row(a.v.row<float>(t) + h * a.head_dim, a.clip, a.head_dim);
        store_in_cache<C, CachePart::kValue>(a.v.row<const float>(t) + h * a.head_dim, a.v_cache[s], a, h, a.sequences.position(s, t));
      }
    }
  });
}

inline float first_lane(Vec v) {
  float f[16];
  vstore(f, v);
  return f[0];
}

// Scores of one row become probabilities relative to the new maximum, in p (of fp32 or bf16); what was summed so far is scaled down to it. `sum`: the
// sixteen lanes of the sum.
template <class P>
inline void online_softmax(float* s, int64_t from, int64_t to, float scale, int64_t head_dim, float& max, float* sum, float* o, P* p) {
  for (int64_t j = 0; j < from; ++j) s[j] = kMinusInfinity;
  for (int64_t j = to; j < kAttentionKeyBlock; ++j) s[j] = kMinusInfinity;
  Vec v[4];
  for (int i = 0; i < 4; ++i) v[i] = vmul(vload(s + 16 * i), vset(scale));
  const float highest = vhighest(vmax(vmax(v[0], v[1]), vmax(v[2], v[3])));
  const float next = highest > max ? highest : max;
  for (int i = 0; i < 4; ++i) {
    v[i] = vexp(vsub(v[i], vset(next)));
    if constexpr (sizeof(P) < sizeof(float)) v[i] = vstore_rounded(p + 16 * i, v[i]);
    else vstore(p + 16 * i, v[i]);
  }
  const Vec added = vadd(vadd(v[0], v[1]), vadd(v[2], v[3]));
  if (next == max) {
    vstore(sum, vadd(vload(sum), added));
  } else {
    const float correction = first_lane(vexp(vset(max - next)));
    vstore(sum, vfma(vload(sum), vset(correction), added));
    for (int64_t d = 0; d < head_dim; d += 16) {
      const int64_t c = smaller(16, head_dim - d);
      vstore_n(o + d, vmul(vload_n(o + d, c), vset(correction)), c);
    }
  }
  max = next;
}

// --- Tiles of query rows -------------------------------------------------------------------------------------------------------------------
//
// Rows are (token, head) pairs of one sequence and one key/value head, up to kMaxBlockOfRows of them, so that a block of keys is read and
// rearranged once for all. Keys lie in lanes: the block is transposed to [dim / unit][64 keys][unit], and a score is one chain over the dimension.
// Every row keeps its own range, maximum and sums, and is met by the same blocks in the same order whoever shares the call.

inline constexpr int64_t kMaxBlockOfRows = 48;
inline constexpr int64_t kBlockFloats = 96 * 128;  // of the sums in a block of rows
inline constexpr int64_t kFewRows = 12;           // then keys come from memory more likely than not, and values are not worth widening
inline constexpr int64_t kWideKey = 256;         // a block of wider keys leaves the caches between two blocks of rows
inline constexpr int64_t kPanelUnits = 128;        // 32-bit units of each key, or channels of each value, rearranged at once: 32 KiB

// Few rows meet keys that come from memory: the lines of the next block are asked for one by one between the arithmetic of this one. All at once
// they would fill the queue of misses and stop everything behind it.
struct Ahead {
  const char* at = nullptr;
  int64_t lines = 0;
  const char* then = nullptr;
  int64_t then_lines = 0;

  [[gnu::always_inline]] void step() {
    if (lines == 0) {
      if (then_lines == 0) return;
      at = then, lines = then_lines, then_lines = 0;
    }
    __builtin_prefetch(at, 0, 2);
    at += 64;
    --lines;
  }
};
// For tiles: a step asks for as many lines as a unit of keys has, kTileLead steps ahead; beyond the end of one tile the beginning of the other.
inline constexpr int64_t kTileLead = 16;
struct TileAhead {
  static constexpr int64_t kStepBytes = 4 * kAttentionKeyBlock;
  TileAhead(const bf16* now, const bf16* next, int64_t elements) : then(reinterpret_cast<const char*>(next)) {
    const int64_t steps = elements * static_cast<int64_t>(sizeof(bf16)) / kStepBytes, lead = smaller(steps, kTileLead);
    left = steps - lead;
    at = left > 0 ? reinterpret_cast<const char*>(now) + lead * kStepBytes : then;
  }
  [[gnu::always_inline]] void step() {
    for (int64_t i = 0; i < kStepBytes; i += 64) __builtin_prefetch(at + i);
    at += kStepBytes;
    if (--left == 0) at = then;
  }
  const char* at;
  const char* then;
  int64_t left;
};
struct NothingAhead {
  void step() {}
};

// Sixteen rows of keys as columns: out[u][64] units, zeros where there is no key (`keys` of them are there). `elements` of each row, from p on.
template <class C, class A>
void panel_rows(const C* p, int64_t stride, int64_t keys, int64_t elements, float* out, A& ahead) {
  constexpr int64_t kPerUnit = static_cast<int64_t>(sizeof(float) / sizeof(C));
  const int64_t units = (elements + kPerUnit - 1) / kPerUnit;
  for (int64_t u = 0; u < units; u += 16, out += 16 * kAttentionKeyBlock) {
    const C* tile = p + u * kPerUnit;
    const int64_t left = elements - u * kPerUnit;
    Vec r[16];
    if (keys >= 16 && left >= 16 * kPerUnit) {
#pragma GCC unroll 16
      for (int64_t i = 0; i < 16; ++i) r[i] = vload_units(tile + i * stride);
      vtranspose(r);
      for (int i = 0; i < 6; ++i) ahead.step();
#pragma GCC unroll 16
      for (int64_t i = 0; i < 16; ++i) vstore(out + i * kAttentionKeyBlock, r[i]);
      continue;
    }
    for (int64_t i = 0; i < 16; ++i) {
      float t[16] = {};
      if (i < keys) __builtin_memcpy(t, tile + i * stride, static_cast<size_t>(smaller(left, 16 * kPerUnit)) * sizeof(C));
      r[i] = vload_units(t);
    }
    vtranspose(r);
    for (int64_t i = 0; i < 16 && u + i < units; ++i) vstore(out + i * kAttentionKeyBlock, r[i]);
  }
}
template <class C, class A>
void panel_of_keys(const C* p, int64_t stride, int64_t keys, int64_t elements, float* panel, A& ahead) {
  for (int64_t j = 0; j < kAttentionKeyBlock; j += 16) panel_rows(p + j * stride, stride, larger(0, keys - j), elements, panel + j, ahead);
}

// s[r][j] (+)= q[r] . key j over the units of a panel, for kVecs x 16 keys.
template <class Dot, int R, int kVecs, class A>
void score_tile(const typename Dot::X* const* q, const float* panel, int64_t units, bool is_first, float* s, A& ahead) {
  Vec acc[R][kVecs];
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < kVecs; ++v) acc[r][v] = is_first ? vzero() : vload(s + r * kAttentionKeyBlock + 16 * v);
  }
  for (int64_t u = 0; u < units; ++u) {
    decltype(Dot::load_w(static_cast<const typename Dot::X*>(nullptr))) w[kVecs];
    ahead.step();
    for (int v = 0; v < kVecs; ++v) w[v] = Dot::load_w(reinterpret_cast<const typename Dot::X*>(panel + u * kAttentionKeyBlock + 16 * v));
    for (int r = 0; r < R; ++r) {
      const auto x = Dot::broadcast(q[r] + u * Dot::kUnit);
      for (int v = 0; v < kVecs; ++v) acc[r][v] = Dot::step(acc[r][v], x, w[v]);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < kVecs; ++v) vstore(s + r * kAttentionKeyBlock + 16 * v, acc[r][v]);
  }
}
template <class Dot, int R, class A>
void score_rows(const typename Dot::X* const* q, const float* panel, int64_t units, bool is_first, int64_t keys, float* s, A& ahead) {
  int64_t j = 0;
  for (; j + 16 * kTileVecs <= (keys + 15) / 16 * 16; j += 16 * kTileVecs) score_tile<Dot, R, kTileVecs>(q, panel + j, units, is_first, s + j, ahead);
  if constexpr (kTileVecs > 2) {
    for (; j + 32 <= (keys + 15) / 16 * 16; j += 32) score_tile<Dot, R, 2>(q, panel + j, units, is_first, s + j, ahead);
  }
  for (; j < keys; j += 16) score_tile<Dot, R, 1>(q, panel + j, units, is_first, s + j, ahead);
}

// o[r][d] += sum over the keys j of p[r][j] * v[j][d], j ascending; d in whole vectors, then what is left.
template <int R, int kVecs, class C, class A>
void value_tile(const float* p, const C* v, int64_t stride, int64_t from, int64_t to, float* o, int64_t o_stride, A& ahead) {
  Vec acc[R][kVecs];
  for (int r = 0; r < R; ++r) {
    for (int i = 0; i < kVecs; ++i) acc[r][i] = vload(o + r * o_stride + 16 * i);
  }
  for (int64_t j = from; j < to; ++j) {
    Vec x[kVecs];
    ahead.step(), ahead.step();
    for (int i = 0; i < kVecs; ++i) x[i] = vload(v + j * stride + 16 * i);
    for (int r = 0; r < R; ++r) {
      const Vec pj = vset(p[r * kAttentionKeyBlock + j]);
      for (int i = 0; i < kVecs; ++i) acc[r][i] = vfma(pj, x[i], acc[r][i]);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int i = 0; i < kVecs; ++i) vstore(o + r * o_stride + 16 * i, acc[r][i]);
  }
}
template <int R, class C, class A>
void value_rows(const float* p, const C* v, int64_t stride, int64_t from, int64_t to, int64_t channels, float* o, int64_t o_stride, A& ahead) {
  if (from >= to) return;
  constexpr int kVecs = R == 1 && kTileVecs > 1 ? 8 : kTileVecs;  // one row: more chains
  int64_t d = 0;
  for (; d + 16 * kVecs <= channels; d += 16 * kVecs) value_tile<R, kVecs>(p, v + d, stride, from, to, o + d, o_stride, ahead);
  for (; d + 16 <= channels; d += 16) value_tile<R, 1>(p, v + d, stride, from, to, o + d, o_stride, ahead);
  if (d == channels) return;
  for (int r = 0; r < R; ++r) {
    Vec acc = vload_n(o + r * o_stride + d, channels - d);
    for (int64_t j = from; j < to; ++j) acc = vfma(vset(p[r * kAttentionKeyBlock + j]), vload_n(v + j * stride + d, channels - d), acc);
    vstore_n(o + r * o_stride + d, acc, channels - d);
  }
}

// The same over pairs of keys [from, to) of a tile of values: o[r][d] += p[r][2j] * v[j][d][0] and p[r][2j + 1] * v[j][d][1], as pdot adds them.
// `kept` says which of a pair count, in all of them.
inline constexpr uint32_t kBothOfPair = 0xffffffffu;
template <int R, int kVecs, bool kWhole, class A>
void pair_tile(const bf16* p, const bf16* v, int64_t dim, int64_t from, int64_t to, uint32_t kept, float* o, int64_t o_stride, A& ahead) {
  Vec acc[R][kVecs];
  for (int r = 0; r < R; ++r) {
    for (int i = 0; i < kVecs; ++i) acc[r][i] = vload(o + r * o_stride + 16 * i);
  }
  for (int64_t j = from; j < to; ++j) {
    Pairs x[kVecs];
    ahead.step(), ahead.step();
    for (int i = 0; i < kVecs; ++i) {
      x[i] = pload(v + j * 2 * dim + 32 * i);
      if constexpr (!kWhole) x[i] = pkeep(x[i], kept);
    }
    for (int r = 0; r < R; ++r) {
      const Pairs pj = pset(p + r * kAttentionKeyBlock + 2 * j);
      for (int i = 0; i < kVecs; ++i) acc[r][i] = pdot(acc[r][i], pj, x[i]);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int i = 0; i < kVecs; ++i) vstore(o + r * o_stride + 16 * i, acc[r][i]);
  }
}
template <int R, bool kWhole, class A>
void pair_rows(const bf16* p, const bf16* v, int64_t dim, int64_t from, int64_t to, uint32_t kept, float* o, int64_t o_stride, A& ahead) {
  if (from >= to) return;
  constexpr int kVecs = R == 1 && kTileVecs > 1 ? 8 : kTileVecs;
  int64_t d = 0;
  for (; d + 16 * kVecs <= dim; d += 16 * kVecs) pair_tile<R, kVecs, kWhole>(p, v + 2 * d, dim, from, to, kept, o + d, o_stride, ahead);
  for (; d + 16 <= dim; d += 16) pair_tile<R, 1, kWhole>(p, v + 2 * d, dim, from, to, kept, o + d, o_stride, ahead);
  if (d == dim) return;
  for (int r = 0; r < R; ++r) {
    Vec acc = vload_n(o + r * o_stride + d, dim - d);
    for (int64_t j = from; j < to; ++j) {
      acc = pdot(acc, pset(p + r * kAttentionKeyBlock + 2 * j), pkeep(pload_n(v + j * 2 * dim + 2 * d, 2 * (dim - d)), kept));
    }
    vstore_n(o + r * o_stride + d, acc, dim - d);
  }
}
// One row over the pairs of [from, to) among those of its own keys [low, high): what lies beside them in the first and the last pair does not count.
inline void pairs_at_edge(const bf16* p, const bf16* v, int64_t dim, int64_t low, int64_t high, int64_t from, int64_t to, float* o, int64_t o_stride) {
  NothingAhead nothing;
  for (int64_t j = from; j < to; ++j) {
    const bool is_whole = 2 * j >= low && 2 * j + 2 <= high;
    if (is_whole) {
      const int64_t end = smaller(to, high / 2);
      pair_rows<1, true>(p, v, dim, j, end, kBothOfPair, o, o_stride, nothing);
      j = end - 1;
    } else {
      pair_rows<1, false>(p, v, dim, j, j + 1, (2 * j >= low ? 0xffffu : 0) | (2 * j + 2 <= high ? 0xffff0000u : 0), o, o_stride, nothing);
    }
  }
}

// Calls f.template operator()<R>(r) for tiles of rows [from, to).
template <class F>
void for_row_tiles(int64_t from, int64_t to, F&& f) {
  int64_t r = from;
  for (; r + 6 <= to && r + 8 != to; r += 6) f.template operator()<6>(r);
  if (r + 8 == to) f.template operator()<4>(r), r += 4;  // two tiles of four: one of two would wait for its sums
  switch (to - r) {
    case 1: return f.template operator()<1>(r);
    case 2: return f.template operator()<2>(r);
    case 3: return f.template operator()<3>(r);
    case 4: return f.template operator()<4>(r);
    case 5: return f.template operator()<5>(r);
    default: return;
  }
}

// Keys of a block into the panel, as elements of the dot product: eight-bit codes are whole numbers, exact in bf16.
template <class Dot, class C, class A>
void load_panel(const C* keys, int64_t stride, int64_t count, int64_t first, int64_t elements, float* panel, A& ahead) {
  if constexpr (sizeof(C) == sizeof(typename Dot::X)) {
    panel_of_keys(keys + first, stride, count, elements, panel, ahead);
  } else {
    // Sixteen keys at a time, wide: 8 KiB.
    constexpr int64_t kWide = 2 * kPanelUnits;
    typename Dot::X wide[16 * kWide];
    for (int64_t j = 0; j < kAttentionKeyBlock; j += 16) {
      const int64_t n = larger(0, smaller(16, count - j));
      for (int64_t i = 0; i < n; ++i) {
        const C* row = keys + (j + i) * stride + first;
        int64_t d = 0;
        for (; d + 16 <= elements; d += 16) vstore(wide + i * kWide + d, vload(row + d));
        if (d < elements) vstore_n(wide + i * kWide + d, vload_n(row + d, elements - d), elements - d);
      }
      panel_rows(wide, kWide, n, elements, panel + j, ahead);
    }
  }
}

template <class Dot, class C>
class AttentionBlock {
  using X = typename Dot::X;
  using Element = typename CacheHead<C>::Element;
  static constexpr bool kTiled = __is_same(C, CacheTile);

 public:
  explicit AttentionBlock(const AttentionArgs& args)
      : a_(args), sequences_(a_.sequences), group_(args.heads / args.kv_heads), dim_(args.head_dim), v_dim_(args.v_head_dim > 0 ? args.v_head_dim : args.head_dim),
        v_row_(args.v_row > 0 ? args.v_row : v_dim_), q_stride_((dim_ + 1) / 2 * 2) {}

  static int64_t most_rows(const AttentionArgs& a) {
    return larger(6, smaller(kMaxBlockOfRows, kBlockFloats / larger(a.head_dim, a.v_head_dim) / 6 * 6));
  }

  // Rows [first, first + count) of a sequence and key head; row = token * group + head of the group.
  void run(int sequence, int64_t kv_head, int64_t first, int64_t count) {
    begin(sequence, kv_head, first, count);
    const int64_t start = low_[0] / kAttentionKeyBlock * kAttentionKeyBlock, end = high_[count - 1];
    int64_t from_row = 0;
    for (int64_t b = start; b < end; b += kAttentionKeyBlock) {
      // Positions rise with the rows: those that see this block follow one another.
      while (high_[from_row] <= b) ++from_row;
      int64_t to_row = count;
      while (low_[to_row - 1] >= b + kAttentionKeyBlock) --to_row;
      if (from_row < to_row) block(b, from_row, to_row);
    }
    finish(sequence, kv_head, first, count);
  }

 private:
  void begin(int sequence, int64_t kv_head, int64_t first, int64_t count) {
    const CacheHead<C> keys(a_.k_cache[sequence], a_.kv_heads, kv_head, a_.capacity, dim_), values(a_.v_cache[sequence], a_.kv_heads, kv_head, a_.capacity, v_row_);
    keys_ = keys.rows, values_ = values.rows;
    if constexpr (CacheHead<C>::kScaled) key_scales_ = keys.scales, value_scales_ = values.scales;
    for (int64_t r = 0; r < count; ++r) {
      const int64_t t = sequences_.first_row[sequence] + (first + r) / group_, position = sequences_.position(sequence, t);
      high_[r] = position + 1;
      low_[r] = a_.window > 0 ? larger(0, position - a_.window + 1) : 0;
      X* q = q_ + r * q_stride_;
      q[q_stride_ - 1] = X{};
      to_cache(a_.q.row<const float>(t) + (kv_head * group_ + (first + r) % group_) * dim_, q, dim_);
      q_rows_[r] = q;
      max_[r] = kMinusInfinity;
      vstore(sum_ + 16 * r, vzero());
    }
    __builtin_memset(o_, 0, static_cast<size_t>(count * v_dim_) * sizeof(float));
  }

  // The keys from b on and the rows [r0, r1) that see some of them.
  void block(int64_t b, int64_t r0, int64_t r1) {
    const int64_t keys = smaller(kAttentionKeyBlock, high_[r1 - 1] - b);
    if constexpr (kTiled) tile_of(b, r0, r1, keys);
    else rows_of(b, r0, r1, keys);
  }
  // Keys and values lie in the cache as they are needed, and are read where they are.
  void tile_of(int64_t b, int64_t r0, int64_t r1, int64_t keys) {
    const int64_t tile = tile_elements(dim_), at = b / kAttentionKeyBlock * tile;
    if (r1 - r0 <= kFewRows) {  // then keys and values come from memory
      return tile_rows(b, r0, r1, keys, at, TileAhead(keys_ + at, values_ + at, tile), TileAhead(values_ + at, keys_ + at + tile, tile));
    }
    tile_rows(b, r0, r1, keys, at, NothingAhead(), NothingAhead());
  }
  template <class A>
  void tile_rows(int64_t b, int64_t r0, int64_t r1, int64_t keys, int64_t at, A keys_ahead, A values_ahead) {
    for_row_tiles(r0, r1, [&]<int R>(int64_t r) {
      score_rows<Dot, R>(q_rows_ + r, reinterpret_cast<const float*>(keys_ + at), (dim_ + 1) / 2, true, smaller(keys, high_[r + R - 1] - b),
                         scores_ + r * kAttentionKeyBlock, keys_ahead);
    });
    const auto low = [&](int64_t r) { return larger(0, low_[r] - b); };
    const auto high = [&](int64_t r) { return smaller(kAttentionKeyBlock, high_[r] - b); };
    for (int64_t r = r0; r < r1; ++r) {
      online_softmax(scores_ + r * kAttentionKeyBlock, low(r), high(r), a_.scale, v_dim_, max_[r], sum_ + 16 * r, o_ + r * v_dim_,
                     probabilities_ + r * kAttentionKeyBlock);
    }
    const bf16* const v = values_ + at;
    for_row_tiles(r0, r1, [&]<int R>(int64_t r) {
      // Pairs that all rows of the tile see whole, and before and after them those of one row only. A pair is never cut but at the end of a row's own
      // keys, so no sum depends on the rows beside it.
      const int64_t shared = (low(r + R - 1) + 1) / 2, end = larger(shared, high(r) / 2);
      const bf16* p = probabilities_ + r * kAttentionKeyBlock;
      float* o = o_ + r * v_dim_;
      const auto edge = [&](int i, int64_t from, int64_t to) {
        pairs_at_edge(p + i * kAttentionKeyBlock, v, v_dim_, low(r + i), high(r + i), from, to, o + i * v_dim_, v_dim_);
      };
      for (int i = 0; i < R; ++i) edge(i, low(r + i) / 2, smaller(shared, (high(r + i) + 1) / 2));
      pair_rows<R, true>(p, v, v_dim_, shared, smaller(end, high(r) / 2), kBothOfPair, o, v_dim_, values_ahead);
      for (int i = 0; i < R; ++i) edge(i, end, (high(r + i) + 1) / 2);
    });
  }
  void rows_of(int64_t b, int64_t r0, int64_t r1, int64_t keys) {
    const bool many = r1 - r0 > kFewRows;
    if (many && dim_ <= kWideKey) {
      NothingAhead nothing;
      return block_of<true>(b, r0, r1, keys, nothing);
    }
    const int64_t next = b + kAttentionKeyBlock, coming = larger(0, smaller(kAttentionKeyBlock, high_[r1 - 1] - next)) * static_cast<int64_t>(sizeof(C));
    Ahead ahead{.at = reinterpret_cast<const char*>(keys_ + next * dim_), .lines = coming * dim_ / 64,
                .then = reinterpret_cast<const char*>(values_ + next * v_row_), .then_lines = values_ == keys_ ? 0 : coming * v_row_ / 64};
    if (many) return block_of<true>(b, r0, r1, keys, ahead);
    block_of<false>(b, r0, r1, keys, ahead);
  }
  // kWiden: values as fp32 first, for many rows to read.
  template <bool kWiden, class A>
  void block_of(int64_t b, int64_t r0, int64_t r1, int64_t keys, A& ahead) {
    for (int64_t d = 0; d < dim_; d += Dot::kUnit * kPanelUnits) {
      const int64_t elements = smaller(Dot::kUnit * kPanelUnits, dim_ - d), units = (elements + Dot::kUnit - 1) / Dot::kUnit;
      load_panel<Dot>(keys_ + b * dim_, dim_, keys, d, elements, panel_, ahead);
      for_row_tiles(r0, r1, [&]<int R>(int64_t r) {
        const X* q[R];
        for (int i = 0; i < R; ++i) q[i] = q_rows_[r + i] + d;
        score_rows<Dot, R>(q, panel_, units, d == 0, smaller(keys, high_[r + R - 1] - b), scores_ + r * kAttentionKeyBlock, ahead);
      });
    }
    for (int64_t r = r0; r < r1; ++r) {
      float* s = scores_ + r * kAttentionKeyBlock;
      const int64_t from = larger(0, low_[r] - b), to = smaller(kAttentionKeyBlock, high_[r] - b);
      if constexpr (CacheHead<C>::kScaled) scale_lanes(s, key_scales_ + b, from, to);
      online_softmax(s, from, to, a_.scale, v_dim_, max_[r], sum_ + 16 * r, o_ + r * v_dim_, s);
      if constexpr (CacheHead<C>::kScaled) scale_lanes(s, value_scales_ + b, from, to);
    }
    if constexpr (!kWiden || sizeof(C) == sizeof(float)) {
      add_values(b, r0, r1, values_ + b * v_row_, v_row_, 0, v_dim_, ahead);
    } else {
      for (int64_t d = 0; d < v_dim_; d += kPanelUnits) {
        const int64_t channels = smaller(kPanelUnits, v_dim_ - d);
        for (int64_t j = 0; j < keys; ++j) {
          const C* v = values_ + (b + j) * v_row_ + d;
          for (int64_t i = 0; i < channels; i += 16) {
            vstore(panel_ + j * kPanelUnits + i, channels - i >= 16 ? vload(v + i) : vload_n(v + i, channels - i));
          }
        }
        add_values(b, r0, r1, panel_, kPanelUnits, d, channels, ahead);
      }
    }
  }

  static void scale_lanes(float* s, const float* scales, int64_t from, int64_t to) {
    for (int64_t j = from; j < to; ++j) s[j] *= scales[j];
  }

  // Channels [d, d + channels) of the values at v, row by row in ascending order of keys: rows of a tile share the range that all see.
  template <class V, class A>
  void add_values(int64_t b, int64_t r0, int64_t r1, const V* v, int64_t stride, int64_t d, int64_t channels, A& ahead) {
    NothingAhead nothing;  // at the edges
    for_row_tiles(r0, r1, [&]<int R>(int64_t r) {
      const auto from = [&](int64_t i) { return larger(0, low_[i] - b); };
      const auto to = [&](int64_t i) { return smaller(kAttentionKeyBlock, high_[i] - b); };
      const int64_t shared = from(r + R - 1), end = larger(shared, to(r));
      float* o = o_ + r * v_dim_ + d;
      const float* p = scores_ + r * kAttentionKeyBlock;
      for (int i = 0; i < R; ++i) {
        value_rows<1>(p + i * kAttentionKeyBlock, v, stride, from(r + i), smaller(shared, to(r + i)), channels, o + i * v_dim_, v_dim_, nothing);
      }
      value_rows<R>(p, v, stride, shared, smaller(end, to(r)), channels, o, v_dim_, ahead);
      for (int i = 0; i < R; ++i) value_rows<1>(p + i * kAttentionKeyBlock, v, stride, end, to(r + i), channels, o + i * v_dim_, v_dim_, nothing);
    });
  }

  void finish(int sequence, int64_t kv_head, int64_t first, int64_t count) {
    for (int64_t r = 0; r < count; ++r) {
      const int64_t t = sequences_.first_row[sequence] + (first + r) / group_, head = kv_head * group_ + (first + r) % group_;
      Vec factor = vset(1), total = vset(vsum(vload(sum_ + 16 * r)));
      if (a_.sinks != nullptr) {
        const float sink = a_.sinks[head], next = sink > max_[r] ? sink : max_[r];
        factor = vexp(vset(max_[r] - next));
        total = vadd(vmul(total, factor), vexp(vset(sink - next)));
      }
      for (int64_t d = 0; d < v_dim_; d += 16) {
        const int64_t c = smaller(16, v_dim_ - d);
        Vec y = vload_n(o_ + r * v_dim_ + d, c);
        if (a_.sinks != nullptr) y = vmul(y, factor);
        y = vdiv(y, total);
        if (a_.out.dtype == DType::kBF16) {
          vstore_n(a_.out.row<bf16>(t) + head * v_dim_ + d, y, c);
        } else {
          vstore_n(a_.out.row<float>(t) + head * v_dim_ + d, y, c);
        }
      }
    }
  }

  const AttentionArgs& a_;
  const Sequences& sequences_;
  const int64_t group_, dim_, v_dim_, v_row_, q_stride_;
  const Element* keys_ = nullptr;
  const Element* values_ = nullptr;
  const float* key_scales_ = nullptr;
  const float* value_scales_ = nullptr;
  int64_t low_[kMaxBlockOfRows], high_[kMaxBlockOfRows];
  float max_[kMaxBlockOfRows];
  alignas(64) float sum_[kMaxBlockOfRows * 16];
  const X* q_rows_[kMaxBlockOfRows];
  alignas(64) float panel_[kTiled ? 16 : kPanelUnits * kAttentionKeyBlock];
  alignas(64) bf16 probabilities_[kTiled ? kMaxBlockOfRows * kAttentionKeyBlock : 32];
  alignas(64) float scores_[kMaxBlockOfRows * kAttentionKeyBlock];
  alignas(64) float o_[kBlockFloats + 16];
  alignas(64) X q_[kBlockFloats + kMaxBlockOfRows];
};

template <class Dot, class C>
void attention_kernel(ThreadPool& pool, const AttentionArgs& a) {
  const Sequences& sequences = a.sequences;
  const int64_t group = a.heads / a.kv_heads, most = AttentionBlock<Dot, C>::most_rows(a);
  // Few rows: smaller blocks keep all threads busy. No result depends on how rows are cut.
  int64_t rows = most;
  const auto blocks_of = [&](int s) { return (sequences.rows_of(s) * group + rows - 1) / rows; };
  const auto blocks = [&] {
    int64_t n = 0;
    for (int s = 0; s < sequences.count; ++s) n += blocks_of(s);
    return n;
  };
  while (rows > 6 && blocks() * a.kv_heads < 2 * pool.num_threads()) rows -= 6;
  const int64_t per_head = blocks();
  const int64_t grain = larger(1, (1 << 18) / larger(1, sequences.longest() * smaller(rows, group * a.q.rows) * a.head_dim));
  pool.parallel_for(a.kv_heads * per_head, grain, [&](int64_t first, int64_t last) {
    [[maybe_unused]] const typename Dot::Denormals denormals;
    AttentionBlock<Dot, C> block(a);
    for (int64_t index = first; index < last; ++index) {
      int64_t at = index % per_head;
      int s = 0;
      while (at >= blocks_of(s)) at -= blocks_of(s++);
      block.run(s, index / per_head, at * rows, smaller(rows, sequences.rows_of(s) * group - at * rows));
    }
  });
}

}  // namespace
}  // namespace pointsman::ops
