// SPDX-License-Identifier: Apache-2.0
//
// Quantised rows. Include a panel_vec_*.h and matmul/matmul_isa.h first.
#pragma once

#include "base/thread_pool.h"
#include "ops/quant/quantise.h"

namespace pointsman::ops {
namespace {

// One block of 32 values.
inline void quantise_block(const Vec& a, const Vec& b, int8_t* codes, float* scale, int32_t* offset) {
  const uint32_t bits = magnitude_bits(a, b);
  constexpr uint32_t kInfinity = 0x7f800000u, kNan = 0x7fc00000u, kSmallest = (127u - 120u) << 23;
  if (bits >= kInfinity || bits < kSmallest) {
    __builtin_memset(codes, 0, 32);
    const uint32_t s = bits >= kInfinity ? kNan : 0;
    __builtin_memcpy(scale, &s, 4);
    *offset = 0;
    return;
  }
  float most;
  __builtin_memcpy(&most, &bits, 4);
  const Vec inverse = vset(127.0f / most);
  *scale = most / 127.0f;
  const int32_t sum = store_codes(codes, vmul(a, inverse)) + store_codes(codes + 16, vmul(b, inverse));
  *offset = -128 * sum;
}

// A quantised row as kernels read and write it.
struct QuantRow {
  int8_t* codes;
  float* scales;
  int32_t* offsets;
};
inline QuantRow quant_row(const Tensor& t, int64_t row) {
  auto* p = static_cast<int8_t*>(t.data) + row * t.row_stride;
  return {p, reinterpret_cast<float*>(p + t.cols), reinterpret_cast<int32_t*>(p + t.cols) + t.cols / kQuantBlock};
}

template <class X>
void quantise_row(const X* x, int64_t cols, const QuantRow& out) {
  for (int64_t b = 0; b < cols / kQuantBlock; ++b) {
    quantise_block(vload(x + 32 * b), vload(x + 32 * b + 16), out.codes + 32 * b, out.scales + b, out.offsets + b);
  }
}

inline void quantise_rows_kernel(ThreadPool& pool, const QuantiseRowsArgs& a) {
  // 16 Ki values are some 4 us.
  pool.parallel_for(a.x.rows, larger(1, 16384 / a.x.cols), [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) {
      if (a.x.dtype == DType::kF32) quantise_row(a.x.row<const float>(r), a.x.cols, quant_row(a.out, r));
      else quantise_row(a.x.row<const bf16>(r), a.x.cols, quant_row(a.out, r));
    }
  });
}

}  // namespace
}  // namespace pointsman::ops
