// SPDX-License-Identifier: Apache-2.0
#include "ops/activation/swiglu.h"

#include "support/ops_fixture.h"

namespace pointsman {
namespace {

using testing::all_same;
using testing::kernel_tables;
using testing::make_runners;
using testing::OpRunner;
using testing::TestMatrix;

template <class X, class W>
struct Ffn {
  Ffn(int64_t rows, int64_t hidden, int64_t intermediate, uint64_t seed, int64_t x_total = 0, int64_t out_total = 0, int64_t gap = 0)
      : rng(seed), x(std::max(rows, x_total), hidden, 1, gap), gate(intermediate, hidden, 1, gap), up(intermediate, hidden, 0, gap),
        down(hidden, intermediate, 3, gap), act(std::max<int64_t>(rows, 1), intermediate, 0, gap), out(std::max(rows, out_total), hidden, 2, gap) {
    x.fill(rng), gate.fill(rng, 0.3f), up.fill(rng, 0.3f), down.fill(rng, 0.3f), out.fill(rng);
    args = {.x = x.tensor(), .w_gate = gate.tensor(), .w_up = up.tensor(), .w_down = down.tensor(), .act = act.tensor(), .out = out.tensor(),
            .rows = rows};
  }
  std::mt19937_64 rng;
  TestMatrix<X> x;
  TestMatrix<W> gate, up, down;
  TestMatrix<X> act;
  TestMatrix<float> out;
  ops::SwigluFfnArgs args;
};

template <class T>
class SwigluOf : public ::testing::Test {};
template <class X_, class W_>
struct Pair {
  using X = X_;
  using W = W_;
};
using Pairs = ::testing::Types<Pair<float, float>, Pair<float, bf16>, Pair<float, f16>, Pair<bf16, bf16>>;
TYPED_TEST_SUITE(SwigluOf, Pairs);

TYPED_TEST(SwigluOf, IsCloseToDoublePrecisionAndTheSameOnEveryInstructionSet) {
  using X = typename TypeParam::X;
  auto runners = make_runners();
  for (const auto& [rows, hidden, intermediate] :
       {std::tuple{1, 64, 48}, {2, 33, 17}, {5, 100, 31}, {6, 16, 67}, {7, 48, 1}, {9, 1, 40}, {65, 32, 130}}) {
    Ffn<X, typename TypeParam::W> f(rows, hidden, intermediate, 3, 0, 0, rows % 3);
    std::vector<X> first_act;
    std::vector<float> first_out;
    for (size_t i = 0; i < runners.size(); ++i) {
      ASSERT_TRUE(ops::swiglu_ffn(runners[i]->context, f.args).ok());
      if (i == 0) first_act = f.act.values(), first_out = f.out.values();
      ASSERT_TRUE(all_same(first_act, f.act.values())) << kernel_tables()[i].name << " " << rows << " x " << hidden << " x " << intermediate;
      ASSERT_TRUE(all_same(first_out, f.out.values())) << kernel_tables()[i].name;
      ASSERT_TRUE(f.act.untouched_outside());
      ASSERT_TRUE(f.out.untouched_outside());
    }
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t i = 0; i < intermediate; ++i) {
        double g = 0, u = 0, size = 0;
        for (int64_t k = 0; k < hidden; ++k) {
          g += f.x.value(r, k) * f.gate.value(i, k);
          u += f.x.value(r, k) * f.up.value(i, k);
          size += std::fabs(f.x.value(r, k)) * (std::fabs(f.gate.value(i, k)) + std::fabs(f.up.value(i, k)));
        }
        const double exact = g / (1 + std::exp(-g)) * u;
        // Rounding of the dot products, times the derivatives; SiLU to a few ulp; one rounding to bf16.
        const double tolerance = 0x1p-20 * size * (1 + std::fabs(g) + std::fabs(u)) + (std::is_same_v<X, bf16> ? 0x1p-8 : 0x1p-21) * std::fabs(exact);
        ASSERT_NEAR(f.act.value(r, i), exact, tolerance) << rows << " " << r << " " << i;
      }
      for (int64_t h = 0; h < hidden; ++h) {
        double exact = 0, size = 0;
        for (int64_t i = 0; i < intermediate; ++i) {
          exact += f.act.value(r, i) * f.down.value(h, i);
          size += std::fabs(f.act.value(r, i) * f.down.value(h, i));
        }
        ASSERT_NEAR(f.out.value(r, h), exact, 16 * 0x1p-24 * size + 1e-30);
      }
    }
  }
}

