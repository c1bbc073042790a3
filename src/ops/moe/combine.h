// SPDX-License-Identifier: Apache-2.0
//
// Permutation bookkeeping on the host, and the weighted sum of expert outputs on the device.
#pragma once

#include <cstdint>
#include <span>

#include "ops/context.h"
#include "tensor/tensor.h"

namespace pointsman::ops {

// Slots (token, k) sorted by (expert, token): a counting sort. Slot s = token * top_k + k.
// offsets[e] .. offsets[e+1] are expert e's rows; row_slot[r] is the slot of row r; its token is row_slot[r] / top_k.
// active: experts with at least one row, ascending; returns how many there are.
// REQUIRES: offsets.size() = num_experts + 1, row_slot.size() = ids.size(), active.size() >= num_experts; ids in range.
int32_t sort_slots(std::span<const int32_t> ids, std::span<int32_t> offsets, std::span<int32_t> row_slot,
                   std::span<int32_t> active);

// out[t] += sum over k = 0 .. top_k-1, in that order, of weights[t, k] * slots[t * top_k + k]; fp32. The order makes the sum the same
// whatever the order in which experts arrived.
struct CombineArgs {
  Tensor slots;                    // [tokens * top_k, hidden] kF32
  const float* weights = nullptr;  // device [tokens, top_k]; null: all 1
  int32_t top_k = 0;
  Tensor out;                      // [tokens, hidden] kF32

  template <class F>
  void each_address(F&& visit) {
    visit(slots.data), visit(const_cast<void*&>(reinterpret_cast<const void*&>(weights))), visit(out.data);
  }
};
Status combine(OpContext& ctx, const CombineArgs& args);

}  // namespace pointsman::ops
