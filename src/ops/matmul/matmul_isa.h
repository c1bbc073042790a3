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
// Few rows: the work is reading W. 128 KiB of it per range is 5 us at memory speed.
inline constexpr int64_t kRangeWeightBytes = 128 * 1024;
inline constexpr int64_t kMaxColumns = 256;

// Fewer, down to a quarter of that, where the matrix would not occupy all threads (a router).
inline int64_t columns_per_range(int64_t rows, int64_t bytes_per_column, int64_t columns_in_all, int64_t threads) {
  if (rows > 8) return kColumnBlock;
  const auto columns_of = [&](int64_t bytes) { return smaller(kMaxColumns, larger(8, bytes / larger(1, bytes_per_column) / 8 * 8)); };
  const int64_t share = (columns_in_all + threads - 1) / threads;
  return smaller(columns_of(kRangeWeightBytes), larger(columns_of(kRangeWeightBytes / 4), (share + 15) / 16 * 16));
}

// One of the matrices of results that a step computes: rows x cols, cut into ranges of m_step x n_step.
struct RangeGrid {
  int64_t rows = 0, cols = 0, m_step = 1, n_step = 1;
  int64_t m_blocks() const { return (rows + m_step - 1) / m_step; }
  int64_t n_blocks() const { return (cols + n_step - 1) / n_step; }
};
inline constexpr int kMaxGrids = 16;

// body(g, m0, m1, n0, n1) for every range of every grid, in one parallel_for: a step over several matrices has one end to wait for.
// Ranges that share columns follow one another, so that their part of W stays in the cache. With kRuns, ranges of all rows that follow one another
// are one range to body, which must take any number of columns: for few rows the beginning of a range is 2 % of it.
enum class Ranges { kSingle, kRuns };
template <Ranges kRanges = Ranges::kSingle, class GridOf, class Body>
void for_each_range(ThreadPool& pool, int num_grids, GridOf&& grid_of, Body&& body) {
  RangeGrid grids[kMaxGrids];
  int64_t begin[kMaxGrids + 1] = {};
  for (int g = 0; g < num_grids; ++g) {
    grids[g] = grid_of(g);
    begin[g + 1] = begin[g] + grids[g].m_blocks() * grids[g].n_blocks();
  }
  pool.parallel_for(begin[num_grids], 1, [&](int64_t first, int64_t last) {
    int g = 0;
    for (int64_t range = first; range < last; ++range) {
      while (range >= begin[g + 1]) ++g;
      const RangeGrid& grid = grids[g];
      const int64_t m_blocks = grid.m_blocks(), block = range - begin[g];
      if (kRanges == Ranges::kRuns && m_blocks == 1) {
        const int64_t run = smaller(last, begin[g + 1]) - range;
        body(g, 0, grid.rows, block * grid.n_step, smaller(grid.cols, (block + run) * grid.n_step));
        range += run - 1;
        continue;
      }
      const int64_t n0 = block / m_blocks * grid.n_step, m0 = block % m_blocks * grid.m_step;
      body(g, m0, smaller(grid.rows, m0 + grid.m_step), n0, smaller(grid.cols, n0 + grid.n_step));
    }
  }, ThreadPool::Calls::kRuns);
}

