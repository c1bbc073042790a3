// SPDX-License-Identifier: Apache-2.0
//
// Weights in any stored format as rows of fp32 lanes, and dot products on them in the order of ops/context.h. A decoded element is
// code * scale, rounded once to fp32: the value that a checkpoint dequantised to fp32 would hold, so that both give the same bits.
//
// Few rows of x (decode): the weight is decoded in registers, element by element as it is used (dot_tile_rows).
// Many (prefill): four rows of W are decoded for a stretch of K into a buffer, once for up to 96 rows of x; the sixteen partial sums of
// every pair wait in memory between stretches, so the order of each sum is the same (dot_decoded). Nothing larger is ever expanded.
//
// kInOut weights (transposed) are summed column-wise: sixteen output columns at once, one vector of them per lane of the contract.
// Include a vec_*.h and isa/tile.h first.
#pragma once

#include "tensor/block_format.h"

namespace pointsman::ops {
namespace {

inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

inline float load_scale(const void* scales, DType dtype, int64_t index) {
  const auto* bytes = static_cast<const uint8_t*>(scales);
  uint32_t bits;
  if (dtype == DType::kF8E8M0) {
    const uint32_t code = bytes[index];
    bits = code == 0 ? 0x00400000u : code == 255 ? 0x7fc00000u : code << 23;
  } else if (dtype == DType::kBF16) {
    uint16_t half;
    __builtin_memcpy(&half, bytes + 2 * index, 2);
    bits = uint32_t{half} << 16;
  } else {
    __builtin_memcpy(&bits, bytes + 4 * index, 4);
  }
  float f;
  __builtin_memcpy(&f, &bits, 4);
  return f;
}

// Sixteen elements of a stored row, from element `i` (a multiple of 16) on; load_n: the first n, zeros after.
template <class T>
struct PlainCode {
  static constexpr int kBits = 8 * sizeof(T);
  static Vec load(const uint8_t* row, int64_t i) { return vload(reinterpret_cast<const T*>(row) + i); }
  static Vec load_n(const uint8_t* row, int64_t i, int64_t n) { return vload_n(reinterpret_cast<const T*>(row) + i, n); }
};
template <Vec (*kLoad)(const uint8_t*)>
struct ByteCode {
  static constexpr int kBits = 8;
  static Vec load(const uint8_t* row, int64_t i) { return kLoad(row + i); }
  static Vec load_n(const uint8_t* row, int64_t i, int64_t n) {
    uint8_t t[16] = {};
    __builtin_memcpy(t, row + i, static_cast<size_t>(least(n, 16)));
    return kLoad(t);
  }
};
struct NibbleCode {
  static constexpr int kBits = 4;
  static Vec load(const uint8_t* row, int64_t i) { return vload_e2m1(row + i / 2); }
  static Vec load_n(const uint8_t* row, int64_t i, int64_t n) {
    const int64_t count = least(n, 16);
    uint8_t t[8] = {};
    __builtin_memcpy(t, row + i / 2, static_cast<size_t>((count + 1) / 2));
    if (count % 2 != 0) t[count / 2] &= 15;
    return vload_e2m1(t);
  }
};
using E4m3Code = ByteCode<vload_e4m3>;
using E5m2Code = ByteCode<vload_e5m2>;
using I8Code = ByteCode<vload_i8>;

// The rows of a stored matrix: of W [out, in], or of its transpose when the layout is kInOut (then a row is one input).
template <class Code_>
struct StoredRows {
  using Code = Code_;
  explicit StoredRows(const Weight& w)
      : data(static_cast<const uint8_t*>(w.data)), row_bytes(w.row_stride * Code::kBits / 8), scales(w.scales), scale_dtype(w.format.scale_dtype) {
    if (!w.format) return;
    block_rows = w.format.block_rows;
    block_cols = w.format.block_cols;
    row_step = w.format.transposed ? 1 : (w.cols + block_cols - 1) / block_cols;
    col_step = w.format.transposed ? ((w.grid_of_rows > 0 ? w.grid_of_rows : w.rows) + block_rows - 1) / block_rows : 1;
    first = w.first_row;
  }
  const uint8_t* row(int64_t r) const { return data + r * row_bytes; }
  float scale(int64_t r, int64_t col_block) const {
    return load_scale(scales, scale_dtype, (first + r) / block_rows * row_step + col_block * col_step);
  }
  bool scaled() const { return block_rows > 0; }

