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

// out[t] (+)= sum over k = 0 .. top_k-1, in that order, of weights[t, k] * slots[row(t * top_k + k)]; fp32, one fused multiply-add each. The order
// makes the sum the same whatever the order in which experts arrived, or rows were permuted.
struct CombineArgs {
  Tensor slots;                      // [rows, hidden] kF32 or kBF16; without slot_row: [tokens * top_k, hidden]
  const float* weights = nullptr;    // device [tokens, top_k]; null: all 1
  const int32_t* slot_row = nullptr; // device [tokens * top_k], of permute_index(): the row of a slot, -1: none. Null: row s is slot s
  int32_t top_k = 0;
  bool accumulate = true;            // add to what out holds, after the sum over k
  Tensor out;                        // [tokens, hidden] kF32

  template <class F>
  void each_address(F&& visit) {
    visit(slots.data), visit(out.data);
    for (const float** p : {&weights}) visit(const_cast<void*&>(reinterpret_cast<const void*&>(*p)));
    visit(const_cast<void*&>(reinterpret_cast<const void*&>(slot_row)));
  }
};
Status combine(OpContext& ctx, const CombineArgs& args);

}  // namespace pointsman::ops
