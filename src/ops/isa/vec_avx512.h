// SPDX-License-Identifier: Apache-2.0
//
// Sixteen fp32 lanes on AVX-512. The same functions as vec_avx2.h and vec_scalar.h, with the same results bit for bit; included by one
// source file per instruction set, inside an anonymous namespace.
#pragma once

#include <immintrin.h>

#include "tensor/dtype.h"

namespace pointsman::ops {
namespace {

struct Vec {
  __m512 v;
};

inline __mmask16 first_lanes(int64_t n) { return static_cast<__mmask16>(n >= 16 ? 0xffff : (1u << n) - 1); }

inline Vec vzero() { return {_mm512_setzero_ps()}; }
inline Vec vset(float f) { return {_mm512_set1_ps(f)}; }
inline Vec vload(const float* p) { return {_mm512_loadu_ps(p)}; }
inline Vec vload_n(const float* p, int64_t n) { return {_mm512_maskz_loadu_ps(first_lanes(n), p)}; }
inline void vstore(float* p, Vec a) { _mm512_storeu_ps(p, a.v); }
inline void vstore_n(float* p, Vec a, int64_t n) { _mm512_mask_storeu_ps(p, first_lanes(n), a.v); }

inline Vec widen(__m256i h) { return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16))}; }
inline Vec vload(const bf16* p) { return widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
inline Vec vload_n(const bf16* p, int64_t n) { return widen(_mm256_maskz_loadu_epi16(first_lanes(n), p)); }
inline Vec vload(const f16* p) { return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))}; }
inline Vec vload_n(const f16* p, int64_t n) { return {_mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first_lanes(n), p))}; }

// Round to nearest even, NaN kept: to_bf16() of tensor/dtype.h, lane by lane.
inline __m256i narrow(Vec a) {
  const __m512i u = _mm512_castps_si512(a.v);
  const __m512i lsb = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
  __m512i r = _mm512_srli_epi32(_mm512_add_epi32(u, _mm512_add_epi32(lsb, _mm512_set1_epi32(0x7fff))), 16);
  const __mmask16 nan = _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q);
  r = _mm512_mask_or_epi32(r, nan, _mm512_srli_epi32(u, 16), _mm512_set1_epi32(0x40));
  return _mm512_cvtepi32_epi16(r);
}
inline void vstore(bf16* p, Vec a) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrow(a)); }
// Stores as vstore does and returns what was stored. REQUIRES: denormals are flushed.
inline Vec vstore_rounded(bf16* p, Vec a) {
#ifdef PM_HAS_DPBF16
  const __m256i rounded = (__m256i)_mm512_cvtneps_pbh(a.v);
#else
  const __m256i rounded = narrow(a);
#endif
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), rounded);
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(rounded), 16))};
}
inline void vstore_n(bf16* p, Vec a, int64_t n) { _mm256_mask_storeu_epi16(p, first_lanes(n), narrow(a)); }

inline Vec vfma(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }  // a * b + c, one rounding
inline Vec vadd(Vec a, Vec b) { return {_mm512_add_ps(a.v, b.v)}; }
inline Vec vsub(Vec a, Vec b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline Vec vmul(Vec a, Vec b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline Vec vdiv(Vec a, Vec b) { return {_mm512_div_ps(a.v, b.v)}; }
inline Vec vmax(Vec a, Vec b) { return {_mm512_max_ps(a.v, b.v)}; }  // b when either is NaN
inline Vec vmin(Vec a, Vec b) { return {_mm512_min_ps(a.v, b.v)}; }

// p * 2^n for integral n in [-150, 128], rounded once.
inline Vec vscale2(Vec p, Vec n) { return {_mm512_scalef_ps(p.v, n.v)}; }
inline Vec vround(Vec a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
// a where `x` is NaN, else b.
inline Vec vselect_nan(Vec x, Vec a, Vec b) { return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(x.v, x.v, _CMP_UNORD_Q), b.v, a.v)}; }
inline Vec vselect_less(Vec x, Vec y, Vec a, Vec b) {  // a where x < y, else b
  return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(x.v, y.v, _CMP_LT_OQ), b.v, a.v)};
}

