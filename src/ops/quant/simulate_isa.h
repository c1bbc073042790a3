// SPDX-License-Identifier: Apache-2.0
//
// One value at a time: this numerics mode is for comparing, not for speed. Include a vec_*.h and matmul/matmul_isa.h first.
#pragma once

#include "ops/quant/simulate.h"

namespace pointsman::ops {
namespace {

inline uint32_t bits_of_float(float f) {
  uint32_t u;
  __builtin_memcpy(&u, &f, 4);
  return u;
}
inline float float_of_bits(uint32_t u) {
  float f;
  __builtin_memcpy(&f, &u, 4);
  return f;
}
// 2^e, e in [-126, 127].
inline float power_of_two(int e) { return float_of_bits(static_cast<uint32_t>(e + 127) << 23); }

inline float through_bf16(float f) { return to_float(to_bf16(f)); }

// v to the nearest multiple of the format's spacing at v, ties to even. The largest code is not exceeded: |v| is at most that.
inline float round_to_code(float v, int lowest_exponent, int mantissa_bits) {
  const int exponent = static_cast<int>(bits_of_float(v) >> 23 & 255) - 127;
  const float spacing = power_of_two((exponent > lowest_exponent ? exponent : lowest_exponent) - mantissa_bits);
  const float big = 12582912.0f * spacing;  // 1.5 * 2^23: adding it leaves whole multiples of the spacing
  return __builtin_copysignf((v + big) - big, v);  // -0 is a code of its own
}

// x [n] in place, one scale.
inline void simulate_block(float* x, int64_t n, SimulatedCode code, SimulatedScale rule) {
  const bool fp8 = code == SimulatedCode::kE4M3;
  float amax = fp8 ? 1e-4f : 6 * power_of_two(-126);
  for (int64_t i = 0; i < n; ++i) {
    const float a = x[i] < 0 ? -x[i] : x[i];
    if (a > amax) amax = a;
  }
  const float largest = fp8 ? 448.0f : 6.0f;
  const auto rounded = [&](float v) {
    v = v > largest ? largest : v < -largest ? -largest : v;
    return round_to_code(v, fp8 ? -6 : 0, fp8 ? 3 : 1);
  };
  if (rule == SimulatedScale::kFp32) {
    const float scale = amax / largest;
    for (int64_t i = 0; i < n; ++i) {
      if (x[i] == x[i]) x[i] = rounded(x[i] / scale) * scale;
    }
    return;
  }
  const uint32_t bits = bits_of_float(amax / largest);
  int exponent = static_cast<int>(bits >> 23) - 127 + ((bits & 0x7fffff) != 0 ? 1 : 0);
  if (exponent < -126) exponent = -126;
  const float up = power_of_two(exponent), down = exponent > 126 ? 0.5f * power_of_two(-126) : power_of_two(-exponent);
  for (int64_t i = 0; i < n; ++i) {
    if (x[i] != x[i]) continue;  // NaN stays NaN
    x[i] = rounded(x[i] * down) * up;
  }
}

// x [n] in place, n a power of two.
inline void hadamard(float* x, int64_t n) {
  for (int64_t half = 1; half < n; half *= 2) {
    for (int64_t i = 0; i < n; i += 2 * half) {
      for (int64_t j = i; j < i + half; ++j) {
        const float a = x[j], b = x[j + half];
        x[j] = a + b, x[j + half] = a - b;
      }
    }
  }
  const float scale = 1.0f / __builtin_sqrtf(static_cast<float>(n));
  for (int64_t i = 0; i < n; ++i) x[i] = through_bf16(x[i] * scale);
}

inline void simulate_kernel(ThreadPool& pool, const SimulateArgs& a) {
  const int64_t run = a.hadamard > 0 ? a.hadamard : a.block > 0 ? a.block : 512;
  pool.parallel_for(a.x.rows, larger(1, 4096 / larger(1, a.x.cols)), [&](int64_t first, int64_t last) {
    float values[kMaxHadamard];
    const auto load = [&](int64_t r, int64_t c) { return a.x.dtype == DType::kBF16 ? to_float(a.x.row<const bf16>(r)[c]) : a.x.row<const float>(r)[c]; };
    const auto store = [&](int64_t r, int64_t c, float v) {
      if (a.out.dtype == DType::kBF16) {
        a.out.row<bf16>(r)[c] = to_bf16(v);
      } else {
        a.out.row<float>(r)[c] = v;
      }
    };
    for (int64_t r = first; r < last; ++r) {
      for (int64_t c = 0; c < a.num_cols; c += run) {
        const int64_t n = smaller(run, a.num_cols - c);
        for (int64_t i = 0; i < n; ++i) values[i] = through_bf16(load(r, c + i));
        if (a.hadamard > 0) hadamard(values, n);
        for (int64_t b = 0; a.code != SimulatedCode::kBf16 && b < n; b += a.block) simulate_block(values + b, smaller(a.block, n - b), a.code, a.scale);
        for (int64_t i = 0; i < n; ++i) store(r, c + i, values[i]);
      }
      for (int64_t c = a.num_cols; c < a.x.cols; ++c) store(r, c, load(r, c));
    }
  });
}

}  // namespace
}  // namespace pointsman::ops
