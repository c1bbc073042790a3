// SPDX-License-Identifier: Apache-2.0
//
// Random weights in every stored format that kernels compute with.
#pragma once

#include <string>
#include <vector>

#include "support/ops_fixture.h"
#include "tensor/block_format.h"

namespace pointsman::testing {

struct CodedFormat {
  std::string name;
  DType dtype;
  BlockFormat format;
};

inline std::vector<CodedFormat> all_formats() {
  constexpr DType kE8m0 = DType::kF8E8M0;
  return {
      {"fp8 128x128 fp32", DType::kF8E4M3, {.block_rows = 128, .block_cols = 128}},
      {"fp8 128x128 bf16", DType::kF8E4M3, {.scale_dtype = DType::kBF16, .block_rows = 128, .block_cols = 128}},
      {"fp8 128x128 e8m0", DType::kF8E4M3, {.scale_dtype = kE8m0, .block_rows = 128, .block_cols = 128}},
      {"fp8 128x128 e8m0 transposed", DType::kF8E4M3, {.scale_dtype = kE8m0, .transposed = true, .block_rows = 128, .block_cols = 128}},
      {"fp8 per row", DType::kF8E4M3, {.block_rows = 1, .block_cols = 1 << 20}},
      {"mxfp8 e4m3", DType::kF8E4M3, {.scale_dtype = kE8m0, .block_rows = 1, .block_cols = 32}},
      {"mxfp8 e5m2", DType::kF8E5M2, {.scale_dtype = kE8m0, .block_rows = 1, .block_cols = 32}},
      {"int8 bf16", DType::kI8, {.scale_dtype = DType::kBF16, .block_rows = 1, .block_cols = 32}},
      {"int8 1x128 bf16", DType::kI8, {.scale_dtype = DType::kBF16, .block_rows = 1, .block_cols = 128}},
      {"mxfp4", DType::kF4, {.scale_dtype = kE8m0, .block_rows = 1, .block_cols = 32}},
  };
}

// Rows of bytes; nothing follows the last, so that a sanitizer sees a read beyond it.
class CodedWeight {
 public:
  CodedWeight(const CodedFormat& f, int64_t rows, int64_t cols, uint64_t seed)
      : rng(seed), format_(f), rows_(rows), cols_(cols), stride_(f.dtype == DType::kF4 ? (cols + 1) / 2 * 2 : cols),
        codes_(static_cast<size_t>(rows * stride_ * dtype_bits(f.dtype) / 8)),
        scales_(static_cast<size_t>(grid_bytes(f.format, rows, cols))) {
    for (uint8_t& c : codes_) {
      c = static_cast<uint8_t>(rng());
      // No NaN and no infinity here; every_code() has them.
      if (f.dtype == DType::kF8E4M3 && (c & 0x7f) == 0x7f) c = 0x41;
      if (f.dtype == DType::kF8E5M2 && (c & 0x7c) == 0x7c) c = 0x41;
    }
    const size_t width = static_cast<size_t>(dtype_bits(f.format.scale_dtype) / 8);
    for (size_t i = 0; i < scales_.size() / width; ++i) set_scale(i, static_cast<uint8_t>(112 + rng() % 12));
  }
  // Scale i becomes about 2^(e8m0 - 127), odd mantissas where the format has any.
  void set_scale(size_t i, uint8_t e8m0) {
    const float value = e8m0_to_float(e8m0) * (1 + static_cast<float>(rng() % 1000) * 0.0009f);
    if (format_.format.scale_dtype == DType::kF8E8M0) scales_[i] = e8m0;
    if (format_.format.scale_dtype == DType::kF32) std::memcpy(&scales_[4 * i], &value, 4);
    if (format_.format.scale_dtype == DType::kBF16) {
      const bf16 half = to_bf16(value);
      std::memcpy(&scales_[2 * i], &half, 2);
    }
  }
  // Element (r, c) gets code (r + c) mod 256 (nibbles: mod 16), and E8M0 grids bytes 0, 1 and 255.
  void every_code() {
    for (int64_t r = 0; r < rows_; ++r) {
      for (int64_t c = 0; c < cols_; ++c) {
        const auto code = static_cast<uint8_t>(r + c);
        uint8_t& byte = codes_[static_cast<size_t>((r * stride_ + c) * dtype_bits(format_.dtype) / 8)];
        byte = format_.dtype != DType::kF4 ? code : c % 2 == 0 ? static_cast<uint8_t>(code & 15) : static_cast<uint8_t>(byte | code << 4);
      }
    }
    if (format_.format.scale_dtype == DType::kF8E8M0) scales_[0] = 0, scales_.back() = 1, scales_[scales_.size() / 2] = 255;
  }
  bool row_has_nan(int64_t r) const {
    for (int64_t c = 0; c < cols_; ++c) {
      const float v = weight_value(weight(), r, c);
      if (std::isnan(v) || std::isinf(v)) return true;  // infinity times zero
    }
    return false;
  }
  Weight weight() const {
    Weight w(Tensor{const_cast<uint8_t*>(codes_.data()), format_.dtype, rows_, cols_, stride_});
    w.scales = scales_.data();
    w.format = format_.format;
    return w;
  }
  TestMatrix<float> decoded() const {
    TestMatrix<float> m(rows_, cols_);
    for (int64_t r = 0; r < rows_; ++r) {
      for (int64_t c = 0; c < cols_; ++c) m.at(r, c) = weight_value(weight(), r, c);
    }
    return m;
  }
  std::mt19937_64 rng;

 private:
  CodedFormat format_;
  int64_t rows_, cols_, stride_;
  std::vector<uint8_t> codes_, scales_;
};

}  // namespace pointsman::testing