// The tree of ops/context.h: i + i+8, i + i+4, i + i+2, i + i+1.
inline float vsum(Vec a) {
  const __m256 h = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  const __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  const __m128 d = _mm_add_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_add_ss(d, _mm_movehdup_ps(d)));
}
// out[0..3] = vsum of each: the same tree, four at a time.
inline void vsum4(Vec a, Vec b, Vec c, Vec d, float* out) {
  const __m512 ab = _mm512_add_ps(_mm512_shuffle_f32x4(a.v, b.v, 0x44), _mm512_shuffle_f32x4(a.v, b.v, 0xee));
  const __m512 cd = _mm512_add_ps(_mm512_shuffle_f32x4(c.v, d.v, 0x44), _mm512_shuffle_f32x4(c.v, d.v, 0xee));
  const __m512 q = _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
  const __m512 p = _mm512_add_ps(q, _mm512_permute_ps(q, 0x0e));
  const __m512 s = _mm512_add_ps(p, _mm512_permute_ps(p, 0x01));
  const __m512 packed = _mm512_maskz_compress_ps(0x1111, s);
  _mm_storeu_ps(out, _mm512_castps512_ps128(packed));
}
inline float vhighest(Vec a) {
  const __m256 h = _mm256_max_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  const __m128 q = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  const __m128 d = _mm_max_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_max_ss(d, _mm_movehdup_ps(d)));
}

// Selection. Bit i of a mask is lane i.
inline uint32_t vmask_less(Vec a, Vec b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ); }
// The lanes of a mask, one after the other; out has room for sixteen.
inline void vcompress(float* out, Vec a, uint32_t mask) { _mm512_storeu_ps(out, _mm512_maskz_compress_ps(static_cast<__mmask16>(mask), a.v)); }
// `have` with the lanes of a mask of `a` from lane `count` on; what does not fit is lost.
inline Vec vappend(Vec have, int64_t count, Vec a, uint32_t mask) {
  const __m512 packed = _mm512_maskz_compress_ps(static_cast<__mmask16>(mask), a.v);
  return {_mm512_mask_expand_ps(have.v, static_cast<__mmask16>(count < 16 ? 0xffffu << count : 0), packed)};
}
// Of sixteen lanes (none NaN): how many are larger, or equal and further left. A permutation.
inline __m512i ranks(Vec a) {
  alignas(64) float s[16];
  _mm512_store_ps(s, a.v);
  const __m512i one = _mm512_set1_epi32(1);
  __m512i r[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
#pragma GCC unroll 16
  for (int j = 0; j < 16; ++j) {
    const auto right = static_cast<__mmask16>(0xfffe << j);
    const __m512 other = _mm512_set1_ps(s[j]);
    r[0] = _mm512_mask_add_epi32(r[0], _mm512_mask_cmp_ps_mask(right, a.v, other, _CMP_LE_OQ), r[0], one);
    r[1] = _mm512_mask_add_epi32(r[1], _mm512_mask_cmp_ps_mask(static_cast<__mmask16>(~right), a.v, other, _CMP_LT_OQ), r[1], one);
  }
  return _mm512_add_epi32(r[0], r[1]);
}
// The k-th largest lane (k from 1), in all lanes.
inline Vec vkth(Vec a, int32_t k) {
  const __mmask16 here = _mm512_cmpeq_epi32_mask(ranks(a), _mm512_set1_epi32(k - 1));
  return {_mm512_broadcastss_ps(_mm512_castps512_ps128(_mm512_maskz_compress_ps(here, a.v)))};
}
// Both by falling value, equal values in their order.
inline void vsort(Vec* value, Vec* place) {
  const __m512i r = ranks(*value);
  // The inverse of a permutation of sixteen fits into 64 bits: nibble r[i] is i.
  const __m512i shift = _mm512_slli_epi32(r, 2);
  const auto half = [](__m256i by, __m256i lane) { return _mm512_sllv_epi64(_mm512_cvtepu32_epi64(lane), _mm512_cvtepu32_epi64(by)); };
  const __m512i packed = _mm512_or_si512(half(_mm512_castsi512_si256(shift), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)),
                                         half(_mm512_extracti64x4_epi64(shift, 1), _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15)));
  const __m256i q = _mm256_or_si256(_mm512_castsi512_si256(packed), _mm512_extracti64x4_epi64(packed, 1));
  __m128i d = _mm_or_si128(_mm256_castsi256_si128(q), _mm256_extracti128_si256(q, 1));
  d = _mm_or_si128(d, _mm_unpackhi_epi64(d, d));
  const __m512i halves = _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1), _mm512_castsi128_si512(d));
  const __m512i order = _mm512_srlv_epi32(halves, _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28));
  value->v = _mm512_permutexvar_ps(order, value->v);
  place->v = _mm512_permutexvar_ps(order, place->v);
}
// p[place] for the first n lanes, zeros after; places are whole numbers.
inline Vec vgather_n(const float* p, Vec place, int64_t n) {
  return {_mm512_mask_i32gather_ps(_mm512_setzero_ps(), first_lanes(n), _mm512_cvtps_epi32(place.v), p, 4)};
}
inline void vstore_ids(int32_t* p, Vec place, int64_t n) { _mm512_mask_storeu_epi32(p, first_lanes(n), _mm512_cvtps_epi32(place.v)); }
// x = m * 2^e with m in [1/sqrt 2, sqrt 2), for normal x > 0.
inline void vsplit(Vec x, Vec* m, Vec* e) {
  const __m512i u = _mm512_castps_si512(x.v);
  const __m512i k = _mm512_srai_epi32(_mm512_sub_epi32(u, _mm512_set1_epi32(0x3f3504f3)), 23);
  m->v = _mm512_castsi512_ps(_mm512_sub_epi32(u, _mm512_slli_epi32(k, 23)));
  e->v = _mm512_cvtepi32_ps(k);
}
inline Vec vsqrt(Vec a) { return {_mm512_sqrt_ps(a.v)}; }

