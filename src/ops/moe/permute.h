// SPDX-License-Identifier: Apache-2.0
//
// Rows by expert and back (moe_math.md section 2 of the design notes). The engine's own matmul gathers its rows and needs no copy; these
// operators are for devices whose grouped matmul wants contiguous rows, and for expert parallelism, where rows travel.
//
// Slot s = token * top_k + k. Rows are sorted by (expert, token, k): a counting sort, the same for any number of threads.
#pragma once

#include "ops/context.h"
#include "tensor/tensor.h"

namespace pointsman::ops {

// Where every slot's row goes. A slot whose id is outside [0, num_experts) is dropped: it has no row, and combine() adds nothing for it.
// Experts are dealt to ranks in equal runs: rank r owns [r, r + 1) * num_experts / ranks. So the rows of one destination are contiguous, and
// within it those of one expert.
struct PermuteIndexArgs {
  const int32_t* ids = nullptr;     // device [tokens, top_k]
  const int32_t* counts = nullptr;  // device [num_experts], as route() counts them, or null; REQUIRES: they are those of ids
  int64_t tokens = 0;
  int32_t top_k = 0, num_experts = 0;
  int32_t ranks = 1;
  int32_t* offsets = nullptr;       // device [num_experts + 1]: expert e has the rows [offsets[e], offsets[e + 1])
  int32_t* rank_offsets = nullptr;  // device [ranks + 1] or null
  int32_t* slot_row = nullptr;      // device [tokens * top_k]: the row of a slot, -1 when it was dropped
  int32_t* row_slot = nullptr;      // device [tokens * top_k] or null: the slot of a row; past the last row nothing is written

  template <class F>
  void each_address(F&& visit) {
    for (const int32_t** p : {&ids, &counts}) visit(const_cast<void*&>(reinterpret_cast<const void*&>(*p)));
    for (int32_t** p : {&offsets, &rank_offsets, &slot_row, &row_slot}) visit(reinterpret_cast<void*&>(*p));
  }
};
// kInvalidArgument: sizes, experts not divisible by ranks, more than 2^31 - 1 slots. Allocates nothing.
Status permute_index(OpContext& ctx, const PermuteIndexArgs& args);

// out[slot_row[t * top_k + k]] = x[t]: every row of x is read once and each of its copies written once, past the caches when out is larger than a
// second-level cache. Rows of out that no slot names are left as they are.
struct PermuteArgs {
  Tensor x;                          // [tokens, hidden] of any dtype of whole bytes
  const int32_t* slot_row = nullptr; // device [tokens * top_k], values in [-1, out.rows)
  int32_t top_k = 0;
  Tensor out;                        // [rows, hidden] of x's dtype

  template <class F>
  void each_address(F&& visit) {
    visit(x.data), visit(const_cast<void*&>(reinterpret_cast<const void*&>(slot_row))), visit(out.data);
  }
};
Status permute(OpContext& ctx, const PermuteArgs& args);

}  // namespace pointsman::ops
