// SPDX-License-Identifier: Apache-2.0
//
// Include a vec_*.h and matmul/matmul_isa.h first.
#pragma once

#include "ops/norm/rms_norm.h"

namespace pointsman::ops {
namespace {

// sqrt on one lane, the same on every instruction set (IEEE).
inline float inverse_rms(const float* x, int64_t n, float eps) {
  Vec sum = vzero();
  for (int64_t i = 0; i < n; i += 16) {
    const Vec v = vload_n(x + i, smaller(16, n - i));
    sum = vfma(v, v, sum);
  }
  return 1.0f / __builtin_sqrtf(vsum(sum) / static_cast<float>(n) + eps);
}

inline void rms_norm_kernel(ThreadPool& pool, const RmsNormArgs& a) {
  // 16 K elements are about 3 us.
  const int64_t grain = larger(1, 16384 / larger(1, a.x.cols));
  pool.parallel_for(a.x.rows, grain, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) {
      const float* x = a.x.row<const float>(r);
      const Vec scale = vset(inverse_rms(x, a.x.cols, a.eps));
      for (int64_t i = 0; i < a.x.cols; i += 16) {
        const int64_t c = smaller(16, a.x.cols - i);
        const Vec y = vmul(vmul(vload_n(x + i, c), scale), vload_n(a.weight + i, c));
        if (a.out_f32) vstore_n(a.out_f32.row<float>(r) + i, y, c);
        if (a.out_bf16) vstore_n(a.out_bf16.row<bf16>(r) + i, y, c);
      }
    }
  });
}

}  // namespace
}  // namespace pointsman::ops
