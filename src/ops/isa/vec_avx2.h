// SPDX-License-Identifier: Apache-2.0
//
// Sixteen fp32 lanes as two AVX2 registers: see vec_avx512.h.
#pragma once

#include <immintrin.h>

#include "tensor/dtype.h"

namespace pointsman::ops {
namespace {

struct Vec {
  __m256 lo, hi;
};

inline Vec vzero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline Vec vset(float f) { return {_mm256_set1_ps(f), _mm256_set1_ps(f)}; }
inline Vec vload(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline Vec vload_n(const float* p, int64_t n) {
  alignas(32) float t[16] = {};
  __builtin_memcpy(t, p, static_cast<size_t>(n < 16 ? n : 16) * sizeof(float));
  return vload(t);
}
inline void vstore(float* p, Vec a) { _mm256_storeu_ps(p, a.lo), _mm256_storeu_ps(p + 8, a.hi); }
inline void vstore_n(float* p, Vec a, int64_t n) {
  alignas(32) float t[16];
  vstore(t, a);
  __builtin_memcpy(p, t, static_cast<size_t>(n < 16 ? n : 16) * sizeof(float));
}

inline __m256 widen(__m128i h) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16)); }
inline Vec vload(const bf16* p) {
  const __m128i* q = reinterpret_cast<const __m128i*>(p);
  return {widen(_mm_loadu_si128(q)), widen(_mm_loadu_si128(q + 1))};
}
inline Vec vload(const f16* p) {
  const __m128i* q = reinterpret_cast<const __m128i*>(p);
  return {_mm256_cvtph_ps(_mm_loadu_si128(q)), _mm256_cvtph_ps(_mm_loadu_si128(q + 1))};
}
inline Vec vload(const int8_t* p);
template <class Half>
inline Vec vload_n(const Half* p, int64_t n) {
  alignas(32) Half t[16] = {};
  __builtin_memcpy(t, p, static_cast<size_t>(n < 16 ? n : 16) * sizeof(Half));
  return vload(t);
}
inline __m256i narrow(__m256 a) {
  const __m256i u = _mm256_castps_si256(a);
  const __m256i lsb = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
  const __m256i r = _mm256_srli_epi32(_mm256_add_epi32(u, _mm256_add_epi32(lsb, _mm256_set1_epi32(0x7fff))), 16);
  const __m256i quiet = _mm256_or_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(0x40));
  return _mm256_castps_si256(_mm256_blendv_ps(_mm256_castsi256_ps(r), _mm256_castsi256_ps(quiet), _mm256_cmp_ps(a, a, _CMP_UNORD_Q)));
}
inline void vstore(bf16* p, Vec a) {
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(narrow(a.lo), narrow(a.hi)), 0xd8);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), packed);
}
inline void vstore_n(bf16* p, Vec a, int64_t n) {
  alignas(32) bf16 t[16];
  vstore(t, a);
  __builtin_memcpy(p, t, static_cast<size_t>(n < 16 ? n : 16) * sizeof(bf16));
}

inline Vec vfma(Vec a, Vec b, Vec c) { return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)}; }
inline Vec vadd(Vec a, Vec b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
inline Vec vsub(Vec a, Vec b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
inline Vec vmul(Vec a, Vec b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
inline Vec vdiv(Vec a, Vec b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
inline Vec vmax(Vec a, Vec b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
inline Vec vmin(Vec a, Vec b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }

inline Vec vpow2(Vec n) {
  const auto pow2 = [](__m256 x) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(x), _mm256_set1_epi32(127)), 23));
  };
  return {pow2(n.lo), pow2(n.hi)};
}
inline Vec vround(Vec a) {
  constexpr int kMode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(a.lo, kMode), _mm256_round_ps(a.hi, kMode)};
}
inline Vec vselect_nan(Vec x, Vec a, Vec b) {
  return {_mm256_blendv_ps(b.lo, a.lo, _mm256_cmp_ps(x.lo, x.lo, _CMP_UNORD_Q)), _mm256_blendv_ps(b.hi, a.hi, _mm256_cmp_ps(x.hi, x.hi, _CMP_UNORD_Q))};
}
inline Vec vselect_less(Vec x, Vec y, Vec a, Vec b) {
  return {_mm256_blendv_ps(b.lo, a.lo, _mm256_cmp_ps(x.lo, y.lo, _CMP_LT_OQ)), _mm256_blendv_ps(b.hi, a.hi, _mm256_cmp_ps(x.hi, y.hi, _CMP_LT_OQ))};
}

