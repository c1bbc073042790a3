// SPDX-License-Identifier: Apache-2.0
//
// SwiGLU feed-forward (Shazeer 2020): down( silu(gate(x)) * up(x) ). One op for a dense MLP and for one routed expert, because they
// are the same function: an expert only reads and writes chosen rows.
#pragma once

#include "ops/context.h"
#include "tensor/tensor.h"

namespace pointsman::ops {

struct SwigluFfnArgs {
  Tensor x;                           // [*, hidden] kF32 or kBF16
  const int32_t* x_rows = nullptr;    // device [rows] or null: which row of x
  Tensor w_gate, w_up;                // [intermediate, hidden]; dtypes as in MatmulArgs
  Tensor w_down;                      // [hidden, intermediate]
  Tensor act;                         // scratch [rows, intermediate] of x's dtype: silu(g) * u in fp32, rounded once when kBF16
  Tensor out;                         // [*, hidden] kF32
  const int32_t* out_rows = nullptr;  // device [rows] or null: which row of out
  bool accumulate = false;            // out = out + result
  int64_t rows = 0;

  template <class F>
  void each_address(F&& visit) {
    visit(x.data), visit(w_gate.data), visit(w_up.data), visit(w_down.data), visit(act.data), visit(out.data);
    visit(const_cast<void*&>(reinterpret_cast<const void*&>(x_rows)));
    visit(const_cast<void*&>(reinterpret_cast<const void*&>(out_rows)));
  }
};
// Zero rows are fine: nothing is read or written.
Status swiglu_ffn(OpContext& ctx, const SwigluFfnArgs& args);

}  // namespace pointsman::ops
