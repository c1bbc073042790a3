// SPDX-License-Identifier: Apache-2.0
//
// SwiGLU feed-forward (Shazeer 2020): down( silu(gate(x)) * up(x) ). One op for a dense MLP and for routed experts, because they
// are the same function: an expert only reads and writes chosen rows. Several experts go in one call: then all gates and ups are one step of
// the thread pool and all downs another, so that threads meet twice a group instead of twice an expert.
#pragma once

#include "ops/context.h"
#include "ops/panel_paths.h"
#include "ops/quant/simulate.h"
#include "tensor/block_format.h"

namespace pointsman::ops {

// The variants of the gate. Default: silu(g) * u.
//   g' = min(g, limit), u' = max(-limit, min(u, limit)), act = (u' + up_offset) * g' / (1 + exp(-alpha g'))
// gpt-oss: alpha 1.702, limit 7, up_offset 1; DeepSeek V4: limit 10. The gate has no lower clamp.
struct SwigluForm {
  float alpha = 1;
  float limit = 0;  // 0: no clamp
  float up_offset = 0;
  bool is_plain() const { return alpha == 1 && limit == 0 && up_offset == 0; }
};

// One feed-forward of a group.
struct FfnExpert {
  Weight w_gate, w_up;                // [intermediate, hidden]; dtypes as in MatmulArgs. Or w_up empty and w_gate [2 * intermediate,
                                      // hidden] with gate and up outputs in turn (gpt-oss): kF32 x and a coded or kInOut weight, or panels
  Weight w_down;                      // [hidden, intermediate]
  const float* gate_bias = nullptr;   // device [intermediate] or null; [2 * intermediate] when interleaved
  const float* up_bias = nullptr;
  const float* down_bias = nullptr;   // device [hidden] or null
  int64_t first = 0;                  // its rows are first ... first + rows - 1 of x_rows and out_rows, or of x and out themselves
  int64_t rows = 0;                   // 0: the expert is not looked at

  template <class F>
  void each_address(F&& visit) {
    for (Weight* w : {&w_gate, &w_up, &w_down}) visit(w->data), visit(const_cast<void*&>(w->scales));
    for (const float** p : {&gate_bias, &up_bias, &down_bias}) visit(const_cast<void*&>(reinterpret_cast<const void*&>(*p)));
  }
};

inline constexpr int kMaxFfnExperts = 16;

struct SwigluFfnArgs {
  Tensor x;                           // [*, hidden] kF32 or kBF16; kI8: quantised rows, with weights in panels
  const int32_t* x_rows = nullptr;    // device or null: which row of x
  SwigluForm form;
  // DeepSeek's own numerics, coded weights only: g and u are rounded to bf16; rows of act are multiplied by the weight of their row of out,
  // rounded to bf16, and brought to E4M3 codes by blocks of so many channels (quant/simulate.h) before down.
  const float* act_weights = nullptr; // device [out rows] or null
  int32_t act_block = 0;              // 0: none of it
  SimulatedScale act_scale = SimulatedScale::kPowerOfTwo;  // of the blocks of act
  Tensor act;                         // scratch [rows of all experts, intermediate] of x's dtype: silu(g) * u in fp32, rounded once when kBF16,
                                      // quantised by blocks of 32 when kI8;
                                      // the experts' rows follow one another in the order of the group
  Tensor out;                         // [*, hidden] kF32
  const int32_t* out_rows = nullptr;  // device or null: which row of out
  bool accumulate = false;            // out = out + result; then no two rows of the group may go to one row of out
  const PanelPaths* paths = nullptr;  // as in MatmulArgs
  int num_experts = 1;                // 1 for a dense MLP
  FfnExpert experts[kMaxFfnExperts];

  int64_t total_rows() const {
    int64_t n = 0;
    for (int e = 0; e < num_experts; ++e) n += experts[e].rows;
    return n;
  }
  template <class F>
  void each_address(F&& visit) {
    visit(x.data), visit(act.data), visit(out.data);
    visit(const_cast<void*&>(reinterpret_cast<const void*&>(act_weights)));
    visit(const_cast<void*&>(reinterpret_cast<const void*&>(x_rows)));
    visit(const_cast<void*&>(reinterpret_cast<const void*&>(out_rows)));
    for (int e = 0; e < num_experts; ++e) experts[e].each_address(visit);
  }
};
// Stored formats as in matmul(); gate, up and down of all experts share dtype and layout. Experts with zero rows and groups without any are
// fine: nothing of them is read or written. A row's result does not depend on the group that it is in.
Status swiglu_ffn(OpContext& ctx, const SwigluFfnArgs& args);

}  // namespace pointsman::ops
