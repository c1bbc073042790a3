// SPDX-License-Identifier: Apache-2.0
//
// The dot-product tile under every matmul, attention score and expert: MR rows of x against NR rows of W, each pair one sum in the
// order of ops/context.h. W stays row-major as in the checkpoint: both operands are read along K, so nothing is repacked, and a row's
// result cannot depend on the rows beside it. Include a vec_*.h first.
#pragma once

#include "tensor/tensor.h"

namespace pointsman::ops {
namespace {

// fp32 kernels leave denormals alone.
struct KeepDenormals {
  KeepDenormals() {}
};

// How x and W elements meet: fp32 lanes, or bf16 pairs.
template <class W>
struct F32Dot {
  using Denormals = KeepDenormals;
  using X = float;
  using Weight = W;
  static constexpr int64_t kStep = 16;
  static Vec load_x(const float* p) { return vload(p); }
  static Vec load_x_n(const float* p, int64_t n) { return vload_n(p, n); }
  static constexpr int64_t kUnit = 1;  // elements of one step of one lane: kUnit * sizeof(Weight) is 32 bits where keys lie in lanes
  static Vec broadcast(const float* p) { return vset(*p); }
  static Vec load_w(const W* p) { return vload(p); }
  static Vec load_w_n(const W* p, int64_t n) { return vload_n(p, n); }
  static Vec step(Vec acc, const Vec& x, const Vec& w) { return vfma(x, w, acc); }
};
struct Bf16Dot {
  using Denormals = FlushDenormals;
  using X = bf16;
  using Weight = bf16;
  static constexpr int64_t kStep = 32;
  static Pairs load_x(const bf16* p) { return pload(p); }
  static Pairs load_x_n(const bf16* p, int64_t n) { return pload_n(p, n); }
  static constexpr int64_t kUnit = 2;
  static Pairs broadcast(const bf16* p) { return pset(p); }
  static Pairs load_w(const bf16* p) { return pload(p); }
  static Pairs load_w_n(const bf16* p, int64_t n) { return pload_n(p, n); }
  static Vec step(Vec acc, const Pairs& x, const Pairs& w) { return pdot(acc, x, w); }
};

// out[m * ldo + n] = x[m] . w[n] for m < MR, n < NR. `w` rows are `w_stride` elements apart.
// kFromMemory: nobody has read these rows of W yet. Then the rows of the next tile are asked for along the way: with much arithmetic per
// line the processor's own prefetcher does not run far enough ahead (4 to 16 rows: 15 to 25 % faster). With one or two rows of x and whole lines
// per step it does, and asking costs 5 %.
template <class Dot, int MR, int NR, bool kFromMemory>
[[gnu::always_inline]] inline void dot_tile(const typename Dot::X* const* x, const typename Dot::Weight* w, int64_t w_stride, int64_t k, float* out,
                                            int64_t ldo) {
  Vec acc[MR][NR];
  for (int m = 0; m < MR; ++m) {
    for (int n = 0; n < NR; ++n) acc[m][n] = vzero();
  }
  int64_t i = 0;
  if constexpr (MR == 1) {
    // One row of x: W is read as it lies, row after row, which is what memory likes best. The rows' sums are independent chains, and the
    // processor looks far enough ahead to run several at once.
    for (int n = 0; n < NR; ++n) {
      for (i = 0; i + Dot::kStep <= k; i += Dot::kStep) acc[0][n] = Dot::step(acc[0][n], Dot::load_x(x[0] + i), Dot::load_w(w + n * w_stride + i));
    }
  }
  for (; i + Dot::kStep <= k; i += Dot::kStep) {
    decltype(Dot::load_w(w)) wv[NR];
    for (int n = 0; n < NR; ++n) {
      wv[n] = Dot::load_w(w + n * w_stride + i);
      if constexpr (kFromMemory && (MR > 2 || Dot::kStep * sizeof(typename Dot::Weight) < 64)) __builtin_prefetch(w + (n + NR) * w_stride + i);
    }
    for (int m = 0; m < MR; ++m) {
      const auto xv = Dot::load_x(x[m] + i);
      for (int n = 0; n < NR; ++n) acc[m][n] = Dot::step(acc[m][n], xv, wv[n]);
    }
  }
  if (i < k) {
    decltype(Dot::load_w(w)) wv[NR];
    for (int n = 0; n < NR; ++n) wv[n] = Dot::load_w_n(w + n * w_stride + i, k - i);
    for (int m = 0; m < MR; ++m) {
      const auto xv = Dot::load_x_n(x[m] + i, k - i);
      for (int n = 0; n < NR; ++n) acc[m][n] = Dot::step(acc[m][n], xv, wv[n]);
    }
  }
  for (int m = 0; m < MR; ++m) {
    if constexpr (NR % 4 == 0) {
      for (int n = 0; n < NR; n += 4) vsum4(acc[m][n], acc[m][n + 1], acc[m][n + 2], acc[m][n + 3], out + m * ldo + n);
    } else {
      for (int n = 0; n < NR; ++n) out[m * ldo + n] = vsum(acc[m][n]);
    }
  }
}

// Rows of x per tile: 6 x 4 sums, 4 rows of W and one of x fill 29 of 32 registers on AVX-512.
inline constexpr int kTileRows = 6;

// The same for any m <= kTileRows and any n: the widest tiles first.
template <class Dot, int MR, bool kFromMemory>
inline void dot_columns(const typename Dot::X* const* x, const typename Dot::Weight* w, int64_t w_stride, int64_t n, int64_t k, float* out, int64_t ldo) {
  int64_t j = 0;
  // One or two rows need more columns at once: a sum is a chain of dependent adds, and eight chains hide its latency.
  if constexpr (MR <= 2) {
    for (; j + 8 <= n; j += 8) dot_tile<Dot, MR, 8, kFromMemory>(x, w + j * w_stride, w_stride, k, out + j, ldo);
  }
  for (; j + 4 <= n; j += 4) dot_tile<Dot, MR, 4, kFromMemory>(x, w + j * w_stride, w_stride, k, out + j, ldo);
  for (; j < n; ++j) dot_tile<Dot, MR, 1, kFromMemory>(x, w + j * w_stride, w_stride, k, out + j, ldo);
}

template <class Dot, bool kFromMemory>
void dot_rows_of(const typename Dot::X* const* x, int m, const typename Dot::Weight* w, int64_t w_stride, int64_t n, int64_t k, float* out, int64_t ldo) {
  switch (m) {
    case 1: return dot_columns<Dot, 1, kFromMemory>(x, w, w_stride, n, k, out, ldo);
    case 2: return dot_columns<Dot, 2, kFromMemory>(x, w, w_stride, n, k, out, ldo);
    case 3: return dot_columns<Dot, 3, kFromMemory>(x, w, w_stride, n, k, out, ldo);
    case 4: return dot_columns<Dot, 4, kFromMemory>(x, w, w_stride, n, k, out, ldo);
    case 5: return dot_columns<Dot, 5, kFromMemory>(x, w, w_stride, n, k, out, ldo);
    case 6: return dot_columns<Dot, 6, kFromMemory>(x, w, w_stride, n, k, out, ldo);
  }
}

template <class Dot>
void dot_rows(const typename Dot::X* const* x, int m, const typename Dot::Weight* w, int64_t w_stride, int64_t n, int64_t k, float* out, int64_t ldo,
              bool from_memory) {
  if (from_memory) return dot_rows_of<Dot, true>(x, m, w, w_stride, n, k, out, ldo);
  dot_rows_of<Dot, false>(x, m, w, w_stride, n, k, out, ldo);
}

}  // namespace
}  // namespace pointsman::ops
