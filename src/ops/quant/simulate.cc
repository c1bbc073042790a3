// SPDX-License-Identifier: Apache-2.0
#include "ops/quant/simulate.h"

#include "ops/dispatch.h"

namespace pointsman::ops {

Status simulate(OpContext& ctx, const SimulateArgs& given) {
  SimulateArgs a = given;
  if (a.num_cols == 0) a.num_cols = a.x.cols;
  const auto known = [](DType d) { return d == DType::kF32 || d == DType::kBF16; };
  if (!known(a.x.dtype) || !known(a.out.dtype) || a.out.rows != a.x.rows || a.out.cols != a.x.cols || a.num_cols < 0 || a.num_cols > a.x.cols) {
    return error(StatusCode::kInvalidArgument, "simulate: x [{}, {}] {}, out [{}, {}] {}, {} channels do not fit", a.x.rows, a.x.cols, dtype_name(a.x.dtype),
                 a.out.rows, a.out.cols, dtype_name(a.out.dtype), a.num_cols);
  }
  if (a.x.data == a.out.data && a.x.dtype != a.out.dtype) return error(StatusCode::kInvalidArgument, "simulate: in place, but of another type");
  if (a.code != SimulatedCode::kBf16 && a.block < 1) return error(StatusCode::kInvalidArgument, "simulate: blocks of {} channels", a.block);
  if (a.hadamard != 0 && (a.hadamard < 1 || a.hadamard > kMaxHadamard || (a.hadamard & (a.hadamard - 1)) != 0 || a.num_cols % a.hadamard != 0)) {
    return error(StatusCode::kInvalidArgument, "simulate: Hadamard of {} in {} channels: expected a power of two up to {} that divides them", a.hadamard,
                 a.num_cols, kMaxHadamard);
  }
  if (a.scale == SimulatedScale::kFp32 && a.code != SimulatedCode::kBf16 && a.out.dtype != DType::kF32) {
    return error(StatusCode::kInvalidArgument, "simulate: values of fp32 scales need an F32 output, not {}", dtype_name(a.out.dtype));
  }
  if (a.x.rows == 0) return ok_status();
  return PM_DISPATCH(ctx, simulate, a);
}

}  // namespace pointsman::ops
