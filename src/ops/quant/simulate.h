// SPDX-License-Identifier: Apache-2.0
//
// What DeepSeek's own code does to activations and cache entries before a quantised product: every value is rounded to bf16, then, block by
// block, to the codes of a small format with one scale, and widened again.
//
//   kPowerOfTwo (V3.1's ue8m0, V4): scale = 2^ceil(log2(amax / largest)), so that nothing saturates (the OCP recipe takes the floor, and
//     other codes come out). The values are exact in bf16 and fp32.
//   kFp32 (V3, R1): scale = amax / largest in fp32; value = code * scale, one fp32 rounding, not exact in bf16.
//   E4M3: largest 448, amax at least 1e-4;  E2M1: largest 6, amax at least 6 * 2^-126;  ties to even in both.
// With `hadamard` > 0 each run of so many channels is first multiplied by the Hadamard matrix in Sylvester's order times hadamard^-1/2, and
// rounded to bf16.
#pragma once

#include "ops/context.h"
#include "tensor/tensor.h"

namespace pointsman::ops {

enum class SimulatedCode : int32_t { kBf16, kE4M3, kE2M1 };  // kBf16: the first rounding only

enum class SimulatedScale : int32_t { kPowerOfTwo, kFp32 };

struct SimulateArgs {
  Tensor x;              // [rows, cols] kF32 or kBF16
  Tensor out;            // the same shape, of either type; may be x when that has the same type
  SimulatedCode code = SimulatedCode::kBf16;
  SimulatedScale scale = SimulatedScale::kPowerOfTwo;
  int64_t block = 0;     // channels per scale; partial at the end. Counted from channel 0
  int64_t num_cols = 0;  // the first so many channels of each row; the others are copied. 0: all
  int64_t hadamard = 0;  // a power of two that divides num_cols, at most kMaxHadamard; 0: none

  template <class F>
  void each_address(F&& visit) {
    visit(x.data), visit(out.data);
  }
};
inline constexpr int64_t kMaxHadamard = 512;
Status simulate(OpContext& ctx, const SimulateArgs& args);

}  // namespace pointsman::ops
