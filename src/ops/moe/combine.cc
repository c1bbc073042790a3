// SPDX-License-Identifier: Apache-2.0
#include "ops/moe/combine.h"

#include "base/check.h"
#include "ops/dispatch.h"

namespace pointsman::ops {

int32_t sort_slots(std::span<const int32_t> ids, std::span<int32_t> offsets, std::span<int32_t> row_slot, std::span<int32_t> active) {
  const size_t num_experts = offsets.size() - 1;
  PM_CHECK(row_slot.size() == ids.size() && active.size() >= num_experts);
  // Counts, then where each expert begins; offsets[e] serves as the cursor of expert e and ends up where e + 1 begins.
  for (int32_t& o : offsets) o = 0;
  for (const int32_t id : ids) {
    PM_CHECK(id >= 0 && static_cast<size_t>(id) < num_experts);
    ++offsets[static_cast<size_t>(id)];
  }
  int32_t next = 0, num_active = 0;
  for (size_t e = 0; e < num_experts; ++e) {
    const int32_t count = offsets[e];
    if (count > 0) active[static_cast<size_t>(num_active++)] = static_cast<int32_t>(e);
    offsets[e] = next;
    next += count;
  }
  for (size_t s = 0; s < ids.size(); ++s) row_slot[static_cast<size_t>(offsets[static_cast<size_t>(ids[s])]++)] = static_cast<int32_t>(s);
  for (size_t e = num_experts; e > 0; --e) offsets[e] = offsets[e - 1];
  offsets[0] = 0;
  return num_active;
}

Status combine(OpContext& ctx, const CombineArgs& a) {
  const bool sized = a.slot_row != nullptr || a.slots.rows == a.out.rows * a.top_k;
  if (a.top_k < 1 || !sized || a.slots.cols != a.out.cols || (a.slots.dtype != DType::kF32 && a.slots.dtype != DType::kBF16) || a.out.dtype != DType::kF32) {
    return error(StatusCode::kInvalidArgument, "combine: slots [{}, {}] {}, top_k {}, out [{}, {}] {} do not fit", a.slots.rows, a.slots.cols,
                 dtype_name(a.slots.dtype), a.top_k, a.out.rows, a.out.cols, dtype_name(a.out.dtype));
  }
  if (a.out.rows == 0) return ok_status();
  return PM_DISPATCH(ctx, combine, a);
}

}  // namespace pointsman::ops
