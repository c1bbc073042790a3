// SPDX-License-Identifier: Apache-2.0
//
// SwiGLU on tiles: gate and up of the same columns one after the other, silu(g) * u at once, then down. Include a vec_*.h, isa/math.h,
// isa/tile.h and matmul/matmul_isa.h first.
#pragma once

#include "ops/activation/swiglu.h"

namespace pointsman::ops {
namespace {

template <class Dot>
void swiglu_kernel(ThreadPool& pool, const SwigluFfnArgs& a) {
  using X = typename Dot::X;
  using W = typename Dot::Weight;
  if (a.rows == 0) return;
  const int64_t hidden = a.w_gate.cols;
  const int64_t intermediate = a.w_gate.rows;
  // Two matrices per range, so half the columns of a matmul.
  const int64_t n_step = larger(8, columns_per_range(a.rows, hidden * static_cast<int64_t>(sizeof(W))) / 2);
  const int64_t n_blocks = (intermediate + n_step - 1) / n_step;
  const int64_t m_blocks = (a.rows + kRowBlock - 1) / kRowBlock;
  pool.parallel_for(n_blocks * m_blocks, 1, [&](int64_t first, int64_t last) {
    [[maybe_unused]] const typename Dot::Denormals denormals;
    float gate[kTileRows * kMaxColumns / 2], up[kTileRows * kMaxColumns / 2];
    constexpr int64_t kStride = kMaxColumns / 2;
    for (int64_t block = first; block < last; ++block) {
      const int64_t n0 = block / m_blocks * n_step, n1 = smaller(intermediate, n0 + n_step);
      const int64_t m0 = block % m_blocks * kRowBlock, m1 = smaller(a.rows, m0 + kRowBlock);
      for (int64_t m = m0; m < m1; m += kTileRows) {
        const int count = static_cast<int>(smaller(kTileRows, m1 - m));
        const X* x[kTileRows];
        for (int i = 0; i < count; ++i) x[i] = a.x.row<const X>(a.x_rows != nullptr ? a.x_rows[m + i] : m + i);
        dot_rows<Dot>(x, count, a.w_gate.row<const W>(n0), a.w_gate.row_stride, n1 - n0, hidden, gate, kStride, m == m0);
        dot_rows<Dot>(x, count, a.w_up.row<const W>(n0), a.w_up.row_stride, n1 - n0, hidden, up, kStride, m == m0);
        for (int i = 0; i < count; ++i) {
          X* act = a.act.row<X>(m + i) + n0;
          for (int64_t j = 0; j < n1 - n0; j += 16) {
            const int64_t c = smaller(16, n1 - n0 - j);
            vstore_n(act + j, vmul(vsilu(vload_n(gate + i * kStride + j, c)), vload_n(up + i * kStride + j, c)), c);
          }
        }
      }
    }
  });
  for_each_tile<Dot>(
      pool, a.rows, a.w_down, [&](int64_t m) { return a.act.row<const X>(m); },
      [&](int64_t m, int64_t n, int64_t count, const float* values) {
        store_row(a.out.row<float>(a.out_rows != nullptr ? a.out_rows[m] : m) + n, values, nullptr, a.accumulate, count);
      });
}

}  // namespace
}  // namespace pointsman::ops
