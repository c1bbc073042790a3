// SPDX-License-Identifier: Apache-2.0
//
// Kernels of latent attention around attention itself. Include a vec_*.h, isa/weight_rows.h, matmul/matmul_isa.h, norm/rms_norm_isa.h and
// attention/attention_isa.h first.
#pragma once

#include "ops/attention/latent.h"

namespace pointsman::ops {
namespace {

inline void rotate_pairs(float* x, const float* cos, const float* sin, int64_t rope, bool interleaved) {
  const int64_t half = rope / 2;
  for (int64_t i = 0; i < half; ++i) {
    float& first = interleaved ? x[2 * i] : x[i];
    float& second = interleaved ? x[2 * i + 1] : x[half + i];
    const float a = first, b = second;
    first = a * cos[i] - b * sin[i];
    second = b * cos[i] + a * sin[i];
  }
}

inline void latent_prepare_kernel(ThreadPool& pool, const LatentPrepareArgs& a) {
  const int64_t width = a.nope + a.rope, half = a.rope / 2;
  pool.parallel_for(a.q.rows, larger(1, 16384 / larger(1, a.heads * a.rope)), [&](int64_t first, int64_t last) {
    for (int64_t t = first; t < last; ++t) {
      const float* cos = a.cos + t * half;
      const float* sin = a.sin + t * half;
      for (int64_t h = 0; h < a.heads; ++h) rotate_pairs(a.q.row<float>(t) + h * width + a.nope, cos, sin, a.rope, a.interleaved);
      float* c = a.kv.row<float>(t);
      rotate_pairs(c + a.rank, cos, sin, a.rope, a.interleaved);
      const Vec scale = vset(inverse_rms(c, a.rank, a.eps));
      for (int64_t i = 0; i < a.rank; i += 16) {
        const int64_t n = smaller(16, a.rank - i);
        vstore_n(c + i, vmul(vmul(vload_n(c + i, n), scale), vload_n(a.norm + i, n)), n);
      }
    }
  });
}

template <class C>
void latent_cache_rows(ThreadPool& pool, const LatentCacheArgs& a) {
  pool.parallel_for(a.kv.rows, 16, [&](int64_t first, int64_t last) {
    for (int64_t t = first; t < last; ++t) {
      const float* kv = a.kv.row<const float>(t);
      const int s = a.sequences.of_row(t);
      C* const k = static_cast<C*>(a.k_cache[s]);
      C* const v = static_cast<C*>(a.v_cache[s]);
      const int64_t position = a.sequences.position(s, t);
      if (a.expanded.data == nullptr) {
        to_cache(kv, k + position * (a.rank + a.rope), a.rank + a.rope);
        continue;
      }
      for (int64_t h = 0; h < a.heads; ++h) {
        const float* both = a.expanded.row<const float>(t) + h * (a.nope + a.v);
        C* key = k + (h * a.capacity + position) * (a.nope + a.rope);
        to_cache(both, key, a.nope);
        to_cache(kv + a.rank, key + a.nope, a.rope);
        to_cache(both + a.nope, v + (h * a.capacity + position) * a.v, a.v);
      }
    }
  });
}
inline void latent_cache_kernel(ThreadPool& pool, const LatentCacheArgs& a) {
  if (a.cache_dtype == DType::kBF16) return latent_cache_rows<bf16>(pool, a);
  latent_cache_rows<float>(pool, a);
}

template <class Rows, bool kTransposed>
void head_matmul_rows(ThreadPool& pool, const HeadMatmulArgs& a) {
  const int64_t k = kTransposed ? a.count : a.w.cols, n = kTransposed ? a.w.cols : a.count;
  const int64_t m_blocks = (a.x.rows + kMaxBlockRows - 1) / kMaxBlockRows;
  pool.parallel_for(a.heads * m_blocks, 1, [&](int64_t first, int64_t last) {
    float values[kMaxBlockRows * kColumnBlock];
    for (int64_t block = first; block < last; ++block) {
      const int64_t h = block / m_blocks, m0 = block % m_blocks * kMaxBlockRows, m = smaller(a.x.rows, m0 + kMaxBlockRows) - m0;
      const Rows rows(a.w.slice_out(h * a.stride + a.first, a.count));
      const float* x[kMaxBlockRows];
      for (int64_t i = 0; i < m; ++i) x[i] = a.x.row<const float>(m0 + i) + h * a.x_width;
      for (int64_t j = 0; j < n; j += kColumnBlock) {
        const int64_t count = smaller(kColumnBlock, n - j);
        dot_block<Rows, kTransposed>(rows, x, m, j, count, k, values, kColumnBlock);
        for (int64_t i = 0; i < m; ++i) {
          const float* src = values + i * kColumnBlock;
          if (a.y.dtype == DType::kBF16) {
            to_cache(src, a.y.row<bf16>(m0 + i) + h * a.y_width + j, count);
          } else {
            to_cache(src, a.y.row<float>(m0 + i) + h * a.y_width + j, count);
          }
        }
      }
    }
  });
}
inline void head_matmul_kernel(ThreadPool& pool, const HeadMatmulArgs& a) {
  const auto run = [&]<class Rows>() {
    if (a.transposed) return head_matmul_rows<Rows, true>(pool, a);
    head_matmul_rows<Rows, false>(pool, a);
  };
  if (is_coded(a.w.dtype)) return with_coded_rows(a.w.dtype, run);
  with_plain_rows(a.w.dtype, run);
}

inline void head_copy_kernel(ThreadPool&, const HeadCopyArgs& a) {
  for (int64_t t = 0; t < a.x.rows; ++t) {
    for (int64_t h = 0; h < a.heads; ++h) {
      to_cache(a.x.row<const float>(t) + h * a.x_width + a.x_first, a.y.row<float>(t) + h * a.y_width + a.y_first, a.count);
    }
  }
}

}  // namespace
}  // namespace pointsman::ops
