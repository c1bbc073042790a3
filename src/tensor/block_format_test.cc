// SPDX-License-Identifier: Apache-2.0
//
// The reference decoding against tables made by python/golden/make_formats.py: every code, a spread of scales, edge blocks.
#include "tensor/block_format.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "support/golden.h"

namespace pointsman {
namespace {

const testing::GoldenFile& tables() {
  static const testing::GoldenFile file = testing::read_golden(testing::source_path("tests/golden/formats/tables.safetensors"));
  return file;
}
const std::vector<float>& floats(const char* name) { return tables().at(name).f32; }
std::vector<uint8_t> bytes(const char* name) {
  const std::vector<int32_t>& wide = tables().at(name).i32;
  return {wide.begin(), wide.end()};
}
// Equal bits (so -0 is not 0), or both NaN.
::testing::AssertionResult same(float a, float b) {
  if (std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b) || (std::isnan(a) && std::isnan(b))) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << a << " against " << b;
}

TEST(BlockFormat, EveryCodeIsTheTables) {
  for (int i = 0; i < 256; ++i) {
    EXPECT_TRUE(same(e4m3_to_float(static_cast<uint8_t>(i)), floats("e4m3")[static_cast<size_t>(i)])) << i;
    EXPECT_TRUE(same(e5m2_to_float(static_cast<uint8_t>(i)), floats("e5m2")[static_cast<size_t>(i)])) << i;
    EXPECT_TRUE(same(e8m0_to_float(static_cast<uint8_t>(i)), floats("e8m0")[static_cast<size_t>(i)])) << i;
    EXPECT_TRUE(same(e2m1_to_float(static_cast<uint8_t>(i)), floats("e2m1")[static_cast<size_t>(i % 16)])) << i;  // upper nibble ignored
  }
  EXPECT_EQ(std::bit_cast<uint32_t>(e8m0_to_float(0)), 0x00400000u);  // 2^-127, a denormal: neither 0 nor 2^-126
  EXPECT_TRUE(std::isnan(e8m0_to_float(255)));
}

TEST(BlockFormat, EveryCodeTimesASpreadOfScalesIsRoundedOnce) {
  const std::vector<float>& scales = floats("scales");
  for (size_t s = 0; s < scales.size(); ++s) {
    for (size_t i = 0; i < 256; ++i) {
      uint8_t code = static_cast<uint8_t>(i);
      Weight w(Tensor::matrix(&code, DType::kF8E4M3, 1, 1));
      w.scales = &scales[s];
      w.format = {.block_rows = 128, .block_cols = 128};
      ASSERT_TRUE(same(weight_value(w, 0, 0), floats("e4m3_scaled")[s * 256 + i])) << i << " x " << scales[s];
      w.dtype = DType::kF8E5M2;
      ASSERT_TRUE(same(weight_value(w, 0, 0), floats("e5m2_scaled")[s * 256 + i])) << i << " x " << scales[s];
    }
  }
  for (size_t s = 0; s < 256; ++s) {
    const uint8_t exponent = static_cast<uint8_t>(s);
    for (size_t i = 0; i < 256; ++i) {
      uint8_t code = static_cast<uint8_t>(i);
      Weight w(Tensor::matrix(&code, DType::kF8E4M3, 1, 1));
      w.scales = &exponent;
      w.format = {.scale_dtype = DType::kF8E8M0, .block_rows = 1, .block_cols = 32};
      ASSERT_TRUE(same(weight_value(w, 0, 0), floats("e4m3_e8m0")[s * 256 + i])) << i << " x 2^" << s;
      w.dtype = DType::kF4;
      ASSERT_TRUE(same(weight_value(w, 0, 0), floats("e2m1_e8m0")[s * 16 + i % 16])) << i << " x 2^" << s;
    }
  }
}

void expect_values(const Weight& w, const std::vector<float>& expected) {
  for (int64_t r = 0; r < w.rows; ++r) {
    for (int64_t c = 0; c < w.cols; ++c) {
      ASSERT_TRUE(same(weight_value(w, r, c), expected[static_cast<size_t>(r * w.cols + c)])) << "[" << r << ", " << c << "]";
    }
  }
}

TEST(BlockFormat, AWeightOf300x200HasPartialBlocksOnBothEdges) {
  std::vector<uint8_t> codes = bytes("edge_codes");
  Weight w(Tensor::matrix(codes.data(), DType::kF8E4M3, 300, 200));
  w.format = {.block_rows = 128, .block_cols = 128};
  EXPECT_EQ(grid_bytes(w.format, 300, 200), 3 * 2 * 4);
  w.scales = floats("edge_scales").data();
  expect_values(w, floats("edge_values"));

  const std::vector<uint8_t> exponents = bytes("edge_exponents");
  w.format.scale_dtype = DType::kF8E8M0;
  w.scales = exponents.data();
  expect_values(w, floats("edge_e8m0_values"));

  // The same grid, stored [column blocks, row blocks].
  std::vector<uint8_t> turned(6);
  for (size_t r = 0; r < 3; ++r) {
    for (size_t c = 0; c < 2; ++c) turned[c * 3 + r] = exponents[r * 2 + c];
  }
  w.format.transposed = true;
  w.scales = turned.data();
  expect_values(w, floats("edge_e8m0_values"));
}

TEST(BlockFormat, MxBlocksRunAlongTheRow) {
  const std::vector<uint8_t> exponents = bytes("mx_exponents");
  std::vector<uint8_t> packed = bytes("mxfp4_packed"), codes = bytes("mxfp8_codes");
  Weight w(Tensor::matrix(packed.data(), DType::kF4, 37, 80));
  w.format = {.scale_dtype = DType::kF8E8M0, .block_rows = 1, .block_cols = 32};
  w.scales = exponents.data();
  expect_values(w, floats("mxfp4_values"));
  EXPECT_TRUE(std::isnan(weight_value(w, 9, 0)) && std::isnan(weight_value(w, 9, 31)) && !std::isnan(weight_value(w, 9, 32)));
  w.dtype = DType::kF8E4M3;
  w.data = codes.data();
  expect_values(w, floats("mxfp8_values"));
}

TEST(BlockFormat, NonsenseIsSeenByItsMagnitude) {
  std::vector<uint8_t> codes(256 * 256);
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint8_t>(i * 7 % 126);
  std::vector<float> scales(4, 2e-4f);
  Weight w(Tensor::matrix(codes.data(), DType::kF8E4M3, 256, 256));
  w.scales = scales.data();
  w.format = {.block_rows = 128, .block_cols = 128};
  EXPECT_EQ(magnitude_problem(w), "");
  for (float& s : scales) s = 1 / 2e-4f;  // "scale_inv" taken literally
  EXPECT_NE(magnitude_problem(w).find("root mean square"), std::string::npos);
  for (float& s : scales) s = 0;
  EXPECT_NE(magnitude_problem(w), "");
  for (float& s : scales) s = 2e-4f;
  scales[3] = NAN;
  EXPECT_NE(magnitude_problem(w).find("NaN"), std::string::npos);
}

TEST(BlockFormat, KernelsTakeWhatTheyCanDecodeAndNothingElse) {
  Weight w(Tensor::matrix(nullptr, DType::kF8E4M3, 8, 200));
  EXPECT_FALSE(is_computable(w)) << "codes without scales mean nothing";
  w.format = {.block_rows = 128, .block_cols = 128};
  EXPECT_TRUE(is_computable(w));
  w.format.block_cols = 100;
  EXPECT_FALSE(is_computable(w)) << "a block that ends within sixteen lanes";
  w.format.block_cols = 200;
  EXPECT_TRUE(is_computable(w)) << "one block over the whole row";
  w.format.scale_dtype = DType::kF8E4M3;
  EXPECT_FALSE(is_computable(w));
  EXPECT_TRUE(is_computable(Weight(Tensor::matrix(nullptr, DType::kBF16, 8, 200))));
  w.dtype = DType::kBF16;
  EXPECT_FALSE(is_computable(w)) << "plain values are not scaled";
}

}  // namespace
}  // namespace pointsman
