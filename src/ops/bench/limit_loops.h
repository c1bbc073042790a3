// SPDX-License-Identifier: Apache-2.0
//
// Internal: the measuring loops of one instruction set. Each returns something that depends on all it did, so that nothing is left out.
#pragma once

#include <cstdint>

namespace pointsman::ops {

struct LimitLoops {
  float (*read)(const float* p, int64_t n);  // sum of n floats, n a multiple of 256
  float (*fma)(int64_t steps);               // kFmaChains multiply-adds of `lanes` lanes per step
  float (*bf16)(int64_t steps);              // as many vdpbf16ps, or null
  float (*int8)(int64_t steps);              // as many vpdpbusd, or null
  int lanes;
  void (*copy)(const float* from, float* to, int64_t n);  // n a multiple of 256, both at lines; past the caches where the set can
};
// Chains that do not wait for one another: latency 4 x 2 per cycle, rounded up to what the registers hold.
inline constexpr int kFmaChains = 12;

LimitLoops limit_loops_scalar();
LimitLoops limit_loops_avx2();
LimitLoops limit_loops_avx512();

}  // namespace pointsman::ops
