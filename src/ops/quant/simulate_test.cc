// SPDX-License-Identifier: Apache-2.0
#include "ops/quant/simulate.h"

#include "ops/matmul/matmul.h"
#include "support/golden.h"
#include "support/ops_fixture.h"
#include "tensor/block_format.h"

namespace pointsman {
namespace {

using ops::SimulatedCode;
using testing::all_same;
using testing::kernel_tables;
using testing::make_runners;
using testing::TestMatrix;

std::vector<float> simulated(testing::OpRunner& run, std::vector<float> x, SimulatedCode code, int64_t block, int64_t hadamard = 0) {
  const Tensor t = Tensor::matrix(x.data(), DType::kF32, 1, static_cast<int64_t>(x.size()));
  EXPECT_TRUE(ops::simulate(run.context, {.x = t, .out = t, .code = code, .block = block, .hadamard = hadamard}).ok());
  return x;
}

// Unit vectors: a block whose largest value is exactly the format's largest has scale 1, so the codes show.
TEST(Simulate, TiesGoToTheEvenCode) {
  testing::OpRunner run(kernel_tables()[0].table);
  EXPECT_EQ(simulated(run, {6, 0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5, -0.25f, -0.75f, -2.5f, -5, 0.26f, 5.1f}, SimulatedCode::kE2M1, 32),
            (std::vector<float>{6, 0, 1, 1, 2, 2, 4, 4, -0.0f, -1, -2, -4, 0.5f, 6}));
  EXPECT_EQ(simulated(run, {448, 17, 19, 1.0625f, 1.1875f, 0x1p-10f, 0x3p-10f, -17, 0x1p-9f, 0}, SimulatedCode::kE4M3, 128),
            (std::vector<float>{448, 16, 20, 1, 1.25f, 0, 0x1p-8f, -16, 0x1p-9f, 0}));
}

TEST(Simulate, ScalesArePowersOfTwoThatNothingExceeds) {
  testing::OpRunner run(kernel_tables()[0].table);
  // 449 needs scale 2: 449 is 448 in bf16 steps of 2 (450), whose half is 225 -> 224.
  EXPECT_EQ(simulated(run, {450, 1}, SimulatedCode::kE4M3, 128), (std::vector<float>{448, 1}));
  // The OCP recipe would take scale 1 for 7 and saturate at 6; here it is 2.
  EXPECT_EQ(simulated(run, {7, 1, 3}, SimulatedCode::kE2M1, 32), (std::vector<float>{8, 1, 3}));
  // Below the floor of amax the scale is that of 1e-4: 2^-22, so 1e-7 is 0.42 steps of 2^-9 * 2^-22 = 4.7e-10 ... exactly representable ones stay.
  EXPECT_EQ(simulated(run, {0x1p-31f, 0x1p-32f, 0}, SimulatedCode::kE4M3, 128), (std::vector<float>{0x1p-31f, 0, 0}));
  // Each block has its own.
  EXPECT_EQ(simulated(run, {448, 0.01f, 0.01171875f, 0.01f}, SimulatedCode::kE4M3, 2)[2], 0.01171875f);
}

// Every value that comes out is a code times a power of two, the nearest one, and the block's largest is not moved by more than half a step.
TEST(Simulate, ValuesAreTheNearestCodes) {
  auto runners = make_runners(3);
  std::mt19937_64 rng(1);
  for (const SimulatedCode code : {SimulatedCode::kE4M3, SimulatedCode::kE2M1, SimulatedCode::kBf16}) {
    for (const auto& [cols, block, num] : {std::tuple{300, 128, 0}, {100, 32, 64}, {512, 64, 448}, {7, 32, 0}}) {
      TestMatrix<float> x(9, cols, 1, 2);
      x.fill(rng);
      for (int64_t r = 0; r < 9; ++r) {
        for (int64_t c = 0; c < cols; ++c) x.at(r, c) *= std::exp2(static_cast<float>(3 * r - 12));
      }
      std::vector<float> first;
      for (size_t i = 0; i < runners.size(); ++i) {
        TestMatrix<float> out(9, cols, 2, 1);
        TestMatrix<bf16> narrow(9, cols, 1, 1);
        ops::SimulateArgs args{.x = x.tensor(), .out = out.tensor(), .code = code, .block = block, .num_cols = num};
        ASSERT_TRUE(ops::simulate(runners[i]->context, args).ok());
        args.out = narrow.tensor();
        ASSERT_TRUE(ops::simulate(runners[i]->context, args).ok());
        if (i == 0) first = out.values();
        EXPECT_TRUE(all_same(first, out.values())) << kernel_tables()[i].name;
        EXPECT_TRUE(out.untouched_outside() && narrow.untouched_outside());
        const int64_t used = num == 0 ? cols : num;
        for (int64_t r = 0; r < 9; ++r) {
          for (int64_t c = used; c < cols; ++c) ASSERT_EQ(out.at(r, c), x.at(r, c)) << "others are copied";
          for (int64_t b = 0; b < used; b += block) {
            const int64_t end = std::min<int64_t>(used, b + block);
            float amax = code == SimulatedCode::kE4M3 ? 1e-4f : 0x6p-126f;
            for (int64_t c = b; c < end; ++c) amax = std::max(amax, std::fabs(to_float(to_bf16(x.at(r, c)))));
            const float largest = code == SimulatedCode::kE4M3 ? 448 : 6;
            const float scale = std::exp2(std::ceil(std::log2(amax / largest)));
            for (int64_t c = b; c < end; ++c) {
              const float v = to_float(to_bf16(x.at(r, c)));
              ASSERT_TRUE(testing::same(narrow.at(r, c), to_bf16(out.at(r, c)))) << "exact in bf16";
              if (code == SimulatedCode::kBf16) {
                ASSERT_EQ(out.at(r, c), v);
                continue;
              }
              float best = INFINITY;
              for (int k = 0; k < (code == SimulatedCode::kE4M3 ? 256 : 16); ++k) {
                const float value = (code == SimulatedCode::kE4M3 ? e4m3_to_float(static_cast<uint8_t>(k)) : e2m1_to_float(static_cast<uint8_t>(k))) * scale;
                if (std::fabs(value - v) < std::fabs(best - v)) best = value;
              }
              ASSERT_EQ(std::fabs(out.at(r, c) - v), std::fabs(best - v)) << v << " became " << out.at(r, c);
            }
          }
        }
      }
    }
  }
}

// torch's casts, by both rules; and a product with an FP8 weight equals the vendor's, which sums codes and multiplies by the scales of each
// block afterwards, but for rounding.
TEST(Simulate, ActivationsOfDeepseekV3EqualTorch) {
  const testing::GoldenFile golden = testing::read_golden(testing::source_path("tests/golden/formats/tables.safetensors"));
  auto runners = make_runners(2);
  for (const auto& [rule, name] : {std::pair{ops::SimulatedScale::kFp32, "act_fp32"}, {ops::SimulatedScale::kPowerOfTwo, "act_ue8m0"}}) {
    std::vector<float> x = golden.at("act_x").f32, out(x.size()), scales = golden.at("act_w_scales").f32, y(24 * 20);
    std::vector<uint8_t> codes;
    for (const int32_t c : golden.at("act_w_codes").i32) codes.push_back(static_cast<uint8_t>(c));
    Weight w = Tensor::matrix(codes.data(), DType::kF8E4M3, 20, 300);
    w.scales = scales.data();
    w.format = {.scale_dtype = DType::kF32, .block_rows = 128, .block_cols = 128};
    const std::vector<float>& expected = golden.at(name).f32;
    const std::vector<float>& product = golden.at(std::string(name) + "_product").f32;
    for (size_t i = 0; i < runners.size(); ++i) {
      const Tensor in = Tensor::matrix(x.data(), DType::kF32, 24, 300), quantised = Tensor::matrix(out.data(), DType::kF32, 24, 300);
      ASSERT_TRUE(ops::simulate(runners[i]->context, {.x = in, .out = quantised, .code = SimulatedCode::kE4M3, .scale = rule, .block = 128}).ok());
      EXPECT_TRUE(all_same(expected, out)) << name << " " << kernel_tables()[i].name;
      ASSERT_TRUE(ops::matmul(runners[i]->context, {.x = quantised, .w = w, .y = Tensor::matrix(y.data(), DType::kF32, 24, 20)}).ok());
      for (int64_t r = 0; r < 24; ++r) {
        double size = 0;
        for (int64_t c = 0; c < 20; ++c) size = std::max(size, std::fabs(double{product[static_cast<size_t>(r * 20 + c)]}));
        for (int64_t c = 0; c < 20; ++c) EXPECT_NEAR(y[static_cast<size_t>(r * 20 + c)], product[static_cast<size_t>(r * 20 + c)], 2e-6 * size);
      }
    }
  }
}

// The rotation is its own inverse, and keeps dot products: it only changes what is quantised.
TEST(Simulate, HadamardIsOrthogonal) {
  testing::OpRunner run(kernel_tables()[0].table);
  // Column k of Sylvester's matrix: signs by the parity of the common bits.
  for (const int64_t n : {2, 8, 128}) {
    for (const int64_t k : {int64_t{0}, int64_t{1}, n - 1}) {
      std::vector<float> unit(static_cast<size_t>(n), 0.0f);
      unit[static_cast<size_t>(k)] = 1;
      const auto column = simulated(run, unit, SimulatedCode::kBf16, 0, n);
      for (int64_t i = 0; i < n; ++i) {
        const float sign = __builtin_parityll(static_cast<unsigned long long>(i & k)) != 0 ? -1.0f : 1.0f;
        EXPECT_EQ(column[static_cast<size_t>(i)], to_float(to_bf16(sign / std::sqrt(static_cast<float>(n)))));
      }
    }
  }
  std::mt19937_64 rng(2);
  std::normal_distribution<float> normal;
  std::vector<float> a(128), b(128);
  for (float& v : a) v = to_float(to_bf16(normal(rng)));
  for (float& v : b) v = to_float(to_bf16(normal(rng)));
  const auto ha = simulated(run, a, SimulatedCode::kBf16, 0, 128), hb = simulated(run, b, SimulatedCode::kBf16, 0, 128);
  const auto back = simulated(run, ha, SimulatedCode::kBf16, 0, 128);
  double dot = 0, rotated = 0;
  for (size_t i = 0; i < 128; ++i) {
    EXPECT_NEAR(back[i], a[i], 0.03);
    dot += double{a[i]} * double{b[i]}, rotated += double{ha[i]} * double{hb[i]};
  }
  EXPECT_NEAR(dot, rotated, 0.15);
}

TEST(Simulate, RefusesWhatDoesNotFit) {
  testing::OpRunner run(kernel_tables()[0].table);
  TestMatrix<float> x(2, 24), y(2, 25);
  const auto code = [&](ops::SimulateArgs a) { return ops::simulate(run.context, a).code(); };
  EXPECT_EQ(code({.x = x.tensor(), .out = y.tensor()}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.x = x.tensor(), .out = x.tensor(), .code = SimulatedCode::kE4M3}), StatusCode::kInvalidArgument);  // no block
  TestMatrix<bf16> narrow(2, 24);  // values of fp32 scales are not exact in bf16
  EXPECT_EQ(code({.x = x.tensor(), .out = narrow.tensor(), .code = SimulatedCode::kE4M3, .scale = ops::SimulatedScale::kFp32, .block = 8}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.x = x.tensor(), .out = x.tensor(), .hadamard = 24}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.x = x.tensor(), .out = x.tensor(), .hadamard = 16}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.x = x.tensor(), .out = x.tensor(), .num_cols = 25}), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace pointsman
