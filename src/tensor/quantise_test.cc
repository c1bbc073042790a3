// SPDX-License-Identifier: Apache-2.0
#include "tensor/quantise.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "support/golden.h"
#include "tensor/panel_layout.h"

namespace pointsman {
namespace {

using testing::GoldenFile;

struct Coded {
  std::vector<uint8_t> codes, scales;
  QuantisationError error;
  int64_t bad = -1;
};

Coded quantise(BlockCode code, ScaleRule rule, const std::vector<float>& v) {
  Coded c;
  c.codes.resize(v.size());
  c.scales.resize((v.size() + 31) / 32 * 2);
  c.bad = quantise_row(code, rule, v.data(), static_cast<int64_t>(v.size()), c.codes.data(), c.scales.data(), c.error);
  return c;
}

// Every boundary between two codes and every threshold of a scale (python/golden/make_quantise.py).
TEST(Quantise, CodesAndScalesAreThoseOfTheTables) {
  const GoldenFile tables = testing::read_golden(testing::source_path("tests/golden/quantise/tables.safetensors"));
  const auto& x = tables.at("x");
  ASSERT_GT(x.rows(), 300);
  struct Case {
    const char* name;
    BlockCode code;
    ScaleRule rule;
  };
  for (const Case& c : {Case{"int8", BlockCode::kInt8, ScaleRule::kUp}, Case{"mxfp8_up", BlockCode::kMxfp8, ScaleRule::kUp},
                        Case{"mxfp8_down", BlockCode::kMxfp8, ScaleRule::kDown}, Case{"mxfp4_up", BlockCode::kMxfp4, ScaleRule::kUp},
                        Case{"mxfp4_down", BlockCode::kMxfp4, ScaleRule::kDown}}) {
    const auto &codes = tables.at(std::string(c.name) + "_codes").i32, &scales = tables.at(std::string(c.name) + "_scales").i32;
    for (int64_t r = 0; r < x.rows(); ++r) {
      const std::vector<float> block(x.f32.begin() + r * 32, x.f32.begin() + (r + 1) * 32);
      const Coded made = quantise(c.code, c.rule, block);
      ASSERT_EQ(made.bad, -1);
      const int scale = c.code == BlockCode::kInt8 ? made.scales[0] | made.scales[1] << 8 : made.scales[0];
      ASSERT_EQ(scale, scales[static_cast<size_t>(r)]) << c.name << " block " << r;
      for (int64_t i = 0; i < 32; ++i) {
        const int found = c.code == BlockCode::kMxfp4 ? made.codes[static_cast<size_t>(i / 2)] >> (i % 2 * 4) & 15 : made.codes[static_cast<size_t>(i)];
        ASSERT_EQ(found, codes[static_cast<size_t>(r * 32 + i)]) << c.name << " block " << r << " element " << i << " = " << block[static_cast<size_t>(i)];
      }
    }
  }
}

// A block of 128 is four blocks of 32 under one scale: repeated, or with zeros around, the golden blocks keep their codes.
TEST(Quantise, WideBlocksAreThoseOfTheTables) {
  const GoldenFile tables = testing::read_golden(testing::source_path("tests/golden/quantise/tables.safetensors"));
  const auto &x = tables.at("x"), &codes = tables.at("int8_codes"), &scales = tables.at("int8_scales");
  for (int64_t r = 0; r < x.rows(); ++r) {
    const std::vector<float> block(x.f32.begin() + r * 32, x.f32.begin() + (r + 1) * 32);
    std::vector<float> v(3 * 128, 0.0f);
    for (int64_t i = 0; i < 4; ++i) std::copy(block.begin(), block.end(), v.begin() + 32 * i);
    std::copy(block.begin(), block.end(), v.begin() + 128 + 32 * (r % 4));
    std::copy(block.begin(), block.end(), v.begin() + 256 + 32);
    v.resize(256 + 64);
    const Coded made = quantise(BlockCode::kInt8Wide, ScaleRule::kUp, v);
    ASSERT_EQ(made.bad, -1);
    for (size_t b = 0; b < 3; ++b) ASSERT_EQ(made.scales[2 * b] | made.scales[2 * b + 1] << 8, scales.i32[static_cast<size_t>(r)]) << "block " << r << " in " << b;
    for (int64_t i = 0; i < static_cast<int64_t>(v.size()); ++i) {
      const int64_t piece = i / 32;
      const bool is_block = piece < 4 || piece == 4 + r % 4 || piece == 9;
      ASSERT_EQ(made.codes[static_cast<size_t>(i)], is_block ? codes.i32[static_cast<size_t>(r * 32 + i % 32)] : 0) << "block " << r << " element " << i;
    }
  }
}

std::vector<float> noise(int64_t n, uint32_t seed) {
  std::vector<float> v(static_cast<size_t>(n));
  for (float& f : v) {
    seed = seed * 1664525u + 1013904223u;
    f = static_cast<float>(static_cast<int32_t>(seed)) * 0x1p-36f;
  }
  return v;
}

TEST(Quantise, ErrorIsThatOfTheDecodedValues) {
  for (const BlockCode code : kBlockCodes) {
    for (const int64_t n : {32, 64, 48, 2, 100, 128, 300}) {  // 48, 2, 100 and 300: the last block is partial
      const std::vector<float> v = noise(n, 7);
      Coded made = quantise(code, ScaleRule::kUp, v);
      Weight w(Tensor::matrix(made.codes.data(), code_dtype(code), 1, n));
      w.format = code_format(code);
      w.scales = made.scales.data();
      double squares = 0, worst = 0;
      std::vector<float> decoded(v.size());
      decode_rows(w, 0, 1, decoded.data());
      for (int64_t i = 0; i < n; ++i) {
        ASSERT_EQ(decoded[static_cast<size_t>(i)], weight_value(w, 0, i));
        const double d = std::fabs(double{v[static_cast<size_t>(i)]} - double{decoded[static_cast<size_t>(i)]});
        squares += d * d;
        worst = std::max(worst, d);
      }
      EXPECT_NEAR(made.error.sum_squares, squares, squares * 1e-5);
      EXPECT_NEAR(made.error.max_abs, worst, worst * 1e-5);
      EXPECT_EQ(made.error.count, static_cast<uint64_t>(n));
      EXPECT_LT(made.error.relative_rms(), code == BlockCode::kInt8 ? 0.006 : code == BlockCode::kInt8Wide ? 0.0075 : code == BlockCode::kMxfp8 ? 0.03 : 0.15);
      EXPECT_GT(made.error.relative_rms(), 0);
    }
  }
}

TEST(Quantise, NotFiniteIsFound) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()}) {
    for (const int64_t at : {0, 31, 32, 65}) {
      std::vector<float> v = noise(66, 3);
      v[static_cast<size_t>(at)] = bad;
      EXPECT_EQ(quantise(BlockCode::kMxfp4, ScaleRule::kUp, v).bad, at);
    }
  }
}