  int64_t first = 0;  // of row 0, in the matrix that the grid belongs to
  const uint8_t* data;
  int64_t row_bytes;
  const void* scales;
  DType scale_dtype;
  int64_t block_rows = 0, block_cols = 0, row_step = 0, col_step = 0;
};

// Elements [from, to) of row r, decoded to fp32. REQUIRES: `from` is a multiple of 16; out has room for a multiple of 16 (zeros at the end).
template <class Rows>
void decode_row(const Rows& w, int64_t r, int64_t from, int64_t to, float* out) {
  using Code = typename Rows::Code;
  const uint8_t* row = w.row(r);
  const int64_t width = w.scaled() ? w.block_cols : to;
  for (int64_t i = from; i < to;) {
    const int64_t block = i / width, end = least(to, (block + 1) * width);
    const Vec s = w.scaled() ? vset(w.scale(r, block)) : vset(1);
    for (; i + 16 <= end; i += 16) vstore(out + (i - from), w.scaled() ? vmul(Code::load(row, i), s) : Code::load(row, i));
    if (i < end) {
      // Only at the end of a row: a block is a multiple of 16 wide, or as wide as the row.
      const Vec v = Code::load_n(row, i, end - i);
      vstore_n(out + (i - from), w.scaled() ? vmul(v, s) : v, 16);
      i = end;
    }
  }
}

// out[m * ldo + n] = x[m] . row (n0 + n), decoded in registers.
template <class Rows, int MR, int NR>
void dot_tile_rows(const Rows& w, const float* const* x, int64_t n0, int64_t k, float* out, int64_t ldo) {
  using Code = typename Rows::Code;
  Vec acc[MR][NR];
  const uint8_t* row[NR];
  for (int n = 0; n < NR; ++n) {
    row[n] = w.row(n0 + n);
    for (int m = 0; m < MR; ++m) acc[m][n] = vzero();
  }
  const int64_t width = w.scaled() ? w.block_cols : k;
  int64_t i = 0;
  for (int64_t block = 0; i < k; ++block) {
    const int64_t end = least(k, (block + 1) * width);
    Vec s[NR];
    for (int n = 0; n < NR; ++n) s[n] = w.scaled() ? vset(w.scale(n0 + n, block)) : vset(1);
    for (; i + 16 <= end; i += 16) {
      Vec wv[NR];
      for (int n = 0; n < NR; ++n) wv[n] = w.scaled() ? vmul(Code::load(row[n], i), s[n]) : Code::load(row[n], i);
      for (int m = 0; m < MR; ++m) {
        const Vec xv = vload(x[m] + i);
        for (int n = 0; n < NR; ++n) acc[m][n] = vfma(xv, wv[n], acc[m][n]);
      }
    }
    if (i < end) {
      for (int n = 0; n < NR; ++n) {
        Vec wv = Code::load_n(row[n], i, end - i);
        if (w.scaled()) wv = vmul(wv, s[n]);
        for (int m = 0; m < MR; ++m) acc[m][n] = vfma(vload_n(x[m] + i, end - i), wv, acc[m][n]);
      }
      i = end;
    }
  }
  for (int m = 0; m < MR; ++m) {
    for (int n = 0; n < NR; ++n) out[m * ldo + n] = vsum(acc[m][n]);
  }
}

// The same for inputs as stored rows: out[j] for the columns n0 <= j < n0 + 16 (count of them), one row of x.
template <class Rows>
void dot_columns_in_out(const Rows& w, const float* x, int64_t n0, int64_t count, int64_t k, float* out) {
  using Code = typename Rows::Code;
  Vec lane[16];
  for (Vec& v : lane) v = vzero();
  for (int64_t i = 0; i < k;) {
    const int64_t end = w.scaled() ? least(k, ((w.first + i) / w.block_rows + 1) * w.block_rows - w.first) : k;
    // A scale belongs to a block of columns, and sixteen columns lie in one.
    const Vec s = w.scaled() ? vset(w.scale(i, n0 / w.block_cols)) : vset(1);
    for (; i < end; ++i) {
      const uint8_t* row = w.row(i);
      Vec wv = count >= 16 ? Code::load(row, n0) : Code::load_n(row, n0, count);
      if (w.scaled()) wv = vmul(wv, s);
      lane[i % 16] = vfma(vset(x[i]), wv, lane[i % 16]);
    }
  }
  for (int width = 8; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) lane[i] = vadd(lane[i], lane[i + width]);
  }
  vstore_n(out, lane[0], count);
}

inline constexpr int64_t kDecodeRows = 4;       // rows of W in the buffer
inline constexpr int64_t kDecodeStretch = 1024;  // elements of each: 16 KiB in all, half a first-level cache
inline constexpr int64_t kMaxBlockRows = 96;    // rows of x at once

// A stretch of kDecodeRows outputs (fewer: zeros) from n0 on, elements [from, to) of K, as fp32 rows of kDecodeStretch.
template <class Rows, bool kInOut>
void decode_stretch(const Rows& w, int64_t n0, int64_t count, int64_t from, int64_t to, float* buffer) {
  const int64_t padded = (to - from + 15) / 16 * 16;
  for (int64_t n = count; n < kDecodeRows; ++n) __builtin_memset(buffer + n * kDecodeStretch, 0, static_cast<size_t>(padded) * sizeof(float));
  if constexpr (!kInOut) {
    for (int64_t n = 0; n < count; ++n) decode_row(w, n0 + n, from, to, buffer + n * kDecodeStretch);
  } else {
    using Code = typename Rows::Code;
    const int64_t first = n0 / 16 * 16;  // loads start at multiples of 16
    for (int64_t i = from; i < to; ++i) {
      float t[16];
      Vec v = Code::load_n(w.row(i), first, n0 - first + count);
      if (w.scaled()) v = vmul(v, vset(w.scale(i, first / w.block_cols)));
      vstore(t, v);
      for (int64_t n = 0; n < count; ++n) buffer[n * kDecodeStretch + i - from] = t[n0 - first + n];
    }
    for (int64_t n = 0; n < count; ++n) {
      for (int64_t i = to - from; i < padded; ++i) buffer[n * kDecodeStretch + i] = 0;
    }
  }
}

// acc[m][n] += over a stretch; `sums` holds the sixteen lanes of each pair between stretches.
template <int MR>
inline void add_stretch(const float* const* x, int64_t from, int64_t to, const float* buffer, float* sums) {
  Vec acc[MR][kDecodeRows];
  for (int m = 0; m < MR; ++m) {
    for (int n = 0; n < kDecodeRows; ++n) acc[m][n] = vload(sums + (m * kDecodeRows + n) * 16);
  }
  int64_t i = from;
  for (; i + 16 <= to; i += 16) {
    Vec wv[kDecodeRows];
    for (int n = 0; n < kDecodeRows; ++n) wv[n] = vload(buffer + n * kDecodeStretch + i - from);
    for (int m = 0; m < MR; ++m) {
      const Vec xv = vload(x[m] + i);
      for (int n = 0; n < kDecodeRows; ++n) acc[m][n] = vfma(xv, wv[n], acc[m][n]);
    }
  }
  if (i < to) {
    for (int m = 0; m < MR; ++m) {
      const Vec xv = vload_n(x[m] + i, to - i);
      for (int n = 0; n < kDecodeRows; ++n) acc[m][n] = vfma(xv, vload(buffer + n * kDecodeStretch + i - from), acc[m][n]);
    }
  }
  for (int m = 0; m < MR; ++m) {
    for (int n = 0; n < kDecodeRows; ++n) vstore(sums + (m * kDecodeRows + n) * 16, acc[m][n]);
  }
}

template <class Rows, bool kInOut>
void dot_decoded(const Rows& w, const float* const* x, int64_t m, int64_t n0, int64_t n, int64_t k, float* out, int64_t ldo) {
  float buffer[kDecodeRows * kDecodeStretch];
  float sums[kMaxBlockRows * kDecodeRows * 16];
  for (int64_t j = 0; j < n; j += kDecodeRows) {
    const int64_t count = least(kDecodeRows, n - j);
    __builtin_memset(sums, 0, static_cast<size_t>(m * kDecodeRows * 16) * sizeof(float));
    for (int64_t from = 0; from < k; from += kDecodeStretch) {
      const int64_t to = least(k, from + kDecodeStretch);
      decode_stretch<Rows, kInOut>(w, n0 + j, count, from, to, buffer);
      int64_t i = 0;
      for (; i + kTileRows <= m; i += kTileRows) add_stretch<kTileRows>(x + i, from, to, buffer, sums + i * kDecodeRows * 16);
      for (; i < m; ++i) add_stretch<1>(x + i, from, to, buffer, sums + i * kDecodeRows * 16);
    }
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t c = 0; c < count; ++c) out[i * ldo + j + c] = vsum(vload(sums + (i * kDecodeRows + c) * 16));
    }
  }
}

