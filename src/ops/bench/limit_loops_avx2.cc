// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "ops/bench/limit_loops.h"

namespace pointsman::ops {
namespace {

float total(__m256 v) {
  float lanes[8], sum = 0;
  _mm256_storeu_ps(lanes, v);
  for (float f : lanes) sum += f;
  return sum;
}

float read_sum(const float* p, int64_t n) {
  __m256 s[8];
  for (auto& v : s) v = _mm256_setzero_ps();
  for (int64_t i = 0; i < n; i += 64) {
    _mm_prefetch(reinterpret_cast<const char*>(p + i) + 4096, _MM_HINT_T0);
    _mm_prefetch(reinterpret_cast<const char*>(p + i) + 4096 + 64, _MM_HINT_T0);
    _mm_prefetch(reinterpret_cast<const char*>(p + i) + 4096 + 128, _MM_HINT_T0);
    _mm_prefetch(reinterpret_cast<const char*>(p + i) + 4096 + 192, _MM_HINT_T0);
    for (int j = 0; j < 8; ++j) s[j] = _mm256_add_ps(s[j], _mm256_loadu_ps(p + i + 8 * j));
  }
  for (int j = 1; j < 8; ++j) s[0] = _mm256_add_ps(s[0], s[j]);
  return total(s[0]);
}

float fma_chains(int64_t steps) {
  __m256 acc[kFmaChains];
  for (int j = 0; j < kFmaChains; ++j) acc[j] = _mm256_set1_ps(static_cast<float>(j));
  __m256 a = _mm256_set1_ps(0.5f), b = _mm256_set1_ps(1.0f);
  for (int64_t i = 0; i < steps; ++i) {
    for (auto& v : acc) v = _mm256_fmadd_ps(v, a, b);
  }
  for (int j = 1; j < kFmaChains; ++j) acc[0] = _mm256_add_ps(acc[0], acc[j]);
  return total(acc[0]);
}

void copy_past_caches(const float* from, float* to, int64_t n) {
  for (int64_t i = 0; i < n; i += 64) {
    for (int j = 0; j < 8; j += 2) _mm_prefetch(reinterpret_cast<const char*>(from + i + 8 * j) + 4096, _MM_HINT_T0);
    __m256 v[8];
    for (int j = 0; j < 8; ++j) v[j] = _mm256_loadu_ps(from + i + 8 * j);
    for (int j = 0; j < 8; ++j) _mm256_stream_ps(to + i + 8 * j, v[j]);
  }
  _mm_sfence();
}

}  // namespace

LimitLoops limit_loops_avx2() { return {read_sum, fma_chains, nullptr, nullptr, 8, copy_past_caches}; }

}  // namespace pointsman::ops
