// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/quantization.h"

#include <gtest/gtest.h>

#include <random>

namespace pointsman {
namespace {

using Shape = std::vector<int64_t>;

Result<ScaleDescription> scales(DType code, int64_t rows, int64_t cols, DType dtype, const Shape& shape, QuantizationConfig config = {}) {
  return describe_scales("w.scale", code, rows, cols, dtype, shape, config);
}
const QuantizationConfig k128{.method = "fp8", .block_rows = 128, .block_cols = 128};

TEST(Quantization, BlocksOf128WithPartialEdges) {
  const auto d = scales(DType::kF8E4M3, 300, 200, DType::kF32, {3, 2}, k128);
  ASSERT_TRUE(d.ok()) << d.status().to_string();
  EXPECT_EQ(d->format, (BlockFormat{.scale_dtype = DType::kF32, .transposed = false, .block_rows = 128, .block_cols = 128}));
  EXPECT_EQ(d->orientation, GridOrientation::kStraight);
}

TEST(Quantization, ATransposedGridIsSeenWhenShapesAllowAndUndecidedWhenSquare) {
  auto d = scales(DType::kF8E4M3, 300, 200, DType::kF32, {2, 3}, k128);
  ASSERT_TRUE(d.ok());
  EXPECT_TRUE(d->format.transposed);
  EXPECT_EQ(d->orientation, GridOrientation::kTransposed);
  d = scales(DType::kF8E4M3, 300, 300, DType::kF32, {3, 3}, k128);
  ASSERT_TRUE(d.ok());
  EXPECT_FALSE(d->format.transposed);
  EXPECT_EQ(d->orientation, GridOrientation::kUndecided);
  EXPECT_EQ(scales(DType::kF8E4M3, 100, 100, DType::kF32, {1, 1}, k128)->orientation, GridOrientation::kStraight) << "one block reads one way";
}

// 300 x 200 has the same grid with blocks of 100 and of 128: only the config can say, and it is believed.
TEST(Quantization, TheBlockSizeComesFromTheConfig) {
  const auto d = scales(DType::kF8E4M3, 300, 200, DType::kF32, {3, 2}, {.method = "fp8", .block_rows = 112, .block_cols = 112});
  ASSERT_TRUE(d.ok());
  EXPECT_EQ(d->format.block_cols, 112);
  const auto odd = scales(DType::kF8E4M3, 300, 200, DType::kF32, {3, 2}, {.method = "fp8", .block_rows = 100, .block_cols = 100});
  EXPECT_EQ(odd.status().code(), StatusCode::kUnsupported) << "100 ends within sixteen lanes";
  const auto wrong = scales(DType::kF8E4M3, 300, 200, DType::kF32, {3, 3}, k128);
  EXPECT_EQ(wrong.status().code(), StatusCode::kCorrupt);
  EXPECT_NE(wrong.status().message().find("expected [3, 2]"), std::string::npos) << wrong.status().message();
}

TEST(Quantization, WithoutAConfigOneBlockSizeMustExplainTheGrid) {
  EXPECT_EQ(scales(DType::kF8E4M3, 4096, 2048, DType::kF32, {32, 16})->format.block_cols, 128);
  EXPECT_EQ(scales(DType::kF8E4M3, 4096, 2048, DType::kF8E8M0, {4096, 64})->format.block_cols, 32);
  EXPECT_EQ(scales(DType::kF8E4M3, 4096, 2048, DType::kF32, {4096, 1})->format.block_cols, 2048) << "one per row";
  EXPECT_EQ(scales(DType::kF8E4M3, 4096, 2048, DType::kF32, {4096})->format.block_cols, 2048) << "a vector is a column";
  EXPECT_EQ(scales(DType::kF8E4M3, 4096, 2048, DType::kF32, {})->format.block_rows, 4096) << "one in all";
  const auto ambiguous = scales(DType::kF8E4M3, 32, 32, DType::kF32, {1, 1});
  ASSERT_TRUE(ambiguous.ok()) << "all sizes cover the same elements: " << ambiguous.status().to_string();
  const auto several = scales(DType::kF8E4M3, 128, 1, DType::kF32, {128, 1});
  EXPECT_TRUE(several.ok()) << several.status().to_string();
  const auto both = scales(DType::kF8E4M3, 64, 16384, DType::kF32, {128, 64});  // 1 x 128 transposed; nothing else
  ASSERT_TRUE(both.ok()) << both.status().to_string();
  EXPECT_TRUE(both->format.transposed);
  const auto two = scales(DType::kF8E4M3, 4, 512, DType::kF32, {4, 4});  // 1 x 128, and nothing of 32
  EXPECT_TRUE(two.ok());
  const auto clash = scales(DType::kF8E4M3, 4, 128, DType::kF32, {4, 1});  // 1 x 128 is one per row; 32 x 32 transposed is [4, 1] too
  EXPECT_EQ(clash.status().code(), StatusCode::kUnsupported);
  EXPECT_NE(clash.status().message().find("weight_block_size"), std::string::npos) << clash.status().message();
}

TEST(Quantization, Fp4HasBlocksOf32WhateverTheConfigSaysOfFp8) {
  const auto d = scales(DType::kF4, 2048, 4096, DType::kF8E8M0, {2048, 128}, k128);
  ASSERT_TRUE(d.ok());
  EXPECT_EQ(d->format, (BlockFormat{.scale_dtype = DType::kF8E8M0, .transposed = false, .block_rows = 1, .block_cols = 32}));
  EXPECT_EQ(scales(DType::kF4, 37, 80, DType::kU8, {37, 3})->format.scale_dtype, DType::kF8E8M0) << "U8 in blocks of 32 is E8M0";
  const auto nv = scales(DType::kF4, 64, 64, DType::kU8, {64, 4});
  EXPECT_EQ(nv.status().code(), StatusCode::kUnsupported);
  EXPECT_NE(nv.status().message().find("NVFP4"), std::string::npos);
}

TEST(Quantization, Int8OfPackedFoldersHasBlocksOf32Or128) {
  const QuantizationConfig packed{.method = std::string(kPackedMethod), .panels = true};
  const auto width = [&](int64_t rows, int64_t cols, Shape grid) {
    const auto d = scales(DType::kI8, rows, cols, DType::kBF16, std::move(grid), packed);
    return d.ok() ? d->format.block_cols : -1;
  };
  EXPECT_EQ(width(64, 1024, {64, 32}), 32);
  EXPECT_EQ(width(64, 1024, {64, 8}), 128);
  EXPECT_EQ(width(64, 160, {64, 2}), 128) << "the last block is a part";
  EXPECT_EQ(width(64, 96, {64, 1}), 128);
  EXPECT_EQ(width(64, 32, {64, 1}), 32) << "one block of 32 is both";
  EXPECT_EQ(width(64, 1024, {8, 64}), -1) << "never transposed";
  EXPECT_EQ(width(64, 1024, {64, 16}), -1);
  Weight w(Tensor::matrix(nullptr, DType::kI8, 64, 160));
  w.format = {.scale_dtype = DType::kBF16, .block_rows = 1, .block_cols = 128};
  EXPECT_EQ(packed_layout(packed, {&w, 1}), WeightLayout::kPanel32);
  w.format.scale_dtype = DType::kF8E8M0;
  EXPECT_EQ(packed_layout(packed, {&w, 1}), WeightLayout::kOutIn);
}

TEST(Quantization, OtherScaleTypesAreRefusedByName) {
  for (const DType d : {DType::kI8, DType::kF16, DType::kF8E4M3, DType::kI32, DType::kF64}) {
    const auto r = scales(DType::kF8E4M3, 256, 256, d, {2, 2}, k128);
    EXPECT_EQ(r.status().code(), StatusCode::kUnsupported);
    EXPECT_NE(r.status().message().find(dtype_name(d)), std::string::npos);
  }
}

TEST(Quantization, PackedFp4IsHalfAsWide) {
  EXPECT_EQ(*describe_codes("w", DType::kI8, Shape{8, 16}, 8, 32), DType::kF4);
  EXPECT_EQ(*describe_codes("w", DType::kU8, Shape{8, 16}, 8, 32), DType::kF4);
  EXPECT_EQ(*describe_codes("w", DType::kF4, Shape{8, 32}, 8, 32), DType::kF4);
  EXPECT_EQ(*describe_codes("w", DType::kF8E4M3, Shape{8, 33}, 8, 33), DType::kF8E4M3);
  EXPECT_FALSE(describe_codes("w", DType::kI8, Shape{8, 32}, 8, 32).ok());
  EXPECT_FALSE(describe_codes("w", DType::kI8, Shape{8, 16}, 8, 33).ok());
  EXPECT_EQ(describe_codes("w", DType::kF8E4M3Fnuz, Shape{8, 32}, 8, 32).status().code(), StatusCode::kUnsupported);
}

// Whatever shapes and types come: a description whose grid is exactly the stored one, or a named error.
TEST(Quantization, AnyDescriptionIsExactOrRefused) {
  std::mt19937_64 rng(11);
  const int64_t sizes[] = {0, 1, 2, 16, 31, 32, 33, 100, 127, 128, 129, 200, 256, 300, 2880, int64_t{1} << 31, int64_t{1} << 40, -1, INT64_MAX};
  const DType types[] = {DType::kF32, DType::kBF16, DType::kF8E8M0, DType::kU8, DType::kI8, DType::kF4, DType::kF8E4M3};
  const auto size = [&] { return sizes[rng() % std::size(sizes)]; };
  int described = 0;
  for (int i = 0; i < 200'000; ++i) {
    const int64_t rows = size(), cols = size();
    QuantizationConfig config;
    if (rng() % 2 == 0) config = {.method = "fp8", .block_rows = static_cast<int32_t>(1 + rng() % 200), .block_cols = static_cast<int32_t>(1 + rng() % 200)};
    if (rng() % 2 == 0) config.block_rows = config.block_cols = 128;
    Shape shape(rng() % 4);
    for (int64_t& d : shape) d = rng() % 2 == 0 ? size() : (rng() % 2 == 0 ? rows : cols) / 128 + static_cast<int64_t>(rng() % 2);
    const DType code = rng() % 3 == 0 ? DType::kF4 : rng() % 4 == 0 ? DType::kI8 : DType::kF8E4M3;
    const auto d = describe_scales("w", code, rows, cols, types[rng() % std::size(types)], shape, config);
    if (!d.ok()) {
      ASSERT_FALSE(d.status().message().empty());
      continue;
    }
    ++described;
    int64_t stored[2] = {1, 1};
    for (size_t k = 0; k < shape.size(); ++k) stored[k] = shape[k];
    const int64_t r = d->format.grid_rows(rows), c = d->format.grid_cols(cols);
    ASSERT_EQ(stored[0], d->format.transposed ? c : r);
    ASSERT_EQ(stored[1], d->format.transposed ? r : c);
    Weight w(Tensor::matrix(nullptr, code, rows, cols));
    w.format = d->format;
    w.row_stride = (cols + 1) / 2 * 2;
    ASSERT_TRUE(is_computable(w));
  }
  EXPECT_GT(described, 1000);
}

// Version 1 held FP8 with wide blocks in rows, version 2 holds it in panels; folders of version 1 keep their meaning.
TEST(PackedLayout, OfWideBlocksDependsOnTheVersion) {
  const auto weight = [](DType dtype, int64_t rows, int64_t cols, BlockFormat f) {
    Weight w(Tensor::matrix(nullptr, dtype, rows, cols));
    w.format = f;
    return w;
  };
  const BlockFormat wide{.scale_dtype = DType::kF32, .block_rows = 128, .block_cols = 128}, fine{.scale_dtype = DType::kF8E8M0, .block_rows = 1, .block_cols = 32};
  QuantizationConfig c{.method = std::string(kPackedMethod), .panels = true};
  const auto layout = [&](const Weight& w) { return packed_layout(c, {&w, 1}); };
  EXPECT_EQ(layout(weight(DType::kF8E4M3, 576, 256, wide)), WeightLayout::kOutIn);
  EXPECT_EQ(layout(weight(DType::kF8E4M3, 576, 256, fine)), WeightLayout::kPanel32);
  c.wide_panels = true;
  EXPECT_EQ(layout(weight(DType::kF8E4M3, 576, 256, wide)), WeightLayout::kPanel32);
  EXPECT_EQ(layout(weight(DType::kF8E4M3, 576, 256, {.scale_dtype = DType::kF8E8M0, .block_rows = 32, .block_cols = 64})), WeightLayout::kPanel32);
  EXPECT_EQ(layout(weight(DType::kF8E4M3, 570, 256, wide)), WeightLayout::kOutIn);
  EXPECT_EQ(layout(weight(DType::kF8E4M3, 576, 256, {.scale_dtype = DType::kF32, .block_rows = 1, .block_cols = 128})), WeightLayout::kOutIn);
  EXPECT_EQ(layout(weight(DType::kF8E4M3, 576, 256, {.scale_dtype = DType::kF32, .block_rows = 48, .block_cols = 128})), WeightLayout::kOutIn);
  EXPECT_EQ(layout(weight(DType::kF8E5M2, 576, 256, wide)), WeightLayout::kOutIn);
  c.panels = false;
  EXPECT_EQ(layout(weight(DType::kF8E4M3, 576, 256, wide)), WeightLayout::kOutIn);
}

}  // namespace
}  // namespace pointsman
