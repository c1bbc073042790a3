// SPDX-License-Identifier: Apache-2.0
//
// SwiGLU on tiles: gate and up of the same columns one after the other, silu(g) * u at once, then down. Include a vec_*.h, isa/math.h,
// isa/tile.h and matmul/matmul_isa.h first.
#pragma once

#include "ops/activation/swiglu.h"
#include "ops/quant/simulate_isa.h"

namespace pointsman::ops {
namespace {

inline Vec through_bf16(Vec v, int64_t n) {
  float values[16];
  vstore_n(values, v, n);
  for (int64_t i = 0; i < n; ++i) values[i] = through_bf16(values[i]);
  return vload_n(values, n);
}

// act[j] from gate and up, n of them, rounded to the type of act. `in_bf16`: gate and up are rounded to bf16 first.
template <class X>
inline void activate(const SwigluForm& form, const float* gate, const float* up, const float* gate_bias, const float* up_bias, X* act, int64_t n,
                     bool in_bf16 = false) {
  for (int64_t j = 0; j < n; j += 16) {
    const int64_t c = smaller(16, n - j);
    Vec g = vload_n(gate + j, c), u = vload_n(up + j, c);
    if (gate_bias != nullptr) g = vadd(g, vload_n(gate_bias + j, c));
    if (up_bias != nullptr) u = vadd(u, vload_n(up_bias + j, c));
    if (in_bf16) g = through_bf16(g, c), u = through_bf16(u, c);
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

static_assert(kMaxFfnExperts <= kMaxGrids);

// Where the rows of each expert begin in act.
struct ActRows {
  explicit ActRows(const SwigluFfnArgs& a) {
    int64_t n = 0;
    for (int e = 0; e < a.num_experts; ++e) first[e] = n, n += a.experts[e].rows;
  }
  int64_t first[kMaxFfnExperts];
};
inline int64_t x_row_of(const SwigluFfnArgs& a, int e, int64_t m) {
  const int64_t r = a.experts[e].first + m;
  return a.x_rows != nullptr ? a.x_rows[r] : r;
}
inline int64_t out_row_of(const SwigluFfnArgs& a, int e, int64_t m) {
  const int64_t r = a.experts[e].first + m;
  return a.out_rows != nullptr ? a.out_rows[r] : r;
}
// A result of down, row m of expert e, from column n on.
inline void store_down(const SwigluFfnArgs& a, int e, int64_t m, int64_t n, int64_t count, const float* values) {
  const float* bias = a.experts[e].down_bias;
  store_row(a.out.row<float>(out_row_of(a, e, m)) + n, values, bias != nullptr ? bias + n : nullptr, a.accumulate, count);
}

// Rows of act as DeepSeek's own code hands them to the last product.
inline void quantise_act(ThreadPool& pool, const SwigluFfnArgs& a, const ActRows& act) {
  for_each_range(
      pool, a.num_experts, [&](int e) { return RangeGrid{.rows = a.experts[e].rows, .cols = 1, .m_step = larger(1, 4096 / a.act.cols)}; },
      [&](int e, int64_t m0, int64_t m1, int64_t, int64_t) {
        for (int64_t m = m0; m < m1; ++m) {
          float* x = a.act.row<float>(act.first[e] + m);
          const float weight = a.act_weights != nullptr ? a.act_weights[out_row_of(a, e, m)] : 1.0f;
          for (int64_t i = 0; i < a.act.cols; ++i) x[i] = through_bf16(x[i] * weight);
          for (int64_t b = 0; b < a.act.cols; b += a.act_block) simulate_block(x + b, smaller(a.act_block, a.act.cols - b), SimulatedCode::kE4M3, a.act_scale);
        }
      });
}

template <class Dot>
void swiglu_kernel(ThreadPool& pool, const SwigluFfnArgs& a) {
  using X = typename Dot::X;
  using W = typename Dot::Weight;
  const ActRows act(a);
  for_each_range(
      pool, a.num_experts,
      [&](int i) {
        const FfnExpert& e = a.experts[i];
        // Two matrices per range, so half the columns of a matmul.
        const int64_t n_step = larger(8, columns_per_range(e.rows, e.w_gate.cols * static_cast<int64_t>(sizeof(W)), e.w_gate.rows * a.num_experts, pool.num_threads()) / 2);
        return RangeGrid{.rows = e.rows, .cols = e.w_gate.rows, .m_step = kRowBlock, .n_step = n_step};
      },
      [&](int index, int64_t m0, int64_t m1, int64_t n0, int64_t n1) {
        [[maybe_unused]] const typename Dot::Denormals denormals;
        constexpr int64_t kStride = kMaxColumns / 2;
        float gate[kTileRows * kStride], up[kTileRows * kStride];
        const FfnExpert& e = a.experts[index];
        const int64_t hidden = e.w_gate.cols;
        for (int64_t m = m0; m < m1; m += kTileRows) {
          const int count = static_cast<int>(smaller(kTileRows, m1 - m));
          const X* x[kTileRows];
          for (int i = 0; i < count; ++i) x[i] = a.x.row<const X>(x_row_of(a, index, m + i));
          dot_rows<Dot>(x, count, e.w_gate.row<const W>(n0), e.w_gate.row_stride, n1 - n0, hidden, gate, kStride, m == m0);
          dot_rows<Dot>(x, count, e.w_up.row<const W>(n0), e.w_up.row_stride, n1 - n0, hidden, up, kStride, m == m0);
          for (int i = 0; i < count; ++i) {
            activate(a.form, gate + i * kStride, up + i * kStride, e.gate_bias != nullptr ? e.gate_bias + n0 : nullptr,
                     e.up_bias != nullptr ? e.up_bias + n0 : nullptr, a.act.row<X>(act.first[index] + m + i) + n0, n1 - n0);
          }
        }
      });
  for_each_tile<Dot>(
      pool, a.num_experts, [&](int e) { return a.experts[e].rows; }, [&](int e) -> const Tensor& { return a.experts[e].w_down; },
      [&](int e, int64_t m) { return a.act.row<const X>(act.first[e] + m); },
      [&](int e, int64_t m, int64_t n, int64_t count, const float* values) { store_down(a, e, m, n, count, values); });
}

// The same for weights in any stored format, gate and up apart or interleaved.
template <class Rows, bool kInOut>
void swiglu_rows_kernel(ThreadPool& pool, const SwigluFfnArgs& a) {
  const ActRows act(a);
  const int64_t intermediate = a.act.cols;
  const auto n_step_of = [&](const FfnExpert& e) {
    return (larger(8, columns_per_range(e.rows, e.w_gate.cols * Rows::Code::kBits / 8, intermediate * a.num_experts, pool.num_threads()) / 2) + 15) / 16 * 16;
  };
  for_each_range(
      pool, a.num_experts,
      [&](int i) {
        const FfnExpert& e = a.experts[i];
        return RangeGrid{.rows = e.rows, .cols = intermediate, .m_step = kMaxBlockRows, .n_step = n_step_of(e)};
      },
      [&](int index, int64_t m0, int64_t m1, int64_t n0, int64_t n1) {
        // Gate and up of a block: 96 rows x 32 columns, or 8 x 128, twice.
        float values[2 * kMaxBlockRows * kColumnBlock / 2];
        static_assert(kMaxBlockRows * kColumnBlock / 2 >= 8 * kMaxColumns / 2);
        float* const gate = values;
        float* const up = values + kMaxBlockRows * kColumnBlock / 2;
        const FfnExpert& e = a.experts[index];
        const int64_t hidden = e.w_gate.cols, n_step = n_step_of(e), m = m1 - m0, n = n1 - n0;
        const float* x[kMaxBlockRows];
        for (int64_t i = 0; i < m; ++i) x[i] = a.x.row<const float>(x_row_of(a, index, m0 + i));
        const auto act_row = [&](int64_t i) { return a.act.row<float>(act.first[index] + m0 + i) + n0; };
        if (e.w_up.data == nullptr) {
          dot_block<Rows, kInOut>(Rows(e.w_gate), x, m, 2 * n0, 2 * n, hidden, values, 2 * n_step);
          for (int64_t i = 0; i < m; ++i) {
            const float* both = values + i * 2 * n_step;
            float g[kMaxColumns], u[kMaxColumns];
            for (int64_t j = 0; j < n; ++j) {
              g[j] = e.gate_bias != nullptr ? both[2 * j] + e.gate_bias[2 * (n0 + j)] : both[2 * j];
              u[j] = e.gate_bias != nullptr ? both[2 * j + 1] + e.gate_bias[2 * (n0 + j) + 1] : both[2 * j + 1];
            }
            activate(a.form, g, u, nullptr, nullptr, act_row(i), n, a.act_block > 0);
          }
          return;
        }
        dot_block<Rows, kInOut>(Rows(e.w_gate), x, m, n0, n, hidden, gate, n_step);
        dot_block<Rows, kInOut>(Rows(e.w_up), x, m, n0, n, hidden, up, n_step);
        for (int64_t i = 0; i < m; ++i) {
          activate(a.form, gate + i * n_step, up + i * n_step, e.gate_bias != nullptr ? e.gate_bias + n0 : nullptr,
                   e.up_bias != nullptr ? e.up_bias + n0 : nullptr, act_row(i), n, a.act_block > 0);
        }
      });
  if (a.act_block > 0) quantise_act(pool, a, act);
  for_each_block<Rows, kInOut>(
      pool, a.num_experts, [&](int e) { return a.experts[e].rows; }, [&](int e) -> const Weight& { return a.experts[e].w_down; },
      [&](int e, int64_t m) { return a.act.row<const float>(act.first[e] + m); },
      [&](int e, int64_t m, int64_t n, int64_t count, const float* values) { store_down(a, e, m, n, count, values); });
}
// The dtype of the group: that of its first expert with rows.
inline DType group_dtype(const SwigluFfnArgs& a) {
  int e = 0;
  while (e + 1 < a.num_experts && a.experts[e].rows == 0) ++e;
  return a.experts[e].w_gate.dtype;
}
inline void swiglu_coded_kernel(ThreadPool& pool, const SwigluFfnArgs& a) {
  with_coded_rows(group_dtype(a), [&]<class Rows>() { swiglu_rows_kernel<Rows, false>(pool, a); });
}
inline void swiglu_in_out_kernel(ThreadPool& pool, const SwigluFfnArgs& a) {
  with_plain_rows(group_dtype(a), [&]<class Rows>() { swiglu_rows_kernel<Rows, true>(pool, a); });
}

}  // namespace
}  // namespace pointsman::ops
