// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/context.h"
#include "tensor/tensor.h"

namespace pointsman::ops {

// out[t] = table[tokens[t]]: the experts of a layer whose routes follow from the token id alone (DeepSeek-V4's first layers).
struct ExpertTableArgs {
  const int32_t* table = nullptr;   // device [vocab, top_k]
  const int32_t* tokens = nullptr;  // device [rows]; REQUIRES: inside the vocabulary (the engine checks)
  int64_t rows = 0, top_k = 0;
  int32_t* out = nullptr;           // device [rows, top_k]

  template <class F>
  void each_address(F&& visit) {
    for (const int32_t** p : {&table, &tokens}) visit(const_cast<void*&>(reinterpret_cast<const void*&>(*p)));
    visit(reinterpret_cast<void*&>(out));
  }
};
Status expert_table(OpContext& ctx, const ExpertTableArgs& args);

}  // namespace pointsman::ops