// Every layout decodes to the values of the reference.
TEST(Quantise, DecodeRowsIsWeightValue) {
  std::vector<uint8_t> bytes(64 * 64 * 4);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(i * 37 + i / 251);
  std::vector<uint8_t> scales(4096);
  for (size_t i = 0; i < scales.size(); ++i) scales[i] = static_cast<uint8_t>(100 + i % 50);
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16, DType::kI8, DType::kF8E4M3, DType::kF8E5M2, DType::kF4}) {
    for (const WeightLayout layout : {WeightLayout::kOutIn, WeightLayout::kPanel32}) {
      Weight w(Tensor::matrix(bytes.data(), dtype, 64, 64));
      w.layout = layout;
      if (is_coded(dtype)) {
        w.format = {.scale_dtype = dtype == DType::kI8 ? DType::kBF16 : DType::kF8E8M0, .block_rows = 1, .block_cols = 32};
        w.scales = scales.data();
      }
      std::vector<float> out(10 * 64);
      decode_rows(w, 20, 10, out.data());
      for (int64_t r = 0; r < 10; ++r) {
        for (int64_t c = 0; c < 64; ++c) {
          ASSERT_EQ(std::bit_cast<uint32_t>(out[static_cast<size_t>(r * 64 + c)]), std::bit_cast<uint32_t>(weight_value(w, 20 + r, c)))
              << dtype_name(dtype) << " " << r << " " << c;
        }
      }
    }
  }
}

