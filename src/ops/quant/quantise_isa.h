// SPDX-License-Identifier: Apache-2.0
//
// Quantised rows. Include a panel_vec_*.h and matmul/matmul_isa.h first.
#pragma once

#include "base/thread_pool.h"
#include "ops/quant/quantise.h"

namespace pointsman::ops {
namespace {

// One block of n values, a multiple of 32, of which the largest magnitude has these bits.
template <class X>
inline void quantise_block(const X* x, int64_t n, uint32_t bits, int8_t* codes, float* scale, int32_t* offset) {
  constexpr uint32_t kInfinity = 0x7f800000u, kNan = 0x7fc00000u, kSmallest = (127u - 120u) << 23;
  if (bits >= kInfinity || bits < kSmallest) {
    __builtin_memset(codes, 0, static_cast<size_t>(n));
    const uint32_t s = bits >= kInfinity ? kNan : 0;
    __builtin_memcpy(scale, &s, 4);
    *offset = 0;
    return;
  }
  float most;
  __builtin_memcpy(&most, &bits, 4);
  const Vec inverse = vset(127.0f / most);
  *scale = most / 127.0f;
  int32_t sum = 0;
  for (int64_t i = 0; i < n; i += 16) sum += store_codes(codes + i, vmul(vload(x + i), inverse));
  *offset = -128 * sum;
}
template <class X>
inline uint32_t largest_magnitude(const X* x, int64_t n) {
  uint32_t bits = 0;
  for (int64_t i = 0; i < n; i += 32) {
    const uint32_t some = magnitude_bits(vload(x + i), vload(x + i + 16));
    bits = some > bits ? some : bits;
  }
  return bits;
}

// A quantised row as kernels read and write it.
struct QuantRow {
  int8_t* codes;
  float* scales;
  int32_t* offsets;
};
inline QuantRow quant_row(const Tensor& t, int64_t row) {
  auto* p = static_cast<int8_t*>(t.data) + row * t.row_stride;
  const int64_t block = quant_block_of(t);
  return {p, reinterpret_cast<float*>(p + t.cols), reinterpret_cast<int32_t*>(p + t.cols) + (t.cols + block - 1) / block};
}

inline constexpr int64_t kWideBlocks = kWideQuantBlock / kQuantBlock;

template <class X>
void quantise_row(const X* x, int64_t cols, int64_t block, const QuantRow& out) {
  for (int64_t b = 0, at = 0; at < cols; ++b, at += block) {
    const int64_t n = smaller(block, cols - at);
    quantise_block(x + at, n, largest_magnitude(x + at, n), out.codes + at, out.scales + b, out.offsets + b);
  }
}

inline void quantise_rows_kernel(ThreadPool& pool, const QuantiseRowsArgs& a) {
  // 16 Ki values are some 4 us.
  pool.parallel_for(a.x.rows, larger(1, 16384 / a.x.cols), [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) {
      if (a.x.dtype == DType::kF32) quantise_row(a.x.row<const float>(r), a.x.cols, quant_block_of(a.out), quant_row(a.out, r));
      else quantise_row(a.x.row<const bf16>(r), a.x.cols, quant_block_of(a.out), quant_row(a.out, r));
    }
  });
}

}  // namespace
}  // namespace pointsman::ops
