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
        for (int64_t n = n0; n < n1; n += kPanelRows) {
          const int64_t at_first = interleaved ? n / kPanelRows * 2 : n / kPanelRows, at_second = interleaved ? at_first + 1 : at_first;
          // Ranges of a thread follow one another, from one expert into the next.
          const int64_t at_next = at_first + (interleaved ? 2 : 1);
          const PanelAt next = at_next < w_first.rows / kPanelRows                                     ? p_first.at(at_next)
                               : index + 1 < a.num_experts && a.experts[index + 1].rows > 0 ? Panels(a.experts[index + 1].w_gate).at(0)
                                                                                             : PanelAt();
          panel_values<Dot>(w_first, p_first, at_first, x, m, first, m0 == 0 ? p_second.at(at_second) : PanelAt(), a.paths);
          panel_values<Dot>(w_second, p_second, at_second, x, m, second, m0 == 0 ? next : PanelAt(), a.paths);
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
            if constexpr (!kHasWideAct<Dot>) store_act(a.act, act.first[index] + m0 + i, n, values);
          }
          if constexpr (kHasWideAct<Dot>) {
            const int64_t end = n + kPanelRows, begin = n / kWideQuantBlock * kWideQuantBlock;
            if (end % kWideQuantBlock != 0 && end != n1) continue;
            for (int64_t i = 0; i < m; ++i) store_wide_act(a.act, act.first[index] + m0 + i, begin, end - begin, wide + i * kWideQuantBlock);
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