// By halves, so that neither factor leaves the range and only the last product rounds.
inline Vec vscale2(Vec p, Vec n) {
  const Vec half = vround(vmul(n, vset(0.5f)));
  return vmul(vmul(p, vpow2(half)), vpow2(vsub(n, half)));
}

inline float vsum(Vec a) {
  const __m256 h = _mm256_add_ps(a.lo, a.hi);
  const __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  const __m128 d = _mm_add_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_add_ss(d, _mm_movehdup_ps(d)));
}
inline void vsum4(Vec a, Vec b, Vec c, Vec d, float* out) { out[0] = vsum(a), out[1] = vsum(b), out[2] = vsum(c), out[3] = vsum(d); }
inline float vhighest(Vec a) {
  const __m256 h = _mm256_max_ps(a.lo, a.hi);
  const __m128 q = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  const __m128 d = _mm_max_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_max_ss(d, _mm_movehdup_ps(d)));
}

inline uint32_t vmask_less(Vec a, Vec b) {
  const auto bits = [](__m256 x, __m256 y) { return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(x, y, _CMP_LT_OQ))); };
  return bits(a.lo, b.lo) | bits(a.hi, b.hi) << 8;
}
// For eight lanes: bit 4 i + .. of the places holds the lane that goes to place i.
inline void compress_half(float* out, __m256 a, uint32_t mask) {
  const uint64_t keep = _pdep_u64(mask, 0x1111111111111111u) * 15;
  const uint64_t nibbles = _pext_u64(0x76543210u, keep);
  const __m128i bytes = _mm_cvtsi64_si128(static_cast<long long>(_pdep_u64(nibbles, 0x0f0f0f0f0f0f0f0fu)));
  _mm256_storeu_ps(out, _mm256_permutevar8x32_ps(a, _mm256_cvtepu8_epi32(bytes)));
}
inline void vcompress(float* out, Vec a, uint32_t mask) {
  compress_half(out, a.lo, mask & 255);
  compress_half(out + __builtin_popcount(mask & 255), a.hi, mask >> 8);
}
inline Vec vappend(Vec have, int64_t count, Vec a, uint32_t mask) {
  float t[32];
  vstore(t, have);
  if (count < 16) vcompress(t + count, a, mask);
  return vload(t);
}
inline void ranks(const float* s, int32_t* rank) {
  const __m256 v[2] = {_mm256_loadu_ps(s), _mm256_loadu_ps(s + 8)};
  const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  for (int h = 0; h < 2; ++h) {
    __m256i r = _mm256_setzero_si256();
#pragma GCC unroll 16
    for (int j = 0; j < 16; ++j) {
      const __m256 other = _mm256_broadcast_ss(s + j);
      const __m256 right = _mm256_castsi256_ps(_mm256_cmpgt_epi32(lanes, _mm256_set1_epi32(j - 8 * h)));
      const __m256 beaten = _mm256_blendv_ps(_mm256_cmp_ps(v[h], other, _CMP_LT_OQ), _mm256_cmp_ps(v[h], other, _CMP_LE_OQ), right);
      r = _mm256_sub_epi32(r, _mm256_castps_si256(beaten));
    }
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(rank + 8 * h), r);
  }
}
inline void vsort(Vec* value, Vec* place) {
  float v[16], p[16], sorted_v[16], sorted_p[16];
  int32_t rank[16];
  vstore(v, *value), vstore(p, *place);
  ranks(v, rank);
  for (int i = 0; i < 16; ++i) sorted_v[rank[i]] = v[i], sorted_p[rank[i]] = p[i];
  *value = vload(sorted_v), *place = vload(sorted_p);
}
inline Vec vkth(Vec a, int32_t k) {
  float v[16], sorted[16];
  int32_t rank[16];
  vstore(v, a);
  ranks(v, rank);
  for (int i = 0; i < 16; ++i) sorted[rank[i]] = v[i];
  return vset(sorted[k - 1]);
}
inline Vec vgather_n(const float* p, Vec place, int64_t n) {
  float at[16], t[16] = {};
  vstore(at, place);
  for (int64_t i = 0; i < n && i < 16; ++i) t[i] = p[static_cast<int32_t>(at[i])];
  return vload(t);
}
inline void vstore_ids(int32_t* p, Vec place, int64_t n) {
  int32_t t[16];
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(t), _mm256_cvtps_epi32(place.lo));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(t + 8), _mm256_cvtps_epi32(place.hi));
  for (int64_t i = 0; i < n && i < 16; ++i) p[i] = t[i];
}
inline void vsplit(Vec x, Vec* m, Vec* e) {
  const auto split = [](__m256 a, __m256* mantissa, __m256* exponent) {
    const __m256i u = _mm256_castps_si256(a);
    const __m256i k = _mm256_srai_epi32(_mm256_sub_epi32(u, _mm256_set1_epi32(0x3f3504f3)), 23);
    *mantissa = _mm256_castsi256_ps(_mm256_sub_epi32(u, _mm256_slli_epi32(k, 23)));
    *exponent = _mm256_cvtepi32_ps(k);
  };
  split(x.lo, &m->lo, &e->lo), split(x.hi, &m->hi, &e->hi);
}
inline Vec vsqrt(Vec a) { return {_mm256_sqrt_ps(a.lo), _mm256_sqrt_ps(a.hi)}; }

