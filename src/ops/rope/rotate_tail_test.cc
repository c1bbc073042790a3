// SPDX-License-Identifier: Apache-2.0
#include "ops/rope/rotate_tail.h"

#include <complex>

#include "support/ops_fixture.h"

namespace pointsman {
namespace {

using testing::all_same;
using testing::kernel_tables;
using testing::make_runners;
using testing::TestMatrix;

// cos and sin [tokens, half] of random angles.
void fill_angles(TestMatrix<float>& cos, TestMatrix<float>& sin, std::mt19937_64& rng) {
  cos.fill(rng, 4);
  for (int64_t t = 0; t < 6; ++t) {
    for (int64_t i = 0; i < 4; ++i) {
      const float angle = cos.at(t, i);
      cos.at(t, i) = std::cos(angle), sin.at(t, i) = std::sin(angle);
    }
  }
}

TEST(RotateTail, TurnsInterleavedPairsOfTheLastChannels) {
  auto one = make_runners(1), three = make_runners(3);
  std::mt19937_64 rng(1);
  TestMatrix<float> cos(6, 4), sin(6, 4), weight(1, 21);
  fill_angles(cos, sin, rng);
  weight.fill(rng);
  for (const ops::HeadNorm norm : {ops::HeadNorm::kNone, ops::HeadNorm::kUnweighted, ops::HeadNorm::kWeighted}) {
    for (const bool inverse : {false, true}) {
      TestMatrix<float> x(6, 3 * 21, 1, 2);
      x.fill(rng);
      std::vector<float> first;
      for (size_t i = 0; i < one.size(); ++i) {
        TestMatrix<float> out(6, 3 * 21, 2, 1), in_place = x;
        TestMatrix<bf16> narrow(6, 3 * 21, 1, 1);
        ops::RotateTailArgs args{.x = x.tensor(), .out = out.tensor(), .norm = norm,
                                 .weight = norm == ops::HeadNorm::kWeighted ? &weight.at(0, 0) : nullptr, .eps = 1e-6f, .cos = &cos.at(0, 0),
                                 .sin = &sin.at(0, 0), .inverse = inverse, .heads = 3, .head_dim = 21, .rotary_dim = 8};
        ASSERT_TRUE(ops::rotate_tail(one[i]->context, args).ok());
        args.out = narrow.tensor();
        ASSERT_TRUE(ops::rotate_tail(one[i]->context, args).ok());
        args.x = args.out = in_place.tensor();
        ASSERT_TRUE(ops::rotate_tail(three[i]->context, args).ok());
        if (i == 0) first = out.values();
        EXPECT_TRUE(all_same(first, out.values())) << kernel_tables()[i].name;
        EXPECT_TRUE(all_same(first, in_place.values()));
        EXPECT_TRUE(out.untouched_outside() && narrow.untouched_outside());
        for (int64_t t = 0; t < 6; ++t) {
          for (int64_t h = 0; h < 3; ++h) {
            double square = 0;
            for (int64_t c = 0; c < 21; ++c) square += x.value(t, h * 21 + c) * x.value(t, h * 21 + c);
            const double scale = norm == ops::HeadNorm::kNone ? 1 : 1 / std::sqrt(square / 21 + 1e-6);
            const auto normed = [&](int64_t c) {
              return x.value(t, h * 21 + c) * scale * (norm == ops::HeadNorm::kWeighted ? weight.value(0, c) : 1);
            };
            for (int64_t c = 0; c < 21; ++c) {
              double exact = normed(c);
              if (c >= 13) {
                const int64_t pair = (c - 13) / 2;
                std::complex<double> turn(cos.value(t, pair), sin.value(t, pair));
                if (inverse) turn = std::conj(turn);
                const std::complex<double> z = std::complex<double>(normed(13 + 2 * pair), normed(14 + 2 * pair)) * turn;
                exact = (c - 13) % 2 == 0 ? z.real() : z.imag();
              }
              ASSERT_NEAR(out.value(t, h * 21 + c), exact, 2e-6);
              ASSERT_TRUE(testing::same(narrow.at(t, h * 21 + c), to_bf16(out.at(t, h * 21 + c))));
            }
          }
        }
      }
    }
  }
}

TEST(RotateTail, BackwardsUndoesForwards) {
  testing::OpRunner run(kernel_tables()[0].table);
  std::mt19937_64 rng(2);
  TestMatrix<float> cos(6, 4), sin(6, 4), x(6, 16), y(6, 16);
  fill_angles(cos, sin, rng);
  x.fill(rng);
  ops::RotateTailArgs args{.x = x.tensor(), .out = y.tensor(), .cos = &cos.at(0, 0), .sin = &sin.at(0, 0), .heads = 2, .head_dim = 8, .rotary_dim = 8};
  ASSERT_TRUE(ops::rotate_tail(run.context, args).ok());
  args.x = args.out = y.tensor(), args.inverse = true;
  ASSERT_TRUE(ops::rotate_tail(run.context, args).ok());
  for (int64_t t = 0; t < 6; ++t) {
    for (int64_t c = 0; c < 16; ++c) EXPECT_NEAR(y.at(t, c), x.at(t, c), 1e-6);
  }
}

TEST(RotateTail, RefusesWhatDoesNotFit) {
  testing::OpRunner run(kernel_tables()[0].table);
  TestMatrix<float> x(2, 16), weight(1, 8);
  const auto code = [&](int64_t heads, int64_t rotary, ops::HeadNorm norm) {
    return ops::rotate_tail(run.context, {.x = x.tensor(), .out = x.tensor(), .norm = norm, .heads = heads, .head_dim = 8, .rotary_dim = rotary}).code();
  };
  EXPECT_EQ(code(3, 8, ops::HeadNorm::kNone), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(2, 10, ops::HeadNorm::kNone), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(2, 3, ops::HeadNorm::kNone), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(2, 4, ops::HeadNorm::kWeighted), StatusCode::kInvalidArgument);  // without a weight
}

}  // namespace
}  // namespace pointsman