// Up to this many rows of x the weight is decoded anew for each tile.
inline constexpr int64_t kDirectRows = 4;

template <class Rows, int MR>
void dot_direct(const Rows& w, const float* const* x, int64_t n0, int64_t n, int64_t k, float* out, int64_t ldo) {
  constexpr int kWidth = MR <= 2 ? 8 : 4;
  int64_t j = 0;
  for (; j + kWidth <= n; j += kWidth) dot_tile_rows<Rows, MR, kWidth>(w, x, n0 + j, k, out + j, ldo);
  for (; j < n; ++j) dot_tile_rows<Rows, MR, 1>(w, x, n0 + j, k, out + j, ldo);
}

// out[i * ldo + j] = x[i] . W[n0 + j] for i < m <= kMaxBlockRows, j < n. REQUIRES with kInOut: n0 is a multiple of 16.
template <class Rows, bool kInOut>
void dot_block(const Rows& w, const float* const* x, int64_t m, int64_t n0, int64_t n, int64_t k, float* out, int64_t ldo) {
  if (m > kDirectRows) return dot_decoded<Rows, kInOut>(w, x, m, n0, n, k, out, ldo);
  if constexpr (kInOut) {
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < n; j += 16) dot_columns_in_out(w, x[i], n0 + j, least(16, n - j), k, out + i * ldo + j);
    }
  } else {
    switch (m) {
      case 1: return dot_direct<Rows, 1>(w, x, n0, n, k, out, ldo);
      case 2: return dot_direct<Rows, 2>(w, x, n0, n, k, out, ldo);
      case 3: return dot_direct<Rows, 3>(w, x, n0, n, k, out, ldo);
      case 4: return dot_direct<Rows, 4>(w, x, n0, n, k, out, ldo);
    }
  }
}

// Calls f.template operator()<Rows>() with the rows type of a dtype.
template <class F>
void with_plain_rows(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kBF16: return f.template operator()<StoredRows<PlainCode<bf16>>>();
    case DType::kF16: return f.template operator()<StoredRows<PlainCode<f16>>>();
    default: return f.template operator()<StoredRows<PlainCode<float>>>();
  }
}
template <class F>
void with_coded_rows(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kF4: return f.template operator()<StoredRows<NibbleCode>>();
    case DType::kF8E5M2: return f.template operator()<StoredRows<E5m2Code>>();
    case DType::kI8: return f.template operator()<StoredRows<I8Code>>();
    default: return f.template operator()<StoredRows<E4m3Code>>();
  }
}

}  // namespace
}  // namespace pointsman::ops
