// SPDX-License-Identifier: Apache-2.0
#include "ops/quant/quantise.h"

#include "ops/dispatch.h"

namespace pointsman::ops {

Status quantise_rows(OpContext& ctx, const QuantiseRowsArgs& a) {
  if (a.x.rows != a.out.rows || a.x.cols != a.out.cols || a.x.cols % kQuantBlock != 0) {
    return error(StatusCode::kInvalidArgument, "quantise_rows: x [{}, {}] into [{}, {}]: expected equal shapes and a multiple of {} columns", a.x.rows,
                 a.x.cols, a.out.rows, a.out.cols, kQuantBlock);
  }
  if ((a.x.dtype != DType::kF32 && a.x.dtype != DType::kBF16) || a.out.dtype != DType::kI8 || a.out.row_stride < quantised_row_bytes(a.out.cols, kWideQuantBlock)) {
    return error(StatusCode::kInvalidArgument, "quantise_rows: {} into {} rows of {} bytes: expected F32 or BF16 into I8 rows of {} bytes",
                 dtype_name(a.x.dtype), dtype_name(a.out.dtype), a.out.row_stride, quantised_row_bytes(a.out.cols, kWideQuantBlock));
  }
  if (a.x.rows == 0 || a.x.cols == 0) return ok_status();
  return PM_DISPATCH(ctx, quantise_rows, a);
}

}  // namespace pointsman::ops