// Calls store(g, m, n, count, values) for every row m and run of columns of x_g . W_g^T, g < num. w_of(g) gives a matrix, rows_of(g) the
// rows that meet it, x_row(g, m) one of them.
template <class Dot, class RowsOf, class WOf, class XRow, class Store>
void for_each_tile(ThreadPool& pool, int num, RowsOf&& rows_of, WOf&& w_of, XRow&& x_row, Store&& store) {
  using W = typename Dot::Weight;
  for_each_range(
      pool, num,
      [&](int g) {
        const Tensor& w = w_of(g);
        const int64_t rows = rows_of(g);
        return RangeGrid{.rows = rows, .cols = w.rows, .m_step = kRowBlock, .n_step = columns_per_range(rows, w.cols * static_cast<int64_t>(sizeof(W)), w.rows, pool.num_threads())};
      },
      [&](int g, int64_t m0, int64_t m1, int64_t n0, int64_t n1) {
        [[maybe_unused]] const typename Dot::Denormals denormals;
        float values[kTileRows * kMaxColumns];
        const Tensor& w = w_of(g);
        for (int64_t m = m0; m < m1; m += kTileRows) {
          const int count = static_cast<int>(smaller(kTileRows, m1 - m));
          const typename Dot::X* x[kTileRows];
          for (int i = 0; i < count; ++i) x[i] = x_row(g, m + i);
          dot_rows<Dot>(x, count, w.row<const W>(n0), w.row_stride, n1 - n0, w.cols, values, kMaxColumns, m == m0);
          for (int i = 0; i < count; ++i) store(g, m + i, n0, n1 - n0, values + i * kMaxColumns);
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

// Results of one of the products: row m, from column n on.
inline void store_product(const MatmulArgs& a, int part, int64_t m, int64_t n, int64_t count, const float* values) {
  const float* bias = a.bias_of(part);
  store_row(a.y_of(part).row<float>(m) + n, values, bias != nullptr ? bias + n : nullptr, a.accumulate, count);
}

template <class Dot>
void matmul_kernel(ThreadPool& pool, const MatmulArgs& a) {
  for_each_tile<Dot>(
      pool, 1 + a.num_more, [&](int) { return a.y.rows; }, [&](int p) -> const Tensor& { return a.w_of(p); },
      [&](int, int64_t m) { return a.x.row<const typename Dot::X>(a.x_rows != nullptr ? a.x_rows[m] : m); },
      [&](int p, int64_t m, int64_t n, int64_t count, const float* values) { store_product(a, p, m, n, count, values); });
}

// for_each_tile for weights in any stored format: see isa/weight_rows.h.
template <class Rows, bool kInOut, class RowsOf, class WOf, class XRow, class Store>
void for_each_block(ThreadPool& pool, int num, RowsOf&& rows_of, WOf&& w_of, XRow&& x_row, Store&& store) {
  const auto n_step_of = [&](int64_t rows, const Weight& w) {
    return (columns_per_range(rows, w.cols * Rows::Code::kBits / 8, w.rows, pool.num_threads()) + 15) / 16 * 16;
  };
  for_each_range(
      pool, num,
      [&](int g) {
        const Weight& w = w_of(g);
        const int64_t rows = rows_of(g);
        return RangeGrid{.rows = rows, .cols = w.rows, .m_step = kMaxBlockRows, .n_step = n_step_of(rows, w)};
      },
      [&](int g, int64_t m0, int64_t m1, int64_t n0, int64_t n1) {
        // Eight rows or fewer go with up to kMaxColumns columns, more with kColumnBlock.
        float values[kMaxBlockRows * kColumnBlock];
        const Weight& w = w_of(g);
        const int64_t n_step = n_step_of(rows_of(g), w);
        const float* x[kMaxBlockRows];
        for (int64_t m = m0; m < m1; ++m) x[m - m0] = x_row(g, m);
        dot_block<Rows, kInOut>(Rows(w), x, m1 - m0, n0, n1 - n0, w.cols, values, n_step);
        for (int64_t m = m0; m < m1; ++m) store(g, m, n0, n1 - n0, values + (m - m0) * n_step);
      });
}
static_assert(kMaxBlockRows * kColumnBlock >= 8 * kMaxColumns);

template <class Rows, bool kInOut>
void matmul_rows_kernel(ThreadPool& pool, const MatmulArgs& a) {
  for_each_block<Rows, kInOut>(
      pool, 1 + a.num_more, [&](int) { return a.y.rows; }, [&](int p) -> const Weight& { return a.w_of(p); },
      [&](int, int64_t m) { return a.x.row<const float>(a.x_rows != nullptr ? a.x_rows[m] : m); },
      [&](int p, int64_t m, int64_t n, int64_t count, const float* values) { store_product(a, p, m, n, count, values); });
}
inline void matmul_coded_kernel(ThreadPool& pool, const MatmulArgs& a) {
  with_coded_rows(a.w.dtype, [&]<class Rows>() { matmul_rows_kernel<Rows, false>(pool, a); });
}
inline void matmul_in_out_kernel(ThreadPool& pool, const MatmulArgs& a) {
  with_plain_rows(a.w.dtype, [&]<class Rows>() { matmul_rows_kernel<Rows, true>(pool, a); });
}

}  // namespace
}  // namespace pointsman::ops
