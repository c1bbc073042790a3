// SPDX-License-Identifier: Apache-2.0
#include "ops/moe/permute.h"

#include <cstdint>

#include "ops/dispatch.h"

namespace pointsman::ops {

Status permute_index(OpContext& ctx, const PermuteIndexArgs& a) {
  if (a.tokens < 0 || a.top_k < 1 || a.num_experts < 1 || a.tokens > INT32_MAX / a.top_k) {
    return error(StatusCode::kInvalidArgument, "permute_index: {} tokens, top {} of {} experts", a.tokens, a.top_k, a.num_experts);
  }
  if (a.ranks < 1 || a.num_experts % a.ranks != 0) {
    return error(StatusCode::kInvalidArgument, "permute_index: {} experts cannot be dealt to {} ranks in equal runs", a.num_experts, a.ranks);
  }
  if (a.offsets == nullptr || (a.tokens > 0 && (a.ids == nullptr || a.slot_row == nullptr))) {
    return error(StatusCode::kInvalidArgument, "permute_index: offsets, ids and slot_row are needed");
  }
  return PM_DISPATCH(ctx, permute_index, a);
}

Status permute(OpContext& ctx, const PermuteArgs& a) {
  if (a.x.dtype != a.out.dtype || dtype_bits(a.x.dtype) % 8 != 0 || a.x.cols != a.out.cols || a.top_k < 1 || (a.x.rows > 0 && a.slot_row == nullptr)) {
    return error(StatusCode::kInvalidArgument, "permute: x [{}, {}] {}, top_k {}, out [{}, {}] {} do not fit", a.x.rows, a.x.cols, dtype_name(a.x.dtype), a.top_k,
                 a.out.rows, a.out.cols, dtype_name(a.out.dtype));
  }
  if (a.x.rows == 0) return ok_status();
  return PM_DISPATCH(ctx, permute, a);
}

}  // namespace pointsman::ops
