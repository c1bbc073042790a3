// SPDX-License-Identifier: Apache-2.0
//
// Block-scaled number formats as data: an element code (E4M3, E5M2, E2M1) and one scale for every block_rows x block_cols elements.
//   value(r, c) = code(r, c) * scale(r / block_rows, c / block_cols), one fp32 rounding.
// INT8 (I8 as an element code) is a two's complement integer; its own formats have BF16 scales over 1 x 32 and 1 x 128.
// Blocks at the right and lower edge are partial. DeepSeek V3: E4M3, 128 x 128, F32. DeepSeek V4: E4M3, 128 x 128, E8M0; MXFP8: E4M3 or
// E5M2, 1 x 32, E8M0; MXFP4 (DeepSeek V4 experts, gpt-oss): E2M1, 1 x 32, E8M0. Element tables: OCP Microscaling Formats v1.0 and OCP FP8.
//
// The functions here are the reference: one element at a time, exact. Kernels (ops/isa) give the same bits.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>

#include "tensor/tensor.h"

namespace pointsman {

// OCP FP8 E4M3: bias 7, no infinity, NaN at S.1111.111, largest 448, smallest 2^-9.
constexpr float e4m3_to_float(uint8_t code) {
  const int exponent = (code >> 3) & 15, mantissa = code & 7;
  if ((code & 0x7f) == 0x7f) return std::numeric_limits<float>::quiet_NaN();
  const float magnitude = exponent == 0 ? static_cast<float>(mantissa) * 0x1p-9f
                                        : std::bit_cast<float>(static_cast<uint32_t>((exponent + 120) << 23 | mantissa << 20));
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

// OCP FP8 E5M2: the upper byte of an IEEE binary16, infinities and NaN included.
inline float e5m2_to_float(uint8_t code) { return to_float(f16{static_cast<uint16_t>(code << 8)}); }

// OCP FP4 E2M1: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives. `code`: the low four bits.
constexpr float e2m1_to_float(uint8_t code) {
  constexpr float kTable[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  const float magnitude = kTable[code & 7];
  return (code & 8) != 0 ? -magnitude : magnitude;
}

// OCP E8M0: 2^(code - 127). 0 is 2^-127, a denormal; 255 is NaN; there is no zero and no sign.
constexpr float e8m0_to_float(uint8_t code) {
  if (code == 255) return std::numeric_limits<float>::quiet_NaN();
  return code == 0 ? 0x1p-127f : std::bit_cast<float>(uint32_t{code} << 23);
}

// How the scales of a weight lie. Default: no scales.
struct BlockFormat {
  DType scale_dtype = DType::kF32;  // kF32, kBF16 or kF8E8M0
  bool transposed = false;          // the grid is stored [column blocks, row blocks]
  int32_t block_rows = 0;           // 0: not block-scaled
  int32_t block_cols = 0;

  explicit operator bool() const { return block_rows > 0; }
  int64_t grid_rows(int64_t rows) const { return (rows + block_rows - 1) / block_rows; }
  int64_t grid_cols(int64_t cols) const { return (cols + block_cols - 1) / block_cols; }
  friend bool operator==(const BlockFormat&, const BlockFormat&) = default;
};

// Element order of a stored matrix. kOutIn is the convention of the project; kInOut is its transpose, as gpt-oss stores dense experts:
// element (out, in) lies at in * row_stride + out. kPanel32 is what `pack` writes for the kernels (tensor/panel_layout.h).
enum class WeightLayout : uint8_t { kOutIn, kInOut, kPanel32 };

// A weight matrix [out, in] with what is needed to decode it. A plain Tensor is one without scales.
// `rows` and `cols` are always out and in, in elements (two to a byte for F4: element 2j is the low nibble).
struct Weight : Tensor {
  Weight() = default;
  Weight(const Tensor& t) : Tensor(t) {}  // NOLINT: every tensor is a weight

  const void* scales = nullptr;  // device address of the grid, contiguous
  BlockFormat format;
  WeightLayout layout = WeightLayout::kOutIn;
  // Of a slice: where it begins in the matrix that the grid belongs to, and how many rows that has (0: rows). A slice need not begin at a
  // block.
  int64_t first_row = 0;
  int64_t grid_of_rows = 0;

  // Rows [begin, begin + n). REQUIRES: kOutIn, or kPanel32 with `begin` and `n` multiples of 32.
  [[gnu::always_inline]] Weight slice_out(int64_t begin, int64_t n) const {
    Weight w = *this;
    w.data = static_cast<std::byte*>(data) + begin * row_stride * dtype_bits(dtype) / 8;
    w.first_row = first_row + begin;
    w.grid_of_rows = grid_of_rows > 0 ? grid_of_rows : rows;
    w.rows = n;
    return w;
  }
};

// Outputs of a panel: the lanes of two AVX-512 registers of 32-bit sums.
inline constexpr int64_t kPanelRows = 32;

// The index into the grid of the scale of element (row, col).
inline int64_t scale_index(const Weight& w, int64_t row, int64_t col) {
  const BlockFormat& f = w.format;
  if (w.layout == WeightLayout::kPanel32 && f.block_rows == 1) {
    const int64_t at = w.first_row + row;
    return (at / kPanelRows * f.grid_cols(w.cols) + col / f.block_cols) * kPanelRows + at % kPanelRows;
  }
  const int64_t r = (w.first_row + row) / f.block_rows, c = col / f.block_cols;
  return f.transposed ? c * f.grid_rows(w.grid_of_rows > 0 ? w.grid_of_rows : w.rows) + r : r * f.grid_cols(w.cols) + c;
}

// One scale of a grid in host memory.
inline float scale_to_float(const void* scales, DType dtype, int64_t index) {
  const auto* bytes = static_cast<const uint8_t*>(scales);
  switch (dtype) {
    case DType::kF8E8M0: return e8m0_to_float(bytes[index]);
    case DType::kBF16: {
      bf16 v;
      std::memcpy(&v, bytes + 2 * index, 2);
      return to_float(v);
    }
    default: {
      float v;
      std::memcpy(&v, bytes + 4 * index, 4);
      return v;
    }
  }
}

// Element (row, col) of a weight in host memory. The reference for every kernel; slow.
float weight_value(const Weight& w, int64_t row, int64_t col);

// What is odd about the values of a coded weight in host memory, from a sample of rows and columns; empty when nothing is. Codes read with the
// wrong type, byte order or scales land far outside of what any trained weight holds: root mean square beyond [2^-24, 2^6], or NaN.
std::string magnitude_problem(const Weight& w);

// FP8, FP4 and INT8 need a scale to mean anything; BF16, F16 and F32 stand alone.
constexpr bool is_coded(DType d) { return d == DType::kF4 || d == DType::kF8E4M3 || d == DType::kF8E5M2 || d == DType::kI8; }
constexpr bool is_plain(DType d) { return d == DType::kBF16 || d == DType::kF16 || d == DType::kF32; }

// Can kernels compute with it? Coded weights: [out, in] rows, scales of F32, BF16 or E8M0, blocks a multiple of 16 wide or as wide as the
// row. Plain weights: no scales. Panels: see panel_layout.h.
bool is_panel_shape(const Weight& w);
inline bool is_computable(const Weight& w) {
  if (w.layout == WeightLayout::kPanel32 && !is_panel_shape(w)) return false;
  if (is_plain(w.dtype)) return !w.format;
  if (!is_coded(w.dtype) || w.layout == WeightLayout::kInOut || !w.format || w.format.block_cols < 1) return false;
  if (w.dtype == DType::kF4 && w.row_stride % 2 != 0) return false;
  const DType s = w.format.scale_dtype;
  return (s == DType::kF32 || s == DType::kBF16 || s == DType::kF8E8M0) && (w.format.block_cols % 16 == 0 || w.format.block_cols >= w.cols);
}

// Bytes of the grid of a [rows, cols] weight.
inline int64_t grid_bytes(const BlockFormat& f, int64_t rows, int64_t cols) {
  return f ? f.grid_rows(rows) * f.grid_cols(cols) * dtype_bits(f.scale_dtype) / 8 : 0;
}

}  // namespace pointsman
