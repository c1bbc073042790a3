// SPDX-License-Identifier: Apache-2.0
//
// Include a vec_*.h, isa/math.h, matmul/matmul_isa.h and norm/rms_norm_isa.h first.
#pragma once

#include "ops/hyper/hyper_connection.h"

namespace pointsman::ops {
namespace {

inline void hc_spread_kernel(ThreadPool& pool, const HcSpreadArgs& a) {
  const int64_t hidden = a.h.cols, n = a.streams.cols / hidden;
  pool.parallel_for(a.h.rows, larger(1, 16384 / a.streams.cols), [&](int64_t first, int64_t last) {
    for (int64_t t = first; t < last; ++t) {
      float* h = a.h.row<float>(t);
      for (int64_t j = 0; j < n; ++j) __builtin_memcpy(a.streams.row<float>(t) + j * hidden, h, static_cast<size_t>(hidden) * sizeof(float));
      __builtin_memset(h, 0, static_cast<size_t>(hidden) * sizeof(float));
    }
  });
}

// comb [n, n] in place: logits to a doubly stochastic matrix.
inline void sinkhorn(float* comb, int64_t n, int64_t iters, float eps) {
  Vec rows[kMaxStreams];
  const Vec eps_below_n = lanes_below(vset(eps), n, 0);
  for (int64_t j = 0; j < n; ++j) {
    const Vec z = lanes_below(vload_n(comb + j * n, n), n, -__builtin_inff());
    const Vec e = vexp(vsub(z, vset(vhighest(z))));
    rows[j] = vadd(vdiv(e, vset(vsum(e))), eps_below_n);
  }
  const auto columns = [&] {
    Vec sum = vset(eps);
    Vec total = rows[0];
    for (int64_t j = 1; j < n; ++j) total = vadd(total, rows[j]);
    sum = vadd(total, sum);
    for (int64_t j = 0; j < n; ++j) rows[j] = vdiv(rows[j], sum);
  };
  columns();
  for (int64_t i = 1; i < iters; ++i) {
    for (int64_t j = 0; j < n; ++j) rows[j] = vdiv(rows[j], vset(vsum(lanes_below(rows[j], n, 0)) + eps));
    columns();
  }
  for (int64_t j = 0; j < n; ++j) vstore_n(comb + j * n, rows[j], n);
}

inline void hc_collapse_kernel(ThreadPool& pool, const HcCollapseArgs& a) {
  const int64_t hidden = a.out.cols, n = a.n;
  pool.parallel_for(a.out.rows, larger(1, 8192 / a.streams.cols), [&](int64_t first, int64_t last) {
    for (int64_t t = first; t < last; ++t) {
      const float* x = a.streams.row<const float>(t);
      float* m = a.mixes.row<float>(t);
      const Vec norm = vset(inverse_rms(x, a.streams.cols, a.rms_eps));
      const auto logits = [&](int64_t at, int64_t count, float scale) {
        return vfma(vmul(vload_n(m + at, count), norm), vset(scale), vload_n(a.base + at, count));
      };
      vstore_n(m, vadd(vsigmoid(logits(0, n, a.scale[0])), vset(a.eps)), n);
      if (!a.head) {
        vstore_n(m + n, vmul(vset(2.0f), vsigmoid(logits(n, n, a.scale[1]))), n);
        for (int64_t j = 0; j < n; ++j) vstore_n(m + 2 * n + j * n, logits(2 * n + j * n, n, a.scale[2]), n);
        sinkhorn(m + 2 * n, n, a.sinkhorn_iters, a.eps);
      }
      float* out = a.out.row<float>(t);
      for (int64_t i = 0; i < hidden; i += 16) {
        const int64_t c = smaller(16, hidden - i);
        Vec sum = vmul(vset(m[0]), vload_n(x + i, c));
        for (int64_t j = 1; j < n; ++j) sum = vfma(vset(m[j]), vload_n(x + j * hidden + i, c), sum);
        vstore_n(out + i, sum, c);
      }
    }
  });
}

inline void hc_expand_kernel(ThreadPool& pool, const HcExpandArgs& a) {
  const int64_t hidden = a.y.cols, n = a.n;
  pool.parallel_for(a.y.rows, larger(1, 8192 / a.streams.cols), [&](int64_t first, int64_t last) {
    for (int64_t t = first; t < last; ++t) {
      float* x = a.streams.row<float>(t);
      float* y = a.y.row<float>(t);
      const float* post = a.mixes.row<const float>(t) + n;
      const float* comb = post + n;
      for (int64_t i = 0; i < hidden; i += 16) {
        const int64_t c = smaller(16, hidden - i);
        Vec old[kMaxStreams];
        for (int64_t j = 0; j < n; ++j) old[j] = vload_n(x + j * hidden + i, c);
        const Vec out = vload_n(y + i, c);
        for (int64_t k = 0; k < n; ++k) {
          Vec sum = vmul(vset(post[k]), out);
          // The transpose: stream k takes comb[j][k] of every stream j.
          for (int64_t j = 0; j < n; ++j) sum = vfma(vset(comb[j * n + k]), old[j], sum);
          vstore_n(x + k * hidden + i, sum, c);
        }
      }
      __builtin_memset(y, 0, static_cast<size_t>(hidden) * sizeof(float));
    }
  });
}

}  // namespace
}  // namespace pointsman::ops
