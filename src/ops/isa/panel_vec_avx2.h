// SPDX-License-Identifier: Apache-2.0
//
// Panels of packed weights on AVX2: see panel_vec_scalar.h. vpmaddubsw is exact here: magnitudes of weights reach 128, codes of x 127, and
// 2 * 128 * 127 fits 16 bits; the sign of the weight goes to x.
#pragma once

#include "ops/isa/vec_avx2.h"

namespace pointsman::ops {
namespace {

struct Lanes {
  __m256i lo, hi;
};
struct Sums {
  __m256i lo, hi;
};

inline __m256i load_half(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
inline Lanes lanes_load(const uint8_t* p) { return {load_half(p), load_half(p + 32)}; }
inline void lanes_store(uint8_t* p, Lanes a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a.lo);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 32), a.hi);
}
inline Lanes lanes_i8(const uint8_t* p) { return lanes_load(p); }
inline void lanes_e2m1(const uint8_t* p, Lanes& low, Lanes& high) {
  const __m256i nibble = _mm256_set1_epi8(15);
  const __m256i table = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12));
  const auto even = [&](__m256i v) { return _mm256_shuffle_epi8(table, _mm256_and_si256(v, nibble)); };
  const auto odd = [&](__m256i v) { return _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16(v, 4), nibble)); };
  const Lanes packed = lanes_load(p);
  low = {even(packed.lo), even(packed.hi)};
  high = {odd(packed.lo), odd(packed.hi)};
}
inline Sums sum_begin(const int32_t*) { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
inline __m256i sum_half(__m256i s, __m256i w, __m256i x) {
  const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w));
  return _mm256_add_epi32(s, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
inline Sums sum_add(Sums s, Lanes w, const int8_t* x) {
  int32_t four;
  __builtin_memcpy(&four, x, 4);
  const __m256i v = _mm256_set1_epi32(four);
  return {sum_half(s.lo, w.lo, v), sum_half(s.hi, w.hi, v)};
}
inline Vec to_vec(Sums s) { return {_mm256_cvtepi32_ps(s.lo), _mm256_cvtepi32_ps(s.hi)}; }

inline Vec vload_e8m0(const uint8_t* p) {
  const auto scale = [](__m256i code) {
    const __m256i bits = _mm256_max_epi32(_mm256_slli_epi32(code, 23), _mm256_set1_epi32(0x00400000));
    const __m256i nan = _mm256_and_si256(_mm256_cmpeq_epi32(code, _mm256_set1_epi32(255)), _mm256_set1_epi32(0x7fc00000));
    return _mm256_castsi256_ps(_mm256_or_si256(bits, nan));  // 255 is infinity before
  };
  const __m128i codes = load_codes(p);
  return {scale(_mm256_cvtepu8_epi32(codes)), scale(_mm256_cvtepu8_epi32(_mm_srli_si128(codes, 8)))};
}

inline Pairs pairs_of(const bf16* p) {
  int32_t two;
  __builtin_memcpy(&two, p, 4);
  return {_mm256_set1_epi32(two), _mm256_set1_epi32(two)};
}
// Sixteen codes in 16-bit lanes to bf16: exponent bias 127 for 7, seven subnormals from a table.
inline __m256i e4m3_bf16(__m256i code) {
  const __m256i magnitude = _mm256_and_si256(code, _mm256_set1_epi16(0x7f));
  const __m256i normal = _mm256_add_epi16(_mm256_slli_epi16(magnitude, 4), _mm256_set1_epi16(120 << 7));
  const __m256i table_low = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 0, -128, -64, 0, 32, 64, 96, 0, 0, 0, 0, 0, 0, 0, 0));
  const __m256i table_high = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 0x3b, 0x3b, 0x3b, 0x3c, 0x3c, 0x3c, 0x3c, 0, 0, 0, 0, 0, 0, 0, 0));
  const __m256i index = _mm256_or_si256(magnitude, _mm256_set1_epi16(static_cast<int16_t>(0x8000)));
  const __m256i small = _mm256_or_si256(_mm256_shuffle_epi8(table_low, index), _mm256_slli_epi16(_mm256_shuffle_epi8(table_high, index), 8));
  __m256i r = _mm256_blendv_epi8(normal, small, _mm256_cmpgt_epi16(_mm256_set1_epi16(8), magnitude));
  r = _mm256_or_si256(r, _mm256_and_si256(_mm256_cmpeq_epi16(magnitude, _mm256_set1_epi16(0x7f)), _mm256_set1_epi16(0x7fc0)));
  return _mm256_or_si256(r, _mm256_slli_epi16(_mm256_and_si256(code, _mm256_set1_epi16(0x80)), 8));
}
inline void pairs_e4m3(const uint8_t* p, Pairs& first, Pairs& second) {
  const __m256i spread = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, -1, 1, -1, 4, -1, 5, -1, 8, -1, 9, -1, 12, -1, 13, -1));
  const Lanes c = lanes_load(p);
  first = {e4m3_bf16(_mm256_shuffle_epi8(c.lo, spread)), e4m3_bf16(_mm256_shuffle_epi8(c.hi, spread))};
  const __m256i lo = _mm256_srli_epi32(c.lo, 16), hi = _mm256_srli_epi32(c.hi, 16);
  second = {e4m3_bf16(_mm256_shuffle_epi8(lo, spread)), e4m3_bf16(_mm256_shuffle_epi8(hi, spread))};
}
inline void pstore(bf16* p, Pairs a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a.lo);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p) + 1, a.hi);
}

inline void turn_lanes(const uint8_t* p, uint8_t* out) {
  for (int i = 0; i < 64; ++i) out[i % 4 * 16 + i / 4] = p[i];
}
inline void e2m1_bytes(const uint8_t* p, uint8_t* out) {
  const __m128i packed = load_codes(p), nibble = _mm_set1_epi8(15);
  const __m128i table = _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm_shuffle_epi8(table, _mm_and_si128(packed, nibble)));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out + 16), _mm_shuffle_epi8(table, _mm_and_si128(_mm_srli_epi16(packed, 4), nibble)));
}

inline uint32_t magnitude_bits(Vec a, Vec b) {
  const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
  const auto bits = [&](__m256 v) { return _mm256_and_si256(_mm256_castps_si256(v), magnitude); };
  const __m256i m = _mm256_max_epu32(_mm256_max_epu32(bits(a.lo), bits(a.hi)), _mm256_max_epu32(bits(b.lo), bits(b.hi)));
  __m128i r = _mm_max_epu32(_mm256_castsi256_si128(m), _mm256_extracti128_si256(m, 1));
  r = _mm_max_epu32(r, _mm_shuffle_epi32(r, 0x4e));
  r = _mm_max_epu32(r, _mm_shuffle_epi32(r, 0xb1));
  return static_cast<uint32_t>(_mm_cvtsi128_si32(r));
}
inline int32_t store_codes(int8_t* p, Vec a) {
  alignas(32) int32_t t[16];
  _mm256_store_si256(reinterpret_cast<__m256i*>(t), _mm256_cvtps_epi32(a.lo));
  _mm256_store_si256(reinterpret_cast<__m256i*>(t + 8), _mm256_cvtps_epi32(a.hi));
  int32_t sum = 0;
  for (int i = 0; i < 16; ++i) p[i] = static_cast<int8_t>(t[i]), sum += t[i];
  return sum;
}

}  // namespace
}  // namespace pointsman::ops
