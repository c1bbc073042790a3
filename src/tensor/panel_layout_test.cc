// SPDX-License-Identifier: Apache-2.0
#include "tensor/panel_layout.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

namespace pointsman {
namespace {

struct Case {
  DType dtype;
  BlockFormat format;
};

std::vector<Case> cases() {
  return {{DType::kBF16, {}},
          {DType::kF32, {}},
          {DType::kI8, {.scale_dtype = DType::kBF16, .block_rows = 1, .block_cols = 32}},
          {DType::kI8, {.scale_dtype = DType::kBF16, .block_rows = 1, .block_cols = 128}},
          {DType::kF8E4M3, {.scale_dtype = DType::kF8E8M0, .block_rows = 1, .block_cols = 32}},
          {DType::kF8E4M3, {.scale_dtype = DType::kF32, .block_rows = 32, .block_cols = 64}},
          {DType::kF4, {.scale_dtype = DType::kF8E8M0, .block_rows = 1, .block_cols = 32}}};
}

std::vector<uint8_t> pattern(int64_t bytes, uint32_t seed) {
  std::vector<uint8_t> out(static_cast<size_t>(bytes));
  for (uint8_t& b : out) {
    seed = seed * 1664525u + 1013904223u;
    b = static_cast<uint8_t>(seed >> 24 & 0x77);  // no NaN of any format
  }
  return out;
}

struct Stored {
  std::vector<uint8_t> data, scales;
  Weight weight;
};

Stored in_rows(const Case& c, int64_t rows, int64_t cols) {
  Stored s;
  s.data = pattern(rows * cols * dtype_bits(c.dtype) / 8, 1);
  s.scales = pattern(grid_bytes(c.format, rows, cols), 2);
  s.weight = Tensor::matrix(s.data.data(), c.dtype, rows, cols);
  s.weight.format = c.format;
  s.weight.scales = s.scales.data();
  return s;
}

Stored in_panels(const Stored& rows) {
  Stored s;
  s.data.resize(rows.data.size()), s.scales.resize(rows.scales.size());
  to_panels(rows.weight, s.data.data(), s.scales.data());
  s.weight = rows.weight;
  s.weight.data = s.data.data(), s.weight.scales = s.scales.data(), s.weight.layout = WeightLayout::kPanel32;
  return s;
}

TEST(PanelLayout, EveryElementIsWhatItWasInRows) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(std::string(dtype_name(c.dtype)));
    const Stored rows = in_rows(c, 96, 320), panels = in_panels(rows);
    ASSERT_TRUE(is_computable(panels.weight));
    for (int64_t r = 0; r < 96; ++r) {
      for (int64_t k = 0; k < 320; ++k) {
        const float expected = weight_value(rows.weight, r, k), got = weight_value(panels.weight, r, k);
        ASSERT_EQ(std::memcmp(&expected, &got, 4), 0) << "[" << r << ", " << k << "]";
      }
    }
  }
}

TEST(PanelLayout, TheWayBackGivesTheBytes) {
  for (const Case& c : cases()) {
    const Stored rows = in_rows(c, 64, 288), panels = in_panels(rows);
    Stored back;
    back.data.resize(rows.data.size()), back.scales.resize(rows.scales.size());
    from_panels(panels.weight, back.data.data(), back.scales.data());
    EXPECT_EQ(back.data, rows.data) << dtype_name(c.dtype);
    EXPECT_EQ(back.scales, rows.scales) << dtype_name(c.dtype);
    EXPECT_NE(panels.data, rows.data) << dtype_name(c.dtype);
  }
}

// The placement that the header draws, for one lane of each width.
TEST(PanelLayout, LanesHoldNeighbouringInputs) {
  EXPECT_EQ(panel_index(DType::kI8, 64, 33, 6), ((1 * 16 + 1) * 32 + 1) * 4 + 2);
  EXPECT_EQ(panel_index(DType::kBF16, 64, 33, 7), ((1 * 32 + 3) * 32 + 1) * 2 + 1);
  // F4: input 8 + 1 is the low nibble of byte 1 of its lane, input 8 + 5 the high nibble of the same byte.
  EXPECT_EQ(panel_index(DType::kF4, 64, 0, 9), (32 * 4 + 1) * 2);
  EXPECT_EQ(panel_index(DType::kF4, 64, 0, 13), (32 * 4 + 1) * 2 + 1);
}

TEST(PanelLayout, ASliceOfWholePanelsKeepsItsValues) {
  const Stored rows = in_rows(cases()[2], 128, 64), panels = in_panels(rows);
  const Weight part = panels.weight.slice_out(64, 32);
  ASSERT_TRUE(is_computable(part));
  for (int64_t r = 0; r < 32; ++r) EXPECT_EQ(weight_value(part, r, 5), weight_value(rows.weight, 64 + r, 5));
}

TEST(PanelLayout, OddShapesAndBlocksAreNone) {
  Weight w(Tensor::matrix(nullptr, DType::kBF16, 64, 64));
  EXPECT_TRUE(can_be_panels(w));
  w.rows = 48;
  EXPECT_FALSE(can_be_panels(w));
  w.rows = 64, w.cols = 80, w.row_stride = 80;
  EXPECT_FALSE(can_be_panels(w));
  w = Tensor::matrix(nullptr, DType::kF8E4M3, 64, 64);
  EXPECT_FALSE(can_be_panels(w)) << "codes without scales";
  w.format = {.block_rows = 1, .block_cols = 64};
  EXPECT_FALSE(can_be_panels(w)) << "a scale for half the panel's lanes";
  w.format = {.block_rows = 128, .block_cols = 128};
  EXPECT_TRUE(can_be_panels(w));
  w.layout = WeightLayout::kPanel32, w.row_stride = 65;
  EXPECT_FALSE(is_computable(w)) << "panels have no gaps";
}

}  // namespace
}  // namespace pointsman