TYPED_TEST(SwigluOf, GathersScattersAndAccumulates) {
  using X = typename TypeParam::X;
  auto runners = make_runners();
  const std::vector<int32_t> from = {4, 4, 0, 8, 2, 6, 1}, to = {9, 1, 0, 3, 8, 5, 2};
  const int64_t rows = static_cast<int64_t>(from.size());
  for (size_t i = 0; i < runners.size(); ++i) {
    Ffn<X, typename TypeParam::W> f(rows, 40, 24, 5, 10, 11);
    const auto before = f.out.values();
    f.args.x_rows = from.data(), f.args.out_rows = to.data(), f.args.accumulate = true;
    ASSERT_TRUE(ops::swiglu_ffn(runners[i]->context, f.args).ok());
    std::vector<bool> written(11, false);
    for (int64_t r = 0; r < rows; ++r) {
      // The row alone, without gather, scatter and accumulation.
      TestMatrix<X> act(1, 24);
      TestMatrix<float> out(1, 40);
      ops::SwigluFfnArgs alone = f.args;
      alone.x = alone.x.slice_rows(from[static_cast<size_t>(r)], 1), alone.x_rows = nullptr, alone.out_rows = nullptr;
      alone.act = act.tensor(), alone.out = out.tensor(), alone.accumulate = false, alone.rows = 1;
      ASSERT_TRUE(ops::swiglu_ffn(runners[i]->context, alone).ok());
      const int64_t target = to[static_cast<size_t>(r)];
      written[static_cast<size_t>(target)] = true;
      for (int64_t h = 0; h < 40; ++h) {
        ASSERT_TRUE(testing::same(f.out.at(target, h), before[static_cast<size_t>(target * 40 + h)] + out.at(0, h))) << kernel_tables()[i].name;
      }
    }
    for (int64_t r = 0; r < 11; ++r) {
      for (int64_t h = 0; h < 40 && !written[static_cast<size_t>(r)]; ++h) ASSERT_EQ(f.out.at(r, h), before[static_cast<size_t>(r * 40 + h)]);
    }
  }
}

TYPED_TEST(SwigluOf, ThreadsAndBatchLeaveNoTrace) {
  auto one = make_runners(1), three = make_runners(3);
  const int64_t rows = 150;
  Ffn<typename TypeParam::X, typename TypeParam::W> f(rows, 48, 200, 6);
  for (size_t i = 0; i < one.size(); ++i) {
    ASSERT_TRUE(ops::swiglu_ffn(one[i]->context, f.args).ok());
    const auto expected = f.out.values();
    std::fill(f.out.raw().begin(), f.out.raw().end(), NAN);
    ASSERT_TRUE(ops::swiglu_ffn(three[i]->context, f.args).ok());
    EXPECT_TRUE(all_same(expected, f.out.values())) << kernel_tables()[i].name;
    for (const int64_t r : {0, 7, 95, 96, 149}) {
      auto args = f.args;
      args.x = args.x.slice_rows(r, 1), args.out = args.out.slice_rows(r, 1), args.rows = 1;
      ASSERT_TRUE(ops::swiglu_ffn(three[i]->context, args).ok());
    }
    EXPECT_TRUE(all_same(expected, f.out.values())) << kernel_tables()[i].name;
  }
}

// One hidden channel and identity weights turn the op into act = silu(x) * x, so that the exponential can be looked at.
TEST(Swiglu, SiluIsAccurateFromEndToEndOfTheRange) {
  auto runners = make_runners();
  std::vector<float> points = {0.0f, -0.0f, 1e-30f, -1e-30f, 88.0f, 89.5f, 1e10f, 1e20f};
  for (float v = -104; v <= 104; v += 0.0371f) points.push_back(v);
  const int64_t rows = static_cast<int64_t>(points.size());
  TestMatrix<float> x(rows, 1), w(1, 1), up(1, 1), act(rows, 1), out(rows, 1);
  for (int64_t r = 0; r < rows; ++r) x.at(r, 0) = points[static_cast<size_t>(r)];
  w.at(0, 0) = 1;
  up.at(0, 0) = 0x1p-40f;  // act stays finite
  for (size_t i = 0; i < runners.size(); ++i) {
    ASSERT_TRUE(ops::swiglu_ffn(runners[i]->context, {.x = x.tensor(), .w_gate = w.tensor(), .w_up = up.tensor(), .w_down = w.tensor(),
                                                      .act = act.tensor(), .out = out.tensor(), .rows = rows}).ok());
    double worst = 0;
    for (int64_t r = 0; r < rows; ++r) {
      const double v = points[static_cast<size_t>(r)], exact = v / (1 + std::exp(-v)) * (v * 0x1p-40);
      ASSERT_FALSE(std::isnan(act.at(r, 0))) << v;
      // Below -88.7 exp(-x) overflows and the result is 0 instead of a denormal.
      if (std::fabs(exact) > 1e-30 && v > -88) worst = std::max(worst, std::fabs(act.at(r, 0) - exact) / std::fabs(exact));
      else EXPECT_NEAR(act.at(r, 0), exact, 1e-36) << v;
    }
    EXPECT_LT(worst, 3 * 0x1p-23) << kernel_tables()[i].name;  // exp 2 ulp at most, add, divide, multiply: half each
  }
}

TEST(Swiglu, ZeroRowsTouchNothing) {
  OpRunner run(kernel_tables()[0].table);
  ops::SwigluFfnArgs args;  // no memory at all
  EXPECT_TRUE(ops::swiglu_ffn(run.context, args).ok());
}

TEST(Swiglu, NamesAMismatch) {
  OpRunner run(kernel_tables()[0].table);
  Ffn<float, float> f(2, 8, 4, 1);
  TestMatrix<float> wrong(4, 9);
  auto args = f.args;
  args.w_up = wrong.tensor();
  const Status s = ops::swiglu_ffn(run.context, args);
  EXPECT_EQ(s.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(s.message().find("[4, 9]"), std::string::npos) << s.message();
  args = f.args, args.rows = 3;
  EXPECT_EQ(ops::swiglu_ffn(run.context, args).code(), StatusCode::kInvalidArgument);
  TestMatrix<bf16> mixed(4, 8);
  args = f.args, args.w_up = mixed.tensor();
  EXPECT_EQ(ops::swiglu_ffn(run.context, args).code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace pointsman
