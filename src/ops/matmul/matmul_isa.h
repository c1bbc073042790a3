// SPDX-License-Identifier: Apache-2.0
//
// Matmul on tiles. Include a vec_*.h, isa/tile.h and isa/weight_rows.h first.
#pragma once

#include "base/thread_pool.h"
#include "ops/matmul/matmul.h"

namespace pointsman::ops {
namespace {

inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

// 96 rows x 64 columns x 1024 are 12.6 MFLOP, some 30 us: long against handing out a range (0.1 us), short against a time slice.
inline constexpr int64_t kRowBlock = 96;
inline constexpr int64_t kColumnBlock = 64;
// Few rows: the work is reading W. 64 KiB of it per range is 2-3 us at memory speed.
inline constexpr int64_t kRangeWeightBytes = 64 * 1024;
inline constexpr int64_t kMaxColumns = 256;

inline int64_t columns_per_range(int64_t rows, int64_t bytes_per_column) {
  if (rows > 8) return kColumnBlock;
  const int64_t columns = kRangeWeightBytes / larger(1, bytes_per_column) / 8 * 8;
  return smaller(kMaxColumns, larger(8, columns));
}

// Calls store(m, n, count, values) for every row m and run of columns of x . W^T, in ranges over rows and columns. x_row(m) gives a row.
template <class Dot, class XRow, class Store>
void for_each_tile(ThreadPool& pool, int64_t rows, const Tensor& w, XRow&& x_row, Store&& store) {
  using W = typename Dot::Weight;
  const int64_t n_step = columns_per_range(rows, w.cols * static_cast<int64_t>(sizeof(W)));
  const int64_t n_blocks = (w.rows + n_step - 1) / n_step;
  const int64_t m_blocks = (rows + kRowBlock - 1) / kRowBlock;
  pool.parallel_for(n_blocks * m_blocks, 1, [&](int64_t first, int64_t last) {
    [[maybe_unused]] const typename Dot::Denormals denormals;
    float values[kTileRows * kMaxColumns];
    for (int64_t block = first; block < last; ++block) {
      // Blocks that share columns follow one another: their part of W stays in the cache.
      const int64_t n0 = block / m_blocks * n_step, n1 = smaller(w.rows, n0 + n_step);
      const int64_t m0 = block % m_blocks * kRowBlock, m1 = smaller(rows, m0 + kRowBlock);
      for (int64_t m = m0; m < m1; m += kTileRows) {
        const int count = static_cast<int>(smaller(kTileRows, m1 - m));
        const typename Dot::X* x[kTileRows];
        for (int i = 0; i < count; ++i) x[i] = x_row(m + i);
        dot_rows<Dot>(x, count, w.row<const W>(n0), w.row_stride, n1 - n0, w.cols, values, kMaxColumns, m == m0);
        for (int i = 0; i < count; ++i) store(m + i, n0, n1 - n0, values + i * kMaxColumns);
      }
    }
  });
}

// y[0..n) = values (+ bias) (+ y)
inline void store_row(float* y, const float* values, const float* bias, bool accumulate, int64_t n) {
  for (int64_t i = 0; i < n; i += 16) {
    const int64_t c = smaller(16, n - i);
    Vec v = vload_n(values + i, c);
    if (bias != nullptr) v = vadd(v, vload_n(bias + i, c));
    if (accumulate) v = vadd(vload_n(y + i, c), v);
    vstore_n(y + i, v, c);
  }
}

template <class Dot>
void matmul_kernel(ThreadPool& pool, const MatmulArgs& a) {
  for_each_tile<Dot>(
      pool, a.y.rows, a.w, [&](int64_t m) { return a.x.row<const typename Dot::X>(a.x_rows != nullptr ? a.x_rows[m] : m); },
      [&](int64_t m, int64_t n, int64_t count, const float* values) {
        store_row(a.y.row<float>(m) + n, values, a.bias != nullptr ? a.bias + n : nullptr, a.accumulate, count);
      });
}

// for_each_tile for weights in any stored format: see isa/weight_rows.h.
template <class Rows, bool kInOut, class XRow, class Store>
void for_each_block(ThreadPool& pool, int64_t rows, const Weight& w, XRow&& x_row, Store&& store) {
  const Rows stored(w);
  const int64_t n_step = (columns_per_range(rows, w.cols * Rows::Code::kBits / 8) + 15) / 16 * 16;
  const int64_t n_blocks = (w.rows + n_step - 1) / n_step;
  const int64_t m_blocks = (rows + kMaxBlockRows - 1) / kMaxBlockRows;
  pool.parallel_for(n_blocks * m_blocks, 1, [&](int64_t first, int64_t last) {
    // Eight rows or fewer go with up to kMaxColumns columns, more with kColumnBlock.
    float values[kMaxBlockRows * kColumnBlock];
    for (int64_t block = first; block < last; ++block) {
      const int64_t n0 = block / m_blocks * n_step, n1 = smaller(w.rows, n0 + n_step);
      const int64_t m0 = block % m_blocks * kMaxBlockRows, m1 = smaller(rows, m0 + kMaxBlockRows);
      const float* x[kMaxBlockRows];
      for (int64_t m = m0; m < m1; ++m) x[m - m0] = x_row(m);
      dot_block<Rows, kInOut>(stored, x, m1 - m0, n0, n1 - n0, w.cols, values, n_step);
      for (int64_t m = m0; m < m1; ++m) store(m, n0, n1 - n0, values + (m - m0) * n_step);
    }
  });
}
static_assert(kMaxBlockRows * kColumnBlock >= 8 * kMaxColumns);

template <class Rows, bool kInOut>
void matmul_rows_kernel(ThreadPool& pool, const MatmulArgs& a) {
  for_each_block<Rows, kInOut>(
      pool, a.y.rows, a.w, [&](int64_t m) { return a.x.row<const float>(a.x_rows != nullptr ? a.x_rows[m] : m); },
      [&](int64_t m, int64_t n, int64_t count, const float* values) {
        store_row(a.y.row<float>(m) + n, values, a.bias != nullptr ? a.bias + n : nullptr, a.accumulate, count);
      });
}
inline void matmul_coded_kernel(ThreadPool& pool, const MatmulArgs& a) {
  with_coded_rows(a.w.dtype, [&]<class Rows>() { matmul_rows_kernel<Rows, false>(pool, a); });
}
inline void matmul_in_out_kernel(ThreadPool& pool, const MatmulArgs& a) {
  with_plain_rows(a.w.dtype, [&]<class Rows>() { matmul_rows_kernel<Rows, true>(pool, a); });
}

}  // namespace
}  // namespace pointsman::ops