inline Vec vload(const int8_t* p) {
  const __m128i b = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(b)), _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(b, 8)))};
}
inline void vstore_n(int8_t* p, Vec a, int64_t n) {
  alignas(32) int32_t t[16];
  _mm256_store_si256(reinterpret_cast<__m256i*>(t), _mm256_cvtps_epi32(a.lo));
  _mm256_store_si256(reinterpret_cast<__m256i*>(t + 8), _mm256_cvtps_epi32(a.hi));
  for (int64_t i = 0; i < 16 && i < n; ++i) p[i] = static_cast<int8_t>(t[i]);
}
inline Vec vload_units(const void* p) { return vload(static_cast<const float*>(p)); }
inline void vstream(float* p, Vec a) { _mm256_stream_ps(p, a.lo), _mm256_stream_ps(p + 8, a.hi); }
inline void vstream_done() { _mm_sfence(); }
inline void transpose_eight(const __m256* r, __m256* out) {
  __m256 t[8], u[8];
  for (int i = 0; i < 8; i += 2) t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]), t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
  for (int i = 0; i < 8; i += 4) {
    u[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44), u[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
    u[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44), u[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
  }
  for (int c = 0; c < 4; ++c) {
    out[c] = _mm256_permute2f128_ps(u[c], u[4 + c], 0x20);
    out[4 + c] = _mm256_permute2f128_ps(u[c], u[4 + c], 0x31);
  }
}
inline void vtranspose(Vec* r) {
  __m256 in[8], out[2][2][8];
  for (int half = 0; half < 2; ++half) {  // rows
    for (int side = 0; side < 2; ++side) {  // columns
      for (int i = 0; i < 8; ++i) in[i] = side == 0 ? r[8 * half + i].lo : r[8 * half + i].hi;
      transpose_eight(in, out[half][side]);
    }
  }
  for (int i = 0; i < 8; ++i) r[i] = {out[0][0][i], out[1][0][i]}, r[8 + i] = {out[0][1][i], out[1][1][i]};
}
inline constexpr int kTileVecs = 1;

// Sixteen element codes, exact, by way of binary16, whose conversion ignores MXCSR. e4m3: a binary16 with the same mantissa whose exponent
// bias is 8 higher; the multiplication by 256 is exact. e2m1 reads eight bytes, low nibble first; its values are binary16 with a zero low byte.
inline __m256i e4m3_half(__m128i codes) {
  const __m256i c = _mm256_cvtepu8_epi16(codes);
  const __m256i magnitude = _mm256_and_si256(c, _mm256_set1_epi16(0x7f));
  const __m256i sign = _mm256_slli_epi16(_mm256_and_si256(c, _mm256_set1_epi16(0x80)), 8);
  const __m256i nan = _mm256_and_si256(_mm256_cmpeq_epi16(magnitude, _mm256_set1_epi16(0x7f)), _mm256_set1_epi16(0x7c00));
  return _mm256_or_si256(_mm256_or_si256(sign, nan), _mm256_slli_epi16(magnitude, 7));
}
inline __m256i e5m2_half(__m128i codes) { return _mm256_slli_epi16(_mm256_cvtepu8_epi16(codes), 8); }
inline __m256i e2m1_half(__m128i packed) {
  const __m128i nibble = _mm_set1_epi8(15);
  const __m128i low = _mm_and_si128(packed, nibble), high = _mm_and_si128(_mm_srli_epi16(packed, 4), nibble);
  const __m128i table = _mm_setr_epi8(0, 0x38, 0x3c, 0x3e, 0x40, 0x42, 0x44, 0x46, -0x80, -0x48, -0x44, -0x42, -0x40, -0x3e, -0x3c, -0x3a);
  return _mm256_slli_epi16(_mm256_cvtepu8_epi16(_mm_shuffle_epi8(table, _mm_unpacklo_epi8(low, high))), 8);
}
inline __m128i load_codes(const uint8_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
inline Vec from_half(__m256i h) { return {_mm256_cvtph_ps(_mm256_castsi256_si128(h)), _mm256_cvtph_ps(_mm256_extracti128_si256(h, 1))}; }
inline Vec vload_e4m3(const uint8_t* p) { return vmul(from_half(e4m3_half(load_codes(p))), vset(256.0f)); }
inline Vec vload_e5m2(const uint8_t* p) { return from_half(e5m2_half(load_codes(p))); }
inline Vec vload_i8(const uint8_t* p) {
  const __m128i codes = load_codes(p);
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes)), _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(codes, 8)))};
}
inline Vec vload_e2m1(const uint8_t* p) { return from_half(e2m1_half(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)))); }

