// SPDX-License-Identifier: Apache-2.0
//
// SwiGLU on tiles: gate and up of the same columns one after the other, silu(g) * u at once, then down. Include a vec_*.h, isa/math.h,
// isa/tile.h and matmul/matmul_isa.h first.
#pragma once

#include "ops/activation/swiglu.h"
#include "ops/quant/simulate_isa.h"

namespace pointsman::ops {
namespace {

// act[j] from gate and up, n of them, rounded to the type of act.
template <class X>
inline void activate(const SwigluForm& form, const float* gate, const float* up, const float* gate_bias, const float* up_bias, X* act, int64_t n) {
  for (int64_t j = 0; j < n; j += 16) {
    const int64_t c = smaller(16, n - j);
    Vec g = vload_n(gate + j, c), u = vload_n(up + j, c);
    if (gate_bias != nullptr) g = vadd(g, vload_n(gate_bias + j, c));
    if (up_bias != nullptr) u = vadd(u, vload_n(up_bias + j, c));
    if (form.is_plain()) {
      vstore_n(act + j, vmul(vsilu(g), u), c);
      continue;
    }
    if (form.limit > 0) {
      // vmin and vmax give their second operand when one is NaN: a NaN stays.
      g = vmin(vset(form.limit), g);
      u = vmax(vset(-form.limit), vmin(vset(form.limit), u));
    }
    const Vec gated = vdiv(g, vadd(vset(1.0f), vexp(vmul(vset(-form.alpha), g))));
    vstore_n(act + j, vmul(vadd(u, vset(form.up_offset)), gated), c);
  }
}

// Rows of act as DeepSeek's own code hands them to the last product.
inline void quantise_act(ThreadPool& pool, const SwigluFfnArgs& a) {
  pool.parallel_for(a.rows, larger(1, 4096 / a.act.cols), [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) {
      float* x = a.act.row<float>(r);
      const float weight = a.act_weights != nullptr ? a.act_weights[a.out_rows != nullptr ? a.out_rows[r] : r] : 1.0f;
      for (int64_t i = 0; i < a.act.cols; ++i) x[i] = through_bf16(x[i] * weight);
      for (int64_t b = 0; b < a.act.cols; b += a.act_block) simulate_block(x + b, smaller(a.act_block, a.act.cols - b), SimulatedCode::kE4M3);
    }
  });
}

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
          activate(a.form, gate + i * kStride, up + i * kStride, a.gate_bias != nullptr ? a.gate_bias + n0 : nullptr,
                   a.up_bias != nullptr ? a.up_bias + n0 : nullptr, a.act.row<X>(m + i) + n0, n1 - n0);
        }
      }
    }
  });
  for_each_tile<Dot>(
      pool, a.rows, a.w_down, [&](int64_t m) { return a.act.row<const X>(m); },
      [&](int64_t m, int64_t n, int64_t count, const float* values) {
        store_row(a.out.row<float>(a.out_rows != nullptr ? a.out_rows[m] : m) + n, values, a.down_bias != nullptr ? a.down_bias + n : nullptr, a.accumulate,
                  count);
      });
}

// The same for weights in any stored format, gate and up apart or interleaved.
template <class Rows, bool kInOut>
void swiglu_rows_kernel(ThreadPool& pool, const SwigluFfnArgs& a) {
  if (a.rows == 0) return;
  const bool interleaved = a.w_up.data == nullptr;
  const Rows gate_rows(a.w_gate), up_rows(interleaved ? a.w_gate : a.w_up);
  const int64_t hidden = a.w_gate.cols;
  const int64_t intermediate = a.act.cols;
  const int64_t n_step = (larger(8, columns_per_range(a.rows, hidden * Rows::Code::kBits / 8) / 2) + 15) / 16 * 16;
  const int64_t n_blocks = (intermediate + n_step - 1) / n_step;
  const int64_t m_blocks = (a.rows + kMaxBlockRows - 1) / kMaxBlockRows;
  pool.parallel_for(n_blocks * m_blocks, 1, [&](int64_t first, int64_t last) {
    // Gate and up of a block: 96 rows x 32 columns, or 8 x 128, twice.
    float values[2 * kMaxBlockRows * kColumnBlock / 2];
    static_assert(kMaxBlockRows * kColumnBlock / 2 >= 8 * kMaxColumns / 2);
    float* const gate = values;
    float* const up = values + kMaxBlockRows * kColumnBlock / 2;
    for (int64_t block = first; block < last; ++block) {
      const int64_t n0 = block / m_blocks * n_step, n = smaller(intermediate, n0 + n_step) - n0;
      const int64_t m0 = block % m_blocks * kMaxBlockRows, m = smaller(a.rows, m0 + kMaxBlockRows) - m0;
      const float* x[kMaxBlockRows];
      for (int64_t i = 0; i < m; ++i) x[i] = a.x.row<const float>(a.x_rows != nullptr ? a.x_rows[m0 + i] : m0 + i);
      if (interleaved) {
        dot_block<Rows, kInOut>(gate_rows, x, m, 2 * n0, 2 * n, hidden, values, 2 * n_step);
        for (int64_t i = 0; i < m; ++i) {
          const float* both = values + i * 2 * n_step;
          float g[kMaxColumns], u[kMaxColumns];
          for (int64_t j = 0; j < n; ++j) {
            g[j] = a.gate_bias != nullptr ? both[2 * j] + a.gate_bias[2 * (n0 + j)] : both[2 * j];
            u[j] = a.gate_bias != nullptr ? both[2 * j + 1] + a.gate_bias[2 * (n0 + j) + 1] : both[2 * j + 1];
          }
          activate(a.form, g, u, nullptr, nullptr, a.act.row<float>(m0 + i) + n0, n);
        }
        continue;
      }
      dot_block<Rows, kInOut>(gate_rows, x, m, n0, n, hidden, gate, n_step);
      dot_block<Rows, kInOut>(up_rows, x, m, n0, n, hidden, up, n_step);
      for (int64_t i = 0; i < m; ++i) {
        activate(a.form, gate + i * n_step, up + i * n_step, a.gate_bias != nullptr ? a.gate_bias + n0 : nullptr,
                 a.up_bias != nullptr ? a.up_bias + n0 : nullptr, a.act.row<float>(m0 + i) + n0, n);
      }
    }
  });
  if (a.act_block > 0) quantise_act(pool, a);
  for_each_block<Rows, kInOut>(
      pool, a.rows, a.w_down, [&](int64_t m) { return a.act.row<const float>(m); },
      [&](int64_t m, int64_t n, int64_t count, const float* out) {
        store_row(a.out.row<float>(a.out_rows != nullptr ? a.out_rows[m] : m) + n, out, a.down_bias != nullptr ? a.down_bias + n : nullptr,
                  a.accumulate, count);
      });
}
inline void swiglu_coded_kernel(ThreadPool& pool, const SwigluFfnArgs& a) {
  with_coded_rows(a.w_gate.dtype, [&]<class Rows>() { swiglu_rows_kernel<Rows, false>(pool, a); });
}
inline void swiglu_in_out_kernel(ThreadPool& pool, const SwigluFfnArgs& a) {
  with_plain_rows(a.w_gate.dtype, [&]<class Rows>() { swiglu_rows_kernel<Rows, true>(pool, a); });
}

}  // namespace
}  // namespace pointsman::ops