// Eight-bit whole numbers, and sixteen 32-bit units of anything (no value is looked at).
inline Vec vload(const int8_t* p) { return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))}; }
inline Vec vload_n(const int8_t* p, int64_t n) { return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_maskz_loadu_epi8(first_lanes(n), p)))}; }
// Rounded to nearest even. REQUIRES: within -128 .. 127.
inline void vstore_n(int8_t* p, Vec a, int64_t n) { _mm_mask_storeu_epi8(p, first_lanes(n), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(a.v))); }
inline Vec vload_units(const void* p) { return {_mm512_loadu_ps(p)}; }
// Past the caches; p is aligned to 64 bytes. After the last one: vstream_done().
inline void vstream(float* p, Vec a) { _mm512_stream_ps(p, a.v); }
inline void vstream_done() { _mm_sfence(); }
// Lane i of vector j becomes lane j of vector i.
[[gnu::always_inline]] inline void vtranspose(Vec* r) {
  __m512 t[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_ps(r[i].v, r[i + 1].v);
    t[i + 1] = _mm512_unpackhi_ps(r[i].v, r[i + 1].v);
  }
  __m512 u[16];
  const auto pair = [](__m512 a, __m512 b, bool high) {
    const __m512d x = _mm512_castps_pd(a), y = _mm512_castps_pd(b);
    return _mm512_castpd_ps(high ? _mm512_unpackhi_pd(x, y) : _mm512_unpacklo_pd(x, y));
  };
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    u[i] = pair(t[i], t[i + 2], false), u[i + 1] = pair(t[i], t[i + 2], true);
    u[i + 2] = pair(t[i + 1], t[i + 3], false), u[i + 3] = pair(t[i + 1], t[i + 3], true);
  }
  // u[4 g + c]: of rows 4 g .. 4 g + 3 the columns c, c + 4, c + 8, c + 12, by quarters.
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    const __m512 low = _mm512_shuffle_f32x4(u[c], u[4 + c], 0x88), high = _mm512_shuffle_f32x4(u[c], u[4 + c], 0xdd);
    const __m512 low2 = _mm512_shuffle_f32x4(u[8 + c], u[12 + c], 0x88), high2 = _mm512_shuffle_f32x4(u[8 + c], u[12 + c], 0xdd);
    r[c].v = _mm512_shuffle_f32x4(low, low2, 0x88), r[8 + c].v = _mm512_shuffle_f32x4(low, low2, 0xdd);
    r[4 + c].v = _mm512_shuffle_f32x4(high, high2, 0x88), r[12 + c].v = _mm512_shuffle_f32x4(high, high2, 0xdd);
  }
}
// Vectors beside one another in a tile of six rows: what the registers hold.
inline constexpr int kTileVecs = 4;

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
inline Vec from_half(__m256i h) { return {_mm512_cvtph_ps(h)}; }
inline Vec vload_e4m3(const uint8_t* p) { return vmul(from_half(e4m3_half(load_codes(p))), vset(256.0f)); }
inline Vec vload_e5m2(const uint8_t* p) { return from_half(e5m2_half(load_codes(p))); }
inline Vec vload_i8(const uint8_t* p) { return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load_codes(p)))}; }
inline Vec vload_e2m1(const uint8_t* p) { return from_half(e2m1_half(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)))); }

