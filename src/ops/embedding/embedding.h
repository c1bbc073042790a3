// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/context.h"
#include "tensor/tensor.h"

namespace pointsman::ops {

// out[t] = table[ids[t]] widened to fp32 (exact).
struct EmbeddingArgs {
  Tensor table;                  // [vocab, hidden] kF32, kBF16 or kF16
  const int32_t* ids = nullptr;  // device [tokens]; REQUIRES: 0 <= id < vocab (the engine checks)
  Tensor out;                    // [tokens, hidden] kF32

  template <class F>
  void each_address(F&& visit) {
    visit(table.data), visit(const_cast<void*&>(reinterpret_cast<const void*&>(ids))), visit(out.data);
  }
};
Status embedding(OpContext& ctx, const EmbeddingArgs& args);

}  // namespace pointsman::ops
