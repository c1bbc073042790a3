// SPDX-License-Identifier: Apache-2.0
#include "ops/norm/rms_norm.h"

#include "support/ops_fixture.h"

namespace pointsman {
namespace {

using testing::all_same;
using testing::kernel_tables;
using testing::make_runners;
using testing::TestMatrix;

TEST(RmsNorm, IsCloseToDoublePrecisionAndTheSameOnEveryInstructionSet) {
  auto runners = make_runners();
  std::mt19937_64 rng(1);
  for (const int64_t cols : {1, 3, 15, 16, 17, 33, 100, 128, 515}) {
    for (const int64_t rows : {1, 2, 7}) {
      TestMatrix<float> x(rows, cols, 1, 3), weight(1, cols, 2), f32(rows, cols, 3, 1);
      TestMatrix<bf16> b16(rows, cols, 1, 5);
      x.fill(rng, 3), weight.fill(rng);
      std::vector<float> first;
      std::vector<bf16> first16;
      for (size_t i = 0; i < runners.size(); ++i) {
        ASSERT_TRUE(ops::rms_norm(runners[i]->context, {.x = x.tensor(), .weight = &weight.at(0, 0), .eps = 1e-5f, .out_f32 = f32.tensor(),
                                                        .out_bf16 = b16.tensor()}).ok());
        if (i == 0) first = f32.values(), first16 = b16.values();
        EXPECT_TRUE(all_same(first, f32.values())) << kernel_tables()[i].name << " " << rows << " x " << cols;
        EXPECT_TRUE(all_same(first16, b16.values())) << kernel_tables()[i].name;
        EXPECT_TRUE(f32.untouched_outside());
        EXPECT_TRUE(b16.untouched_outside());
      }
      for (int64_t r = 0; r < rows; ++r) {
        double sum = 0;
        for (int64_t c = 0; c < cols; ++c) sum += x.value(r, c) * x.value(r, c);
        const double scale = 1 / std::sqrt(sum / static_cast<double>(cols) + static_cast<double>(1e-5f));
        for (int64_t c = 0; c < cols; ++c) {
          const double exact = x.value(r, c) * scale * weight.value(0, c);
          ASSERT_NEAR(f32.value(r, c), exact, 8 * 0x1p-24 * std::fabs(exact) + 1e-30);
          ASSERT_TRUE(testing::same(b16.at(r, c), to_bf16(f32.at(r, c))));
        }
      }
    }
  }
}

TEST(RmsNorm, WorksInPlaceAndOnThreads) {
  auto one = make_runners(1), three = make_runners(3);
  std::mt19937_64 rng(2);
  TestMatrix<float> original(300, 70), weight(1, 70), out(300, 70);
  original.fill(rng), weight.fill(rng);
  for (size_t i = 0; i < one.size(); ++i) {
    ASSERT_TRUE(ops::rms_norm(one[i]->context, {.x = original.tensor(), .weight = &weight.at(0, 0), .out_f32 = out.tensor()}).ok());
    TestMatrix<float> x = original;
    ASSERT_TRUE(ops::rms_norm(three[i]->context, {.x = x.tensor(), .weight = &weight.at(0, 0), .out_f32 = x.tensor()}).ok());
    EXPECT_TRUE(all_same(out.values(), x.values())) << kernel_tables()[i].name;
  }
}

TEST(RmsNorm, NanStaysInItsRowAndAZeroRowIsZero) {
  auto runners = make_runners();
  std::mt19937_64 rng(3);
  for (size_t i = 0; i < runners.size(); ++i) {
    TestMatrix<float> x(3, 20), weight(1, 20), out(3, 20);
    x.fill(rng), weight.fill(rng);
    x.at(1, 19) = NAN;
    for (int64_t c = 0; c < 20; ++c) x.at(2, c) = 0;
    ASSERT_TRUE(ops::rms_norm(runners[i]->context, {.x = x.tensor(), .weight = &weight.at(0, 0), .out_f32 = out.tensor()}).ok());
    for (int64_t c = 0; c < 20; ++c) {
      EXPECT_TRUE(std::isfinite(out.at(0, c)));
      EXPECT_TRUE(std::isnan(out.at(1, c)));
      EXPECT_EQ(out.at(2, c), 0.0f);
    }
  }
}

TEST(RmsNorm, RefusesWhatDoesNotFit) {
  testing::OpRunner run(kernel_tables()[0].table);
  TestMatrix<float> x(2, 8), weight(1, 8), wrong(2, 9);
  EXPECT_EQ(ops::rms_norm(run.context, {.x = x.tensor(), .weight = &weight.at(0, 0), .out_f32 = wrong.tensor()}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(ops::rms_norm(run.context, {.x = x.tensor(), .out_f32 = x.tensor()}).code(), StatusCode::kInvalidArgument);
  auto none = x.tensor();
  none.rows = 0;
  EXPECT_TRUE(ops::rms_norm(run.context, {.x = none, .weight = &weight.at(0, 0), .out_f32 = none}).ok());
}

}  // namespace
}  // namespace pointsman
