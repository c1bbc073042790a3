// SPDX-License-Identifier: Apache-2.0
//
// Include a vec_*.h, matmul/matmul_isa.h and norm/rms_norm_isa.h first.
#pragma once

#include "ops/rope/rotate_tail.h"

namespace pointsman::ops {
namespace {

// The last rotary_dim channels of one head, in place, by cos/sin [rotary_dim / 2].
inline void rotate_pairs(float* tail, int64_t rotary_dim, const float* cos, const float* sin, bool inverse) {
  for (int64_t i = 0; i < rotary_dim / 2; ++i) {
    const float a = tail[2 * i], b = tail[2 * i + 1], s = inverse ? -sin[i] : sin[i];
    tail[2 * i] = a * cos[i] - b * s;
    tail[2 * i + 1] = b * cos[i] + a * s;
  }
}

// x = x * inverse_rms(x) (* weight)
inline void norm_head(float* x, int64_t dim, const float* weight, float eps) {
  const Vec scale = vset(inverse_rms(x, dim, eps));
  for (int64_t i = 0; i < dim; i += 16) {
    const int64_t c = smaller(16, dim - i);
    const Vec y = vmul(vload_n(x + i, c), scale);
    vstore_n(x + i, weight != nullptr ? vmul(y, vload_n(weight + i, c)) : y, c);
  }
}

template <class T>
inline void copy_row(const float* src, T* dst, int64_t n) {
  for (int64_t i = 0; i < n; i += 16) vstore_n(dst + i, vload_n(src + i, smaller(16, n - i)), smaller(16, n - i));
}

inline void rotate_tail_kernel(ThreadPool& pool, const RotateTailArgs& a) {
  const int64_t half = a.rotary_dim / 2;
  pool.parallel_for(a.x.rows, larger(1, 16384 / a.x.cols), [&](int64_t first, int64_t last) {
    float head[512];
    for (int64_t t = first; t < last; ++t) {
      for (int64_t h = 0; h < a.heads; ++h) {
        const int64_t at = h * a.head_dim;
        copy_row(a.x.row<const float>(t) + at, head, a.head_dim);
        if (a.norm != HeadNorm::kNone) norm_head(head, a.head_dim, a.weight, a.eps);
        rotate_pairs(head + a.head_dim - a.rotary_dim, a.rotary_dim, a.cos + t * half, a.sin + t * half, a.inverse);
        if (a.out.dtype == DType::kBF16) {
          copy_row(head, a.out.row<bf16>(t) + at, a.head_dim);
        } else {
          copy_row(head, a.out.row<float>(t) + at, a.head_dim);
        }
      }
    }
  });
}

}  // namespace
}  // namespace pointsman::ops
