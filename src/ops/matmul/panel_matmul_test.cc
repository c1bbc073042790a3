// SPDX-License-Identifier: Apache-2.0
//
// Packed weights: against plain loops that follow ops/context.h, and against float64 of the same codes; every format, instruction set, number of
// rows.
#include <gtest/gtest.h>

#include "ops/kernels.h"
#include "ops/matmul/matmul.h"
#include "ops/quant/quantise.h"
#include "support/panel_weight.h"

namespace pointsman {
namespace {

using testing::all_same;
using testing::CodedFormat;
using testing::CodedWeight;
using testing::kernel_tables;
using testing::make_runners;
using testing::panel_formats;
using testing::PanelWeight;
using testing::TestMatrix;

// Rows of x in the type that meets a weight.
struct Input {
  TestMatrix<float> f32;
  TestMatrix<bf16> half;
  std::vector<uint8_t> codes;
  Input(int64_t rows, int64_t cols, std::mt19937_64& rng) : f32(rows, cols), half(rows, cols), codes(static_cast<size_t>(rows * ops::quantised_row_bytes(cols))) {
    f32.fill(rng);
    round();
  }
  void round() {
    for (int64_t r = 0; r < f32.tensor().rows; ++r) {
      for (int64_t c = 0; c < f32.tensor().cols; ++c) half.at(r, c) = to_bf16(f32.at(r, c));
    }
  }
  Tensor of(DType x, ops::OpContext& ctx, const Weight& w) {
    if (x == DType::kF32) return f32.tensor();
    if (x == DType::kBF16) return half.tensor();
    const Tensor t = ops::quantised_matrix(codes.data(), f32.tensor().rows, f32.tensor().cols, ops::quant_block_for(w));
    EXPECT_TRUE(ops::quantise_rows(ctx, {.x = f32.tensor(), .out = t}).ok());
    return t;
  }
};

std::vector<DType> inputs_of(DType w) {
  if (w == DType::kI8 || w == DType::kF4) return {DType::kI8, DType::kF32};
  if (w == DType::kBF16 || w == DType::kF8E4M3) return {DType::kBF16, DType::kF32};
  return {DType::kF32};
}

// A weight of any panel format, in rows.
struct Stored {
  Stored(const CodedFormat& f, int64_t out, int64_t in, uint64_t seed) : format(f), rng(seed) {
    if (is_coded(f.dtype)) {
      coded.emplace_back(f, out, in, seed);
      weight = coded[0].weight();
      return;
    }
    plain.resize(static_cast<size_t>(out * in * dtype_bits(f.dtype) / 8));
    std::normal_distribution<float> normal(0, 0.1f);
    for (int64_t i = 0; i < out * in; ++i) {
      const float v = normal(rng);
      const bf16 b = to_bf16(v);
      const f16 h = testing::to_f16(v);
      const size_t at = static_cast<size_t>(i);
      if (f.dtype == DType::kF32) std::memcpy(&plain[4 * at], &v, 4);
      if (f.dtype == DType::kBF16) std::memcpy(&plain[2 * at], &b, 2);
      if (f.dtype == DType::kF16) std::memcpy(&plain[2 * at], &h, 2);
    }
    weight = Tensor::matrix(plain.data(), f.dtype, out, in);
  }
  CodedFormat format;
  std::mt19937_64 rng;
  std::vector<CodedWeight> coded;
  std::vector<uint8_t> plain;
  Weight weight;
};

float scale_of(const Weight& w, int64_t row, int64_t block) {
  return w.format ? scale_to_float(w.scales, w.format.scale_dtype, scale_index(w, row, 32 * block)) : 1.0f;
}
float code_of(Weight w, int64_t row, int64_t col) {
  w.format = {};
  return weight_value(w, row, col);
}
// Flushing of denormals, as the bf16 dot product has it.
float flushed(float v) { return std::fabs(v) < 0x1p-126f ? std::copysign(0.0f, v) : v; }

// One element by the order of context.h.
float expected(const Weight& w, DType x_type, const Tensor& x, int64_t r, int64_t out) {
  float acc = 0;
  for (int64_t b = 0; b < w.cols / 32; ++b) {
    const float s = scale_of(w, out, b);
    if (x_type == DType::kI8) {
      // Whole blocks: the integer sum runs over all that one scale is for.
      const int64_t block = ops::quant_block_of(x), i = 32 * b / block;
      if (32 * b % block != 0) continue;
      const auto* row = static_cast<const int8_t*>(x.data) + r * x.row_stride;
      float sx;
      std::memcpy(&sx, row + w.cols + 4 * i, 4);
      const bool twice = w.dtype == DType::kF4;
      int64_t dot = 0;
      for (int64_t k = block * i; k < std::min(w.cols, block * (i + 1)); ++k) dot += int64_t{row[k]} * static_cast<int64_t>(code_of(w, out, k) * (twice ? 2 : 1));
      acc = std::fma(static_cast<float>(dot), sx * (twice ? s * 0.5f : s), acc);
    } else if (x_type == DType::kBF16) {
      const auto* row = x.row<const bf16>(r);
      float dot = w.format ? 0 : acc;
      for (int64_t k = 32 * b; k < 32 * b + 32; k += 2) {
        dot = std::fma(to_float(row[k + 1]), code_of(w, out, k + 1), dot);
        dot = flushed(std::fma(to_float(row[k]), code_of(w, out, k), dot));
      }
      acc = w.format ? std::fma(dot, flushed(s), acc) : dot;
    } else {
      for (int64_t k = 32 * b; k < 32 * b + 32; ++k) acc = std::fma(x.row<const float>(r)[k], weight_value(w, out, k), acc);
    }
  }
  return acc;
}

TEST(PanelMatmul, FollowsTheOrderOfContextOnEveryInstructionSet) {
  auto runners = make_runners(2);
  for (const CodedFormat& format : panel_formats()) {
    for (const auto& [in, out] : {std::pair{32, 32}, {96, 64}, {1088, 160}}) {
      Stored stored(format, out, in, static_cast<uint64_t>(in));
      const PanelWeight panels(stored.weight);
      for (const int64_t rows : {1, 2, 3, 4, 5, 6, 7, 13, 17, 18, 19, 25, 101}) {
        if (in > 1000 && rows != 1 && rows != 5 && rows != 25) continue;
        Input input(rows, in, stored.rng);
        TestMatrix<float> y(rows, out, 0, 3), bias(1, out);
        bias.fill(stored.rng);
        for (const DType x_type : inputs_of(format.dtype)) {
          std::vector<float> first;
          for (size_t i = 0; i < runners.size(); ++i) {
            const Tensor x = input.of(x_type, runners[i]->context, panels.weight());
            std::fill(y.raw().begin(), y.raw().end(), NAN);
            const Status status =
                ops::matmul(runners[i]->context, {.x = x, .w = panels.weight(), .bias = bias.tensor().as<float>(), .y = y.tensor()});
            ASSERT_TRUE(status.ok()) << status.to_string();
            ASSERT_TRUE(y.untouched_outside());
            if (i == 0) {
              first = y.values();
              for (int64_t r = 0; r < rows; r += 1 + rows / 7) {
                for (int64_t n = 0; n < out; n += 1 + out / 9) {
                  ASSERT_EQ(y.at(r, n), expected(stored.weight, x_type, x, r, n) + bias.at(0, n)) << format.name << " " << r << ", " << n << " of " << in;
                }
              }
            }
            ASSERT_TRUE(all_same(first, y.values())) << format.name << " x " << dtype_name(x_type) << " " << kernel_tables()[i].name << " " << rows << " x "
                                                     << in << " x " << out;
          }
        }
      }
    }
  }
}

TEST(PanelMatmul, ARowDoesNotDependOnTheRowsBesideIt) {
  auto runners = make_runners(3);
  for (const CodedFormat& format : panel_formats()) {
    Stored stored(format, 96, 640, 7);
    const PanelWeight panels(stored.weight);
    const int64_t rows = 107;
    Input input(rows, 640, stored.rng);
    for (const auto& runner : runners) {
      for (const DType x_type : inputs_of(format.dtype)) {
        TestMatrix<float> all(rows, 96), few(rows, 96);
        const Tensor x = input.of(x_type, runner->context, panels.weight());
        ASSERT_TRUE(ops::matmul(runner->context, {.x = x, .w = panels.weight(), .y = all.tensor()}).ok());
        for (const auto& [first, count] : {std::pair{0, 1}, {1, 2}, {3, 7}, {10, 18}, {28, 30}, {58, 49}}) {
          ASSERT_TRUE(ops::matmul(runner->context, {.x = x.slice_rows(first, count), .w = panels.weight(), .y = few.tensor().slice_rows(first, count)}).ok());
        }
        ASSERT_TRUE(all_same(all.values(), few.values())) << format.name;
        // The same by gathering, added to what is there, from a slice of outputs.
        std::vector<int32_t> order(static_cast<size_t>(rows));
        for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>((i * 31) % order.size());
        TestMatrix<float> y(rows, 32);
        for (int64_t r = 0; r < rows; ++r) {
          for (int64_t n = 0; n < 32; ++n) y.at(r, n) = 1;
        }
        ASSERT_TRUE(ops::matmul(runner->context, {.x = x, .x_rows = order.data(), .w = panels.weight().slice_out(64, 32), .y = y.tensor(), .accumulate = true}).ok());
        for (int64_t r = 0; r < rows; ++r) {
          for (int64_t n = 0; n < 32; ++n) ASSERT_EQ(y.at(r, n), 1 + all.at(order[static_cast<size_t>(r)], 64 + n)) << format.name;
        }
      }
    }
  }
}

// Which way is taken is seen in the counters and in nothing else.
TEST(PanelMatmul, EveryPathGivesTheSameBitsAndIsCounted) {
  auto runners = make_runners(2);
  const auto names = ops::op_names();
  for (const CodedFormat& format : panel_formats()) {
    Stored stored(format, 64, 608, 5);
    const PanelWeight panels(stored.weight);
    for (const int64_t rows : {1, 2, 5, 7, 18, 19, 96, 101}) {
      Input input(rows, 608, stored.rng);
      for (const auto& runner : runners) {
        for (const DType x_type : inputs_of(format.dtype)) {
          const Tensor x = input.of(x_type, runner->context, panels.weight());
          TestMatrix<float> expected(rows, 64), found(rows, 64);
          ASSERT_TRUE(ops::matmul(runner->context, {.x = x, .w = panels.weight(), .y = expected.tensor()}).ok());
          for (int p = 0; p < ops::kNumPanelPaths; ++p) {
            ops::PanelPaths forced;
            for (auto& of_format : forced.of) std::fill(std::begin(of_format), std::end(of_format), static_cast<ops::PanelPath>(p));
            ops::FallbackCounters counters;
            ops::OpContext context = runner->context;
            context.fallbacks = &counters;
            context.paths = &forced;
            std::fill(found.raw().begin(), found.raw().end(), NAN);
            ASSERT_TRUE(ops::matmul(context, {.x = x, .w = panels.weight(), .y = found.tensor()}).ok());
            ASSERT_TRUE(all_same(expected.values(), found.values())) << format.name << " " << rows << " rows, path " << p;
            for (size_t i = 0; i < names.size(); ++i) {
              const bool is_this = names[i] == (x_type == DType::kI8 ? "matmul_panel_i8" : "matmul_panel_bf16") && x_type != DType::kF32;
              for (int q = 0; q < ops::kNumPanelPaths; ++q) {
                EXPECT_EQ(counters.paths[i][q].load(), is_this && p == q ? static_cast<uint64_t>(rows > 96 ? 2 : 1) : 0u) << names[i];
              }
            }
          }
        }
      }
    }
  }
}

TEST(PanelMatmul, SeveralProductsOfOneXAreThoseOfOneCallEach) {
  auto runners = make_runners(3);
  for (const CodedFormat& format : panel_formats()) {
    Stored q(format, 256, 256, 3), k(format, 128, 256, 4);
    const PanelWeight wq(q.weight), wk(k.weight);
    for (const int64_t rows : {1, 9, 40}) {
      Input input(rows, 256, q.rng);
      for (const auto& runner : runners) {
        for (const DType x_type : inputs_of(format.dtype)) {
          const Tensor x = input.of(x_type, runner->context, wq.weight());
          TestMatrix<float> alone(rows, 128), first(rows, 256), second(rows, 128), bias(1, 128);
          bias.fill(k.rng);
          ASSERT_TRUE(ops::matmul(runner->context, {.x = x, .w = wk.weight(), .bias = bias.tensor().as<float>(), .y = alone.tensor()}).ok());
          ops::MatmulArgs args{.x = x, .w = wq.weight(), .y = first.tensor(), .num_more = 1};
          args.more[0] = {.w = wk.weight(), .bias = bias.tensor().as<float>(), .y = second.tensor()};
          ASSERT_TRUE(ops::matmul(runner->context, args).ok());
          ASSERT_TRUE(all_same(alone.values(), second.values())) << format.name << " " << rows;
        }
      }
    }
  }
}

// E8M0 0 and 255, zero and odd fp32 scales, every code, NaN in x.
TEST(PanelMatmul, ExtremeScalesAndCodesAgreeEverywhere) {
  auto runners = make_runners();
  for (const CodedFormat& format : panel_formats()) {
    if (!is_coded(format.dtype)) continue;
    CodedWeight stored(format, 128, 256, 9);
    stored.every_code();
    if (format.format.scale_dtype == DType::kF32) std::memset(const_cast<void*>(stored.weight().scales), 0, 4);
    const PanelWeight panels(stored.weight());
    Input input(4, 256, stored.rng);
    for (int64_t c = 0; c < 256; ++c) input.f32.at(1, c) = 0, input.f32.at(2, c) *= 0x1p100f;
    input.f32.at(3, 40) = NAN;
    input.round();
    for (const DType x_type : inputs_of(format.dtype)) {
      std::vector<float> first;
      for (size_t i = 0; i < runners.size(); ++i) {
        const Tensor x = input.of(x_type, runners[i]->context, panels.weight());
        TestMatrix<float> y(4, 128);
        ASSERT_TRUE(ops::matmul(runners[i]->context, {.x = x, .w = panels.weight(), .y = y.tensor()}).ok());
        if (i == 0) {
          first = y.values();
          for (int64_t n = 0; n < 128; ++n) {
            EXPECT_TRUE(testing::same(y.at(0, n), expected(stored.weight(), x_type, x, 0, n))) << format.name << " " << n << ": " << y.at(0, n);
            EXPECT_TRUE(std::isnan(y.at(3, n)));
          }
        }
        ASSERT_TRUE(all_same(first, y.values())) << format.name << " x " << dtype_name(x_type) << " " << kernel_tables()[i].name;
      }
    }
  }
}

// Byte 0 of E8M0 is 2^-127, a denormal: as a factor of everything it must not vanish, become 2^-126, or be flushed. Scaling by powers of two is
// exact, so the product is that of scales 1, moved.
TEST(PanelMatmul, TheSmallestScaleIsADenormalInEveryKernel) {
  auto runners = make_runners();
  for (const CodedFormat& format : panel_formats()) {
    if (format.format.scale_dtype != DType::kF8E8M0) continue;
    CodedWeight smallest(format, 64, 256, 4), one(format, 64, 256, 4);
    for (int64_t i = 0; i < grid_bytes(format.format, 64, 256); ++i) smallest.set_scale(static_cast<size_t>(i), 0), one.set_scale(static_cast<size_t>(i), 127);
    std::mt19937_64 rng(6);
    Input input(5, 256, rng), large(5, 256, rng);
    for (int64_t r = 0; r < 5; ++r) {
      for (int64_t c = 0; c < 256; ++c) large.f32.at(r, c) = input.f32.at(r, c) * 0x1p90f;
    }
    large.round();
    const auto expect_moved = [&](const Weight& a, const Weight& b, DType x_type) {
      for (size_t i = 0; i < runners.size(); ++i) {
        TestMatrix<float> y(5, 64), expected(5, 64);
        const Tensor x = input.of(x_type, runners[i]->context, b), moved = large.of(x_type, runners[i]->context, b);
        ASSERT_TRUE(ops::matmul(runners[i]->context, {.x = moved, .w = a, .y = y.tensor()}).ok());
        ASSERT_TRUE(ops::matmul(runners[i]->context, {.x = x, .w = b, .y = expected.tensor()}).ok());
        for (int64_t r = 0; r < 5; ++r) {
          for (int64_t n = 0; n < 64; ++n) {
            ASSERT_TRUE(testing::same(y.at(r, n), expected.at(r, n) * 0x1p-37f)) << format.name << " x " << dtype_name(x_type) << " " << kernel_tables()[i].name << " " << y.at(r, n);
          }
        }
      }
    };
    expect_moved(smallest.weight(), one.weight(), DType::kF32);
    const PanelWeight a(smallest.weight()), b(one.weight());
    for (const DType x_type : inputs_of(format.dtype)) {
      if (x_type != DType::kBF16) expect_moved(a.weight(), b.weight(), x_type);  // weights become bf16 there, and its products take denormals as 0
    }
  }
}

// Relative error of one product on Gaussian data, by float64: what docs/performance.md states.
TEST(PanelMatmul, ErrorOfAQuantisedProductIsThatOfItsRounding) {
  auto runners = make_runners();
  ops::OpContext& ctx = runners.back()->context;
  const int64_t rows = 16, in = 1024, out = 96;
  for (const CodedFormat& format : panel_formats()) {
    Stored stored(format, out, in, 11);
    const PanelWeight panels(stored.weight);
    Input input(rows, in, stored.rng);
    for (const DType x_type : inputs_of(format.dtype)) {
      TestMatrix<float> y(rows, out);
      ASSERT_TRUE(ops::matmul(ctx, {.x = input.of(x_type, ctx, panels.weight()), .w = panels.weight(), .y = y.tensor()}).ok());
      double error = 0, norm = 0;
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t n = 0; n < out; ++n) {
          double dot = 0;
          for (int64_t k = 0; k < in; ++k) dot += input.f32.value(r, k) * double{weight_value(stored.weight, n, k)};
          error += (y.value(r, n) - dot) * (y.value(r, n) - dot), norm += dot * dot;
        }
      }
      const double relative = std::sqrt(error / norm);
      RecordProperty(format.name + " x " + std::string(dtype_name(x_type)), std::to_string(relative));
      // int8: amax of 32 Gaussians is some 2.1 sigma: steps of sigma / 60, error 1 / (60 sqrt 12); of 128, 2.7 sigma and sigma / 47. bf16: 2^-9 / sqrt 3 and less.
      const double bound = x_type == DType::kI8 ? (ops::quant_block_for(stored.weight) == 32 ? 0.006 : 0.0075) : x_type == DType::kBF16 ? 0.002 : 2e-6;
      EXPECT_LT(relative, bound) << format.name << " x " << dtype_name(x_type);
      EXPECT_GT(relative, bound / 40) << format.name << " x " << dtype_name(x_type) << ": too good to be what it says";
    }
  }
}

TEST(PanelMatmul, ZeroRowsAreFineAndOtherInputsAreNamed) {
  auto runners = make_runners();
  Stored stored({"int8", DType::kI8, {.scale_dtype = DType::kBF16, .block_rows = 1, .block_cols = 32}}, 32, 64, 1);
  const PanelWeight panels(stored.weight);
  TestMatrix<bf16> x(2, 64);
  TestMatrix<float> y(2, 32);
  EXPECT_TRUE(ops::matmul(runners[0]->context, {.x = ops::quantised_matrix(nullptr, 0, 64), .w = panels.weight(), .y = y.tensor().slice_rows(0, 0)}).ok());
  const Status status = ops::matmul(runners[0]->context, {.x = x.tensor(), .w = panels.weight(), .y = y.tensor()});
  ASSERT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.to_string().find("panels"), std::string::npos) << status.to_string();
  // Codes without their scales.
  std::vector<int8_t> codes(128);
  EXPECT_FALSE(ops::matmul(runners[0]->context, {.x = Tensor::matrix(codes.data(), DType::kI8, 2, 64), .w = panels.weight(), .y = y.tensor()}).ok());
}

}  // namespace
}  // namespace pointsman