// Looked up or decoded: one sum. A NaN among the codes shows.
TEST(Quantise, SquaresOfCodesAreThoseOfTheValues) {
  constexpr int64_t kRows = 70, kCols = 608;
  std::vector<uint8_t> bytes(kRows * kCols), scales(4 * kRows * kCols);
  for (const DType dtype : {DType::kI8, DType::kF8E4M3, DType::kF8E5M2, DType::kF4}) {
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(dtype == DType::kF8E4M3 || dtype == DType::kF8E5M2 ? (i * 37 + i / 251) & 0xbb : i * 37 + i / 251);
    for (const BlockFormat& f : {BlockFormat{.scale_dtype = DType::kF8E8M0, .block_rows = 1, .block_cols = 32},
                                 BlockFormat{.scale_dtype = DType::kF32, .block_rows = 128, .block_cols = 128},
                                 BlockFormat{.scale_dtype = DType::kBF16, .block_rows = 1, .block_cols = 608}}) {
      for (int64_t i = 0; i < grid_bytes(f, kRows, kCols) * 8 / dtype_bits(f.scale_dtype); ++i) {
        const float scale = std::ldexp(1.0f + static_cast<float>(i % 7) / 8, static_cast<int>(i % 11) - 5);
        const bf16 half = to_bf16(scale);
        if (f.scale_dtype == DType::kF8E8M0) scales[static_cast<size_t>(i)] = static_cast<uint8_t>(120 + i % 11);
        if (f.scale_dtype == DType::kF32) std::memcpy(&scales[static_cast<size_t>(4 * i)], &scale, 4);
        if (f.scale_dtype == DType::kBF16) std::memcpy(&scales[static_cast<size_t>(2 * i)], &half, 2);
      }
      Weight w(Tensor::matrix(bytes.data(), dtype, kRows, kCols));
      w.format = f;
      w.scales = scales.data();
      for (const int64_t row : {int64_t{0}, int64_t{33}, kRows - 1}) {
        double expected = 0;
        for (int64_t c = 0; c < kCols; ++c) expected += double{weight_value(w, row, c)} * double{weight_value(w, row, c)};
        QuantisationError found;
        add_value_squares(w, row, found);
        EXPECT_NEAR(found.value_squares, expected, 1e-5 * expected) << dtype_name(dtype) << " " << f.block_cols << " " << row;
        EXPECT_EQ(found.count, static_cast<uint64_t>(kCols));
      }
    }
  }
  bytes[5 * kCols + 607] = 0x7f;
  Weight w(Tensor::matrix(bytes.data(), DType::kF8E4M3, kRows, kCols));
  std::fill(scales.begin(), scales.end(), uint8_t{127});
  w.format = {.scale_dtype = DType::kF8E8M0, .block_rows = 1, .block_cols = 32};
  w.scales = scales.data();
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] &= 0xbf;
  bytes[5 * kCols + 607] = 0x7f;
  QuantisationError clean, broken, scale;
  add_value_squares(w, 4, clean);
  add_value_squares(w, 5, broken);
  EXPECT_TRUE(std::isfinite(clean.value_squares));
  EXPECT_FALSE(std::isfinite(broken.value_squares));
  scales[4 * 19 + 3] = 255;
  add_value_squares(w, 4, scale);
  EXPECT_FALSE(std::isfinite(scale.value_squares));
}

}  // namespace
}  // namespace pointsman
