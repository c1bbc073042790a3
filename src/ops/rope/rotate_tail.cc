// SPDX-License-Identifier: Apache-2.0
#include "ops/rope/rotate_tail.h"

#include "ops/attention/attention.h"
#include "ops/dispatch.h"

namespace pointsman::ops {

Status rotate_tail(OpContext& ctx, const RotateTailArgs& a) {
  const bool shapes = a.heads >= 1 && a.head_dim >= 1 && a.head_dim <= kMaxHeadDim && a.rotary_dim >= 0 && a.rotary_dim <= a.head_dim && a.rotary_dim % 2 == 0 &&
                      a.x.cols == a.heads * a.head_dim && a.out.cols == a.x.cols && a.out.rows == a.x.rows;
  if (!shapes || a.x.dtype != DType::kF32 || (a.out.dtype != DType::kF32 && a.out.dtype != DType::kBF16) ||
      (a.norm == HeadNorm::kWeighted) != (a.weight != nullptr)) {
    return error(StatusCode::kInvalidArgument, "rotate_tail: x [{}, {}] {}, out [{}, {}] {}, {} heads of {}, {} channels do not fit", a.x.rows, a.x.cols,
                 dtype_name(a.x.dtype), a.out.rows, a.out.cols, dtype_name(a.out.dtype), a.heads, a.head_dim, a.rotary_dim);
  }
  if (a.x.rows == 0) return ok_status();
  return PM_DISPATCH(ctx, rotate_tail, a);
}

}  // namespace pointsman::ops
