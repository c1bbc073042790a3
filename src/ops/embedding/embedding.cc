// SPDX-License-Identifier: Apache-2.0
#include "ops/embedding/embedding.h"

#include "ops/dispatch.h"

namespace pointsman::ops {

Status embedding(OpContext& ctx, const EmbeddingArgs& a) {
  const bool known = a.table.dtype == DType::kBF16 || a.table.dtype == DType::kF16 || a.table.dtype == DType::kF32;
  if (!known || a.out.dtype != DType::kF32 || a.out.cols != a.table.cols) {
    return error(StatusCode::kInvalidArgument, "embedding: table [{}, {}] {}, out [{}, {}] {} do not fit", a.table.rows, a.table.cols,
                 dtype_name(a.table.dtype), a.out.rows, a.out.cols, dtype_name(a.out.dtype));
  }
  if (a.out.rows == 0) return ok_status();
  return PM_DISPATCH(ctx, embedding, a);
}

}  // namespace pointsman::ops
