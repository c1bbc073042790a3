// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "ops/bench/limit_loops.h"

namespace pointsman::ops {
namespace {

float total(__m512 v) {
  float lanes[16], sum = 0;
  _mm512_storeu_ps(lanes, v);
  for (float f : lanes) sum += f;
  return sum;
}

float read_sum(const float* p, int64_t n) {
  __m512 s[8];
  for (auto& v : s) v = _mm512_setzero_ps();
  for (int64_t i = 0; i < n; i += 128) {
    for (int j = 0; j < 8; ++j) {
      _mm_prefetch(reinterpret_cast<const char*>(p + i + 16 * j) + 4096, _MM_HINT_T0);
      s[j] = _mm512_add_ps(s[j], _mm512_loadu_ps(p + i + 16 * j));
    }
  }
  for (int j = 1; j < 8; ++j) s[0] = _mm512_add_ps(s[0], s[j]);
  return total(s[0]);
}

float fma_chains(int64_t steps) {
  __m512 acc[kFmaChains];
  for (int j = 0; j < kFmaChains; ++j) acc[j] = _mm512_set1_ps(static_cast<float>(j));
  __m512 a = _mm512_set1_ps(0.5f), b = _mm512_set1_ps(1.0f);
  for (int64_t i = 0; i < steps; ++i) {
    for (auto& v : acc) v = _mm512_fmadd_ps(v, a, b);
  }
  for (int j = 1; j < kFmaChains; ++j) acc[0] = _mm512_add_ps(acc[0], acc[j]);
  return total(acc[0]);
}

float bf16_chains(int64_t steps) {
  __m512 acc[kFmaChains];
  for (int j = 0; j < kFmaChains; ++j) acc[j] = _mm512_set1_ps(static_cast<float>(j));
  // 0x3f80 is 1 in bf16.
  const __m512bh one = (__m512bh)_mm512_set1_epi16(0x3f80);
  for (int64_t i = 0; i < steps; ++i) {
    for (auto& v : acc) v = _mm512_dpbf16_ps(v, one, one);
  }
  for (int j = 1; j < kFmaChains; ++j) acc[0] = _mm512_add_ps(acc[0], acc[j]);
  return total(acc[0]);
}

float int8_chains(int64_t steps) {
  __m512i acc[kFmaChains];
  for (int j = 0; j < kFmaChains; ++j) acc[j] = _mm512_set1_epi32(j);
  const __m512i one = _mm512_set1_epi8(1);
  for (int64_t i = 0; i < steps; ++i) {
    for (auto& v : acc) v = _mm512_dpbusd_epi32(v, one, one);
  }
  for (int j = 1; j < kFmaChains; ++j) acc[0] = _mm512_add_epi32(acc[0], acc[j]);
  return total(_mm512_cvtepi32_ps(acc[0]));
}

void copy_past_caches(const float* from, float* to, int64_t n) {
  for (int64_t i = 0; i < n; i += 64) {
    for (int j = 0; j < 4; ++j) _mm_prefetch(reinterpret_cast<const char*>(from + i + 16 * j) + 4096, _MM_HINT_T0);
    __m512 v[4];
    for (int j = 0; j < 4; ++j) v[j] = _mm512_loadu_ps(from + i + 16 * j);
    for (int j = 0; j < 4; ++j) _mm512_stream_ps(to + i + 16 * j, v[j]);
  }
  _mm_sfence();
}

}  // namespace

LimitLoops limit_loops_avx512() { return {read_sum, fma_chains, bf16_chains, int8_chains, 16, copy_past_caches}; }

}  // namespace pointsman::ops
