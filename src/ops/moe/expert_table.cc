// SPDX-License-Identifier: Apache-2.0
#include "ops/moe/expert_table.h"

#include "ops/dispatch.h"

namespace pointsman::ops {

Status expert_table(OpContext& ctx, const ExpertTableArgs& a) {
  if (a.rows < 0 || a.top_k < 1 || a.table == nullptr || a.out == nullptr) {
    return error(StatusCode::kInvalidArgument, "expert_table: {} rows of {} experts", a.rows, a.top_k);
  }
  if (a.rows == 0) return ok_status();
  return PM_DISPATCH(ctx, expert_table, a);
}

}  // namespace pointsman::ops
