// SPDX-License-Identifier: Apache-2.0
#include "ops/hyper/hyper_connection.h"

#include "ops/dispatch.h"

namespace pointsman::ops {
namespace {

// Streams [tokens, n * hidden] beside rows [tokens, hidden].
Status check(const char* op, const Tensor& streams, const Tensor& row, int64_t n) {
  if (n < 1 || n > kMaxStreams || streams.dtype != DType::kF32 || row.dtype != DType::kF32 || streams.rows != row.rows || streams.cols != n * row.cols) {
    return error(StatusCode::kInvalidArgument, "{}: {} streams (at most {}) in [{}, {}] {} beside [{}, {}] {} do not fit", op, n, kMaxStreams, streams.rows,
                 streams.cols, dtype_name(streams.dtype), row.rows, row.cols, dtype_name(row.dtype));
  }
  return ok_status();
}

Status check_mixes(const char* op, const Tensor& mixes, int64_t rows, int64_t cols) {
  if (mixes.rows != rows || mixes.cols != cols || mixes.dtype != DType::kF32) {
    return error(StatusCode::kInvalidArgument, "{}: mixes [{}, {}] {}, expected [{}, {}] F32", op, mixes.rows, mixes.cols, dtype_name(mixes.dtype), rows, cols);
  }
  return ok_status();
}

}  // namespace

Status hc_spread(OpContext& ctx, const HcSpreadArgs& a) {
  PM_RETURN_IF_ERROR(check("hc_spread", a.streams, a.h, a.h.cols > 0 ? a.streams.cols / a.h.cols : 0));
  if (a.h.rows == 0) return ok_status();
  return PM_DISPATCH(ctx, hc_spread, a);
}

Status hc_collapse(OpContext& ctx, const HcCollapseArgs& a) {
  PM_RETURN_IF_ERROR(check("hc_collapse", a.streams, a.out, a.n));
  PM_RETURN_IF_ERROR(check_mixes("hc_collapse", a.mixes, a.out.rows, a.head ? a.n : (2 + a.n) * a.n));
  if (a.sinkhorn_iters < 1 || !(a.eps >= 0) || !(a.rms_eps >= 0)) {
    return error(StatusCode::kInvalidArgument, "hc_collapse: {} iterations, eps {} and {}", a.sinkhorn_iters, a.eps, a.rms_eps);
  }
  if (a.out.rows == 0) return ok_status();
  return PM_DISPATCH(ctx, hc_collapse, a);
}

Status hc_expand(OpContext& ctx, const HcExpandArgs& a) {
  PM_RETURN_IF_ERROR(check("hc_expand", a.streams, a.y, a.n));
  PM_RETURN_IF_ERROR(check_mixes("hc_expand", a.mixes, a.y.rows, (2 + a.n) * a.n));
  if (a.y.rows == 0) return ok_status();
  return PM_DISPATCH(ctx, hc_expand, a);
}

}  // namespace pointsman::ops
