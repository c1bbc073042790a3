// SPDX-License-Identifier: Apache-2.0
//
// SwiGLU on packed weights: a panel of gate and one of up, silu(g) * u of 32 outputs at once, stored as the input of down is: a block of 8-bit codes,
// bf16 or fp32. Include isa/panel.h and activation/swiglu_isa.h first.
#pragma once

#include "ops/activation/swiglu.h"

namespace pointsman::ops {
namespace {

// 32 values of act from column n on, in the type that down reads.
inline void store_act(const Tensor& act, int64_t row, int64_t n, const float* values) {
  switch (act.dtype) {
    case DType::kI8: {
      const QuantRow q = quant_row(act, row);
      quantise_block(values, 32, largest_magnitude(values, 32), q.codes + n, q.scales + n / 32, q.offsets + n / 32);
      return;
    }
    case DType::kBF16: vstore(act.row<bf16>(row) + n, vload(values)), vstore(act.row<bf16>(row) + n + 16, vload(values + 16)); return;
    default: vstore(act.row<float>(row) + n, vload(values)), vstore(act.row<float>(row) + n + 16, vload(values + 16)); return;
  }
}

// Values of act as blocks of kWideQuantBlock: kept until a block is whole. `values`: [m][kWideQuantBlock], n of them, from column `first` on.
inline void store_wide_act(const Tensor& act, int64_t row, int64_t first, int64_t n, const float* values) {
  const QuantRow q = quant_row(act, row);
  const int64_t b = first / kWideQuantBlock;
  quantise_block(values, n, largest_magnitude(values, n), q.codes + first, q.scales + b, q.offsets + b);
}
template <class Dot>
inline constexpr bool kHasWideAct = requires { requires Dot::kWideAct; };

// 32 columns of act from n on, rows [row, row + m): `first` and `second` are [m][32], gates and ups, or both in turn. Where blocks of act are wide, `wide`
// [m][kWideQuantBlock] keeps what belongs to a block that is not whole yet; n_end is where the columns of this call end.
template <class Dot>
void activate_panel(const SwigluFfnArgs& a, const FfnExpert& e, int64_t row, int64_t m, int64_t n, int64_t n_end, const float* first, const float* second,
                    float* wide) {
  const bool interleaved = e.w_up.data == nullptr;
  for (int64_t i = 0; i < m; ++i) {
    const float *g = first + i * 32, *u = second + i * 32;
    alignas(64) float narrow[32], apart[64];
    float* const values = kHasWideAct<Dot> ? wide + i * kWideQuantBlock + n % kWideQuantBlock : narrow;
    if (interleaved) {
      for (int64_t j = 0; j < 32; ++j) {
        const float* both = j < 16 ? g + 2 * j : u + 2 * (j - 16);
        apart[j] = e.gate_bias != nullptr ? both[0] + e.gate_bias[2 * (n + j)] : both[0];
        apart[32 + j] = e.gate_bias != nullptr ? both[1] + e.gate_bias[2 * (n + j) + 1] : both[1];
      }
      activate(a.form, apart, apart + 32, nullptr, nullptr, values, 32);
    } else {
      activate(a.form, g, u, e.gate_bias != nullptr ? e.gate_bias + n : nullptr, e.up_bias != nullptr ? e.up_bias + n : nullptr, values, 32);
    }
    if constexpr (!kHasWideAct<Dot>) store_act(a.act, row + i, n, values);
  }
  if constexpr (kHasWideAct<Dot>) {
    const int64_t end = n + kPanelRows, begin = n / kWideQuantBlock * kWideQuantBlock;
    if (end % kWideQuantBlock != 0 && end != n_end) return;
    for (int64_t i = 0; i < m; ++i) store_wide_act(a.act, row + i, begin, end - begin, wide + i * kWideQuantBlock);
  }
}

template <class Dot>
void swiglu_panel_kernel(ThreadPool& pool, const SwigluFfnArgs& a) {
  const ActRows act(a);
  for_each_range<Ranges::kRuns>(
      pool, a.num_experts,
      [&](int i) {
        const FfnExpert& e = a.experts[i];
        if (e.rows == 0) return RangeGrid{};
        return RangeGrid{.rows = e.rows, .cols = a.act.cols, .m_step = kPanelRowBlock,
                         .n_step = panel_columns(e.rows, 2 * Panels(e.w_gate).panel_bytes, kHasWideAct<Dot> ? kWideBlocks : 1)};
      },
      [&](int index, int64_t m0, int64_t m1, int64_t n0, int64_t n1) {
        [[maybe_unused]] const typename Dot::Denormals denormals;
        alignas(64) float first[kPanelRowBlock * 32], second[kPanelRowBlock * 32];
        alignas(64) float wide[kHasWideAct<Dot> ? kPanelRowBlock * kWideQuantBlock : 1];
        const FfnExpert& e = a.experts[index];
        // Gate and up in turn: two panels of one matrix, each with sixteen gates and ups.
        const bool interleaved = e.w_up.data == nullptr;
        const Weight &w_first = e.w_gate, &w_second = interleaved ? e.w_gate : e.w_up;
        const Panels p_first(w_first), p_second(w_second);
        const int64_t m = m1 - m0;
        typename Dot::X x[kPanelRowBlock];
        for (int64_t i = 0; i < m; ++i) x[i] = x_row_as<typename Dot::X>(a.x, x_row_of(a, index, m0 + i));
        // Few rows read a stretch of gate, then one of up: memory gives 4 % more to long streams than to panels in turn.
        const int64_t together = interleaved || m > kFewPanelRows ? 1 : kPanelRowBlock / m;
        const int64_t end = n1 / kPanelRows;
        for (int64_t p = n0 / kPanelRows, count; p < end; p += count) {
          count = smaller(together, end - p);
          const int64_t from_first = interleaved ? 2 * p : p, from_second = interleaved ? 2 * p + 1 : p;
          // Ranges of a thread follow one another, from one expert into the next.
          const int64_t at_next = from_first + (interleaved ? 2 : count);
          const PanelAt next = at_next < w_first.rows / kPanelRows                                     ? p_first.at(at_next)
                               : index + 1 < a.num_experts && a.experts[index + 1].rows > 0 ? Panels(a.experts[index + 1].w_gate).at(0)
                                                                                             : PanelAt();
          const auto stretch = [&](const Weight& weight, const Panels& panels, int64_t from, float* values, const PanelAt& then) {
            for (int64_t j = 0; j < count; ++j) {
              const PanelAt& coming = j + 1 < count ? panels.at(from + j + 1) : then;
              panel_values<Dot>(weight, panels, from + j, x, m, values + j * m * 32, m0 == 0 ? coming : PanelAt(), a.paths);
            }
          };
          stretch(w_first, p_first, from_first, first, p_second.at(from_second));
          stretch(w_second, p_second, from_second, second, next);
          for (int64_t j = 0; j < count; ++j) {
            activate_panel<Dot>(a, e, act.first[index] + m0, m, (p + j) * kPanelRows, n1, first + j * m * 32, second + j * m * 32, wide);
          }
        }
      });
  for_each_panel<Dot>(
      pool, a.paths, a.num_experts, [&](int e) { return a.experts[e].rows; }, [&](int e) -> const Weight& { return a.experts[e].w_down; },
      [&](int e, int64_t m) { return x_row_as<typename Dot::X>(a.act, act.first[e] + m); },
      [&](int e, int64_t m, int64_t n, const float* values) { store_down(a, e, m, n, 32, values); });
}
inline void swiglu_panel_i8_kernel(ThreadPool& pool, const SwigluFfnArgs& a) {
  if (group_dtype(a) == DType::kF4) swiglu_panel_kernel<QuantDot<F4Panel>>(pool, a);
  else if (quant_block_of(a.x) == kWideQuantBlock || quant_block_of(a.act) == kWideQuantBlock) swiglu_panel_kernel<QuantDot<I8Panel, true>>(pool, a);
  else swiglu_panel_kernel<QuantDot<I8Panel>>(pool, a);
}
inline void swiglu_panel_bf16_kernel(ThreadPool& pool, const SwigluFfnArgs& a) {
  if (group_dtype(a) == DType::kBF16) swiglu_panel_kernel<Bf16PanelDot<Bf16Panel>>(pool, a);
  else swiglu_panel_kernel<Bf16PanelDot<E4m3Panel>>(pool, a);
}

}  // namespace
}  // namespace pointsman::ops
