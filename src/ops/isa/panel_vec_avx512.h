// SPDX-License-Identifier: Apache-2.0
//
// Panels of packed weights on AVX-512 with VNNI, BF16 and VBMI: see panel_vec_scalar.h. vpdpbusd multiplies unsigned by signed codes, so weights
// have 128 added (a flipped bit), and a block's sum starts from -128 times the sum of x's codes.
#pragma once

#define PM_HAS_DPBF16 1
#include "ops/isa/vec_avx512.h"

namespace pointsman::ops {
namespace {

struct Lanes {
  __m512i v;
};
struct Sums {
  __m512i v;
};

inline Lanes lanes_load(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
inline void lanes_store(uint8_t* p, Lanes a) { _mm512_storeu_si512(p, a.v); }
inline Lanes lanes_i8(const uint8_t* p) { return {_mm512_xor_si512(_mm512_loadu_si512(p), _mm512_set1_epi8(-128))}; }
// 128 + twice the value of each nibble.
inline __m512i e2m1_table() {
  return _mm512_broadcast_i32x4(_mm_setr_epi8(-128, -127, -126, -125, -124, -122, -120, -116, -128, 127, 126, 125, 124, 122, 120, 116));
}
inline void lanes_e2m1(const uint8_t* p, Lanes& low, Lanes& high) {
  const __m512i packed = _mm512_loadu_si512(p), nibble = _mm512_set1_epi8(15), table = e2m1_table();
  low.v = _mm512_shuffle_epi8(table, _mm512_and_si512(packed, nibble));
  high.v = _mm512_shuffle_epi8(table, _mm512_and_si512(_mm512_srli_epi16(packed, 4), nibble));
}
inline Sums sum_begin(const int32_t* offset) { return {_mm512_set1_epi32(*offset)}; }
inline Sums sum_add(Sums s, Lanes w, const int8_t* x) {
  int32_t four;
  __builtin_memcpy(&four, x, 4);
  return {_mm512_dpbusd_epi32(s.v, w.v, _mm512_set1_epi32(four))};
}
inline Vec to_vec(Sums s) { return {_mm512_cvtepi32_ps(s.v)}; }

inline Vec vload_e8m0(const uint8_t* p) {
  const __m512i code = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  // Code 0 is a denormal, 255 NaN.
  const __m512i bits = _mm512_max_epi32(_mm512_slli_epi32(code, 23), _mm512_set1_epi32(0x00400000));
  const __mmask16 nan = _mm512_cmpeq_epi32_mask(code, _mm512_set1_epi32(255));
  return {_mm512_castsi512_ps(_mm512_mask_mov_epi32(bits, nan, _mm512_set1_epi32(0x7fc00000)))};
}

inline Pairs pairs_of(const bf16* p) {
  int32_t two;
  __builtin_memcpy(&two, p, 4);
  return {_mm512_set1_epi32(two)};
}
// The high and the low bytes of the bf16 of all 128 E4M3 magnitudes.
struct E4m3Bytes {
  uint8_t high[128], low[128];
  constexpr E4m3Bytes() : high{}, low{} {
    for (int i = 0; i < 128; ++i) {
      int bits = (i << 4) + (120 << 7);
      if (i == 127) bits = 0x7fc0;
      if (i < 8) {  // i * 2^-9, a normal bf16
        int exponent = 118, m = i << 4;
        while (m != 0 && m < 128) m *= 2, --exponent;
        bits = i == 0 ? 0 : ((exponent + 3) << 7) + (m & 127);
      }
      high[i] = static_cast<uint8_t>(bits >> 8), low[i] = static_cast<uint8_t>(bits);
    }
  }
};
inline constexpr E4m3Bytes kE4m3Bytes;
inline void pairs_e4m3(const uint8_t* p, Pairs& first, Pairs& second) {
  const __m512i codes = _mm512_loadu_si512(p);
  const __m512i h0 = _mm512_loadu_si512(kE4m3Bytes.high), h1 = _mm512_loadu_si512(kE4m3Bytes.high + 64);
  const __m512i l0 = _mm512_loadu_si512(kE4m3Bytes.low), l1 = _mm512_loadu_si512(kE4m3Bytes.low + 64);
  // vpermi2b looks at seven bits of the index. (sign & 0x80) | magnitude: one ternary operation.
  const __m512i high = _mm512_ternarylogic_epi32(codes, _mm512_set1_epi8(-128), _mm512_permutex2var_epi8(h0, codes, h1), 0xea);
  const __m512i low = _mm512_permutex2var_epi8(l0, codes, l1);
  // Bytes of a lane: low and high of codes 0 and 1; of codes 2 and 3. Within 16 bytes, indices into (low, high).
  const __m512i ranks = _mm512_set_epi8(60, 60, 60, 60, 56, 56, 56, 56, 52, 52, 52, 52, 48, 48, 48, 48, 44, 44, 44, 44, 40, 40, 40, 40, 36, 36, 36, 36, 32,
                                        32, 32, 32, 28, 28, 28, 28, 24, 24, 24, 24, 20, 20, 20, 20, 16, 16, 16, 16, 12, 12, 12, 12, 8, 8, 8, 8, 4, 4, 4, 4, 0,
                                        0, 0, 0);
  const __m512i index = _mm512_add_epi8(ranks, _mm512_set1_epi32(0x41014000));  // low 0, high 0, low 1, high 1
  first.v = _mm512_permutex2var_epi8(low, index, high);
  second.v = _mm512_permutex2var_epi8(low, _mm512_add_epi8(index, _mm512_set1_epi8(2)), high);
}
inline void pstore(bf16* p, Pairs a) { _mm512_storeu_si512(p, a.v); }

inline void turn_lanes(const uint8_t* p, uint8_t* out) {
  const __m512i v = _mm512_loadu_si512(p);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm512_cvtepi32_epi8(v));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out + 16), _mm512_cvtepi32_epi8(_mm512_srli_epi32(v, 8)));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out + 32), _mm512_cvtepi32_epi8(_mm512_srli_epi32(v, 16)));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out + 48), _mm512_cvtepi32_epi8(_mm512_srli_epi32(v, 24)));
}
inline void e2m1_bytes(const uint8_t* p, uint8_t* out) {
  const __m128i packed = load_codes(p), nibble = _mm_set1_epi8(15);
  const __m128i table = _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm_shuffle_epi8(table, _mm_and_si128(packed, nibble)));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out + 16), _mm_shuffle_epi8(table, _mm_and_si128(_mm_srli_epi16(packed, 4), nibble)));
}

inline uint32_t magnitude_bits(Vec a, Vec b) {
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  const __m512i m = _mm512_max_epu32(_mm512_and_si512(_mm512_castps_si512(a.v), magnitude), _mm512_and_si512(_mm512_castps_si512(b.v), magnitude));
  return static_cast<uint32_t>(_mm512_reduce_max_epu32(m));
}
inline int32_t store_codes(int8_t* p, Vec a) {
  const __m512i i = _mm512_cvtps_epi32(a.v);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(i));
  return _mm512_reduce_add_epi32(i);
}

}  // namespace
}  // namespace pointsman::ops
