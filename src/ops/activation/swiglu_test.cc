// SPDX-License-Identifier: Apache-2.0
#include "ops/activation/swiglu.h"

#include <algorithm>
#include <numeric>

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
    args = {.x = x.tensor(), .act = act.tensor(), .out = out.tensor(),
            .experts = {{.w_gate = gate.tensor(), .w_up = up.tensor(), .w_down = down.tensor(), .rows = rows}}};
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
      alone.act = act.tensor(), alone.out = out.tensor(), alone.accumulate = false, alone.experts[0].rows = 1;
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
      args.x = args.x.slice_rows(r, 1), args.out = args.out.slice_rows(r, 1), args.experts[0].rows = 1;
      ASSERT_TRUE(ops::swiglu_ffn(three[i]->context, args).ok());
    }
    EXPECT_TRUE(all_same(expected, f.out.values())) << kernel_tables()[i].name;
  }
}

// A group against each expert alone, bit for bit: odd sizes, experts without rows, with one and with more rows than a block of the tile loop.
TYPED_TEST(SwigluOf, AGroupIsItsExpertsOneByOne) {
  using X = typename TypeParam::X;
  using W = typename TypeParam::W;
  auto runners = make_runners(3);
  const std::vector<std::vector<int64_t>> groups = {
      {0, 1, 0, 3}, {1, 1, 1, 1, 1, 1, 1, 1}, {2, 97, 0, 9, 200, 1}, {5, 0, 7, 1, 1, 12, 0, 0, 3, 1, 1, 2, 30, 1, 8, 0}};
  for (const auto& [hidden, intermediate] : {std::pair{48, 64}, {37, 19}, {1, 1}, {130, 257}}) {
    for (const std::vector<int64_t>& counts : groups) {
      const int64_t num_slots = std::accumulate(counts.begin(), counts.end(), int64_t{0}), x_total = 11;
      std::mt19937_64 rng(static_cast<uint64_t>(hidden) + counts.size());
      TestMatrix<X> x(x_total, hidden), act(num_slots, intermediate, 0, 3);
      TestMatrix<float> out(num_slots, hidden, 2, 1);
      std::vector<TestMatrix<W>> weights;
      TestMatrix<float> biases(3 * static_cast<int64_t>(counts.size()), std::max(hidden, intermediate));
      x.fill(rng), biases.fill(rng);
      std::vector<int32_t> from(static_cast<size_t>(num_slots)), to(from.size());
      for (int32_t& r : from) r = static_cast<int32_t>(rng() % static_cast<uint64_t>(x_total));
      std::iota(to.begin(), to.end(), 0);
      std::shuffle(to.begin(), to.end(), rng);
      ops::SwigluFfnArgs group{.x = x.tensor(), .x_rows = from.data(), .act = act.tensor(), .out = out.tensor(), .out_rows = to.data(),
                               .num_experts = static_cast<int>(counts.size())};
      for (size_t e = 0; e < counts.size(); ++e) {
        weights.emplace_back(intermediate, hidden).fill(rng, 0.3f);
        weights.emplace_back(intermediate, hidden).fill(rng, 0.3f);
        weights.emplace_back(hidden, intermediate).fill(rng, 0.3f);
      }
      // Experts in another order than their rows: as they come from the store.
      std::vector<size_t> order(counts.size());
      std::iota(order.begin(), order.end(), size_t{0});
      std::shuffle(order.begin(), order.end(), rng);
      for (size_t i = 0; i < order.size(); ++i) {
        const size_t e = order[i];
        const bool biased = e % 2 == 1;
        const auto bias = [&](int64_t part) { return biased ? biases.tensor().template row<const float>(3 * static_cast<int64_t>(e) + part) : nullptr; };
        group.experts[i] = {.w_gate = weights[3 * e].tensor(), .w_up = weights[3 * e + 1].tensor(), .w_down = weights[3 * e + 2].tensor(),
                            .gate_bias = bias(0), .up_bias = bias(1), .down_bias = bias(2),
                            .first = std::accumulate(counts.begin(), counts.begin() + static_cast<int64_t>(e), int64_t{0}), .rows = counts[e]};
      }
      for (size_t i = 0; i < runners.size(); ++i) {
        for (const bool accumulate : {false, true}) {
          std::mt19937_64 old(7);
          out.fill(old);
          group.accumulate = accumulate, group.act = act.tensor();
          for (int e = 0; e < group.num_experts; ++e) {
            ops::SwigluFfnArgs alone = group;
            alone.experts[0] = group.experts[e], alone.num_experts = 1;
            ASSERT_TRUE(ops::swiglu_ffn(runners[i]->context, alone).ok());
          }
          const auto expected = out.values();
          old.seed(7);
          out.fill(old);
          std::fill(act.raw().begin(), act.raw().end(), X{});
          const Status s = ops::swiglu_ffn(runners[i]->context, group);
          ASSERT_TRUE(s.ok()) << s.message();
          ASSERT_TRUE(all_same(expected, out.values())) << kernel_tables()[i].name << " " << hidden << " x " << intermediate << ", " << counts.size();
        }
      }
    }
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
    ASSERT_TRUE(ops::swiglu_ffn(runners[i]->context, {.x = x.tensor(), .act = act.tensor(), .out = out.tensor(),
                                                      .experts = {{.w_gate = w.tensor(), .w_up = up.tensor(), .w_down = w.tensor(), .rows = rows}}}).ok());
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

TEST(Swiglu, AGroupWithoutRowsTouchesNothing) {
  OpRunner run(kernel_tables()[0].table);
  ops::SwigluFfnArgs args;
  args.num_experts = ops::kMaxFfnExperts;
  EXPECT_TRUE(ops::swiglu_ffn(run.context, args).ok());
  args.num_experts = 0;
  EXPECT_TRUE(ops::swiglu_ffn(run.context, args).ok());
  args.num_experts = ops::kMaxFfnExperts + 1;
  EXPECT_EQ(ops::swiglu_ffn(run.context, args).code(), StatusCode::kInvalidArgument);
}

TEST(Swiglu, NamesTheExpertOfAGroupThatDoesNotFit) {
  OpRunner run(kernel_tables()[0].table);
  Ffn<float, float> f(3, 8, 4, 1);
  f.args.num_experts = 3;
  f.args.experts[0].rows = 1, f.args.experts[1] = f.args.experts[2] = f.args.experts[0];
  f.args.experts[1].first = 1, f.args.experts[2].first = 2;
  ASSERT_TRUE(ops::swiglu_ffn(run.context, f.args).ok());
  const auto refused = [&](const ops::SwigluFfnArgs& args) {
    const Status s = ops::swiglu_ffn(run.context, args);
    EXPECT_EQ(s.code(), StatusCode::kInvalidArgument);
    return s.message();
  };
  auto args = f.args;
  args.experts[2].first = 3;
  EXPECT_NE(refused(args).find("expert 2 of the group"), std::string::npos);
  args = f.args, args.experts[1].rows = -1;
  EXPECT_NE(refused(args).find("-1 rows"), std::string::npos);
  TestMatrix<bf16> mixed(4, 8), mixed_down(8, 4);
  args = f.args, args.experts[1].w_gate = args.experts[1].w_up = mixed.tensor(), args.experts[1].w_down = mixed_down.tensor();
  EXPECT_NE(refused(args).find("expert 1 of the group"), std::string::npos);
  args = f.args, args.act.rows = 2;
  EXPECT_NE(refused(args).find("act has 2 rows, the group 3"), std::string::npos);
}

TEST(Swiglu, NamesAMismatch) {
  OpRunner run(kernel_tables()[0].table);
  Ffn<float, float> f(2, 8, 4, 1);
  TestMatrix<float> wrong(4, 9);
  auto args = f.args;
  args.experts[0].w_up = wrong.tensor();
  const Status s = ops::swiglu_ffn(run.context, args);
  EXPECT_EQ(s.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(s.message().find("[4, 9]"), std::string::npos) << s.message();
  args = f.args, args.experts[0].rows = 3;
  EXPECT_EQ(ops::swiglu_ffn(run.context, args).code(), StatusCode::kInvalidArgument);
  TestMatrix<bf16> mixed(4, 8);
  args = f.args, args.experts[0].w_up = mixed.tensor();
  EXPECT_EQ(ops::swiglu_ffn(run.context, args).code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace pointsman