// 32 bf16 for the bf16 dot product. pdot: lane j gets acc + odd product, then + even product, each rounded once, denormals flushed:
// what vdpbf16ps does (measured on Zen 5: 3.2 M random lanes, all equal).
struct Pairs {
  __m512i v;
};
inline Pairs pset(const bf16* p) {  // one pair in all lanes
  int32_t both;
  __builtin_memcpy(&both, p, 4);
  return {_mm512_set1_epi32(both)};
}
inline Pairs pload(const bf16* p) { return {_mm512_loadu_si512(p)}; }
inline Pairs pload_n(const bf16* p, int64_t n) {
  return {_mm512_maskz_loadu_epi16(static_cast<__mmask32>(n >= 32 ? 0xffffffffu : (1u << n) - 1), p)};
}
// Bits of every pair: 0xffff keeps the even element, 0xffff0000 the odd one.
inline Pairs pkeep(Pairs a, uint32_t mask) { return {_mm512_and_si512(a.v, _mm512_set1_epi32(static_cast<int>(mask)))}; }
#ifdef PM_HAS_DPBF16
inline Vec pdot(Vec acc, Pairs a, Pairs b) {
  return {_mm512_dpbf16_ps(acc.v, (__m512bh)a.v, (__m512bh)b.v)};
}
#else
inline Vec pdot(Vec acc, Pairs a, Pairs b) {
  const __m512i high = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
  const auto odd = [&](Pairs x) { return _mm512_castsi512_ps(_mm512_and_si512(x.v, high)); };
  const auto even = [](Pairs x) { return _mm512_castsi512_ps(_mm512_slli_epi32(x.v, 16)); };
  const __m512 t = _mm512_fmadd_ps(odd(a), odd(b), acc.v);
  return {_mm512_fmadd_ps(even(a), even(b), t)};
}
#endif

// vdpbf16ps flushes denormals whatever MXCSR says. Kernels with a bf16 dot product do so throughout, so that all versions agree.
struct FlushDenormals {
  unsigned int saved = _mm_getcsr();
  FlushDenormals() { _mm_setcsr(saved | 0x8040); }
  ~FlushDenormals() { _mm_setcsr(saved); }
};

}  // namespace
}  // namespace pointsman::ops