// Stores as vstore does and returns what was stored. REQUIRES: denormals are flushed.
inline Vec vstore_rounded(bf16* p, Vec a) {
  vstore(p, a);
  return vload(p);
}

struct Pairs {
  __m256i lo, hi;  // elements 0-15 and 16-31: lanes 0-7 and 8-15
};
inline Pairs pset(const bf16* p) {
  int32_t both;
  __builtin_memcpy(&both, p, 4);
  return {_mm256_set1_epi32(both), _mm256_set1_epi32(both)};
}
inline Pairs pload(const bf16* p) {
  const __m256i* q = reinterpret_cast<const __m256i*>(p);
  return {_mm256_loadu_si256(q), _mm256_loadu_si256(q + 1)};
}
inline Pairs pload_n(const bf16* p, int64_t n) {
  alignas(32) bf16 t[32] = {};
  __builtin_memcpy(t, p, static_cast<size_t>(n < 32 ? n : 32) * sizeof(bf16));
  return pload(t);
}
inline Pairs pkeep(Pairs a, uint32_t mask) {
  const __m256i m = _mm256_set1_epi32(static_cast<int>(mask));
  return {_mm256_and_si256(a.lo, m), _mm256_and_si256(a.hi, m)};
}
inline __m256 pdot_half(__m256 acc, __m256i a, __m256i b) {
  const __m256i high = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
  const auto odd = [&](__m256i x) { return _mm256_castsi256_ps(_mm256_and_si256(x, high)); };
  const auto even = [](__m256i x) { return _mm256_castsi256_ps(_mm256_slli_epi32(x, 16)); };
  const __m256 t = _mm256_fmadd_ps(odd(a), odd(b), acc);
  return _mm256_fmadd_ps(even(a), even(b), t);
}
inline Vec pdot(Vec acc, Pairs a, Pairs b) { return {pdot_half(acc.lo, a.lo, b.lo), pdot_half(acc.hi, a.hi, b.hi)}; }

// vdpbf16ps flushes denormals whatever MXCSR says; the emulation asks for it.
struct FlushDenormals {
  unsigned int saved = _mm_getcsr();
  FlushDenormals() { _mm_setcsr(saved | 0x8040); }
  ~FlushDenormals() { _mm_setcsr(saved); }
};

}  // namespace
}  // namespace pointsman::ops
