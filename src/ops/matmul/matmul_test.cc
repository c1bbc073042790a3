// SPDX-License-Identifier: Apache-2.0
#include "ops/matmul/matmul.h"

#include <cfloat>

#include "support/ops_fixture.h"

namespace pointsman {
namespace {

using testing::all_same;
using testing::kernel_tables;
using testing::make_runners;
using testing::narrow;
using testing::OpRunner;
using testing::TestMatrix;
using testing::widen;

constexpr int64_t kInner[] = {1, 3, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 128, 257};

// The contract of ops/context.h, written out: sixteen lanes, then a tree. Own code, so that a mistake shared by all kernels shows.
float add_tree(std::vector<float> lanes) {
  for (size_t half = 8; half > 0; half /= 2) {
    for (size_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes[0];
}
template <class W>
float canonical_dot(const TestMatrix<float>& x, int64_t row, const TestMatrix<W>& w, int64_t out, int64_t k) {
  std::vector<float> lanes(16, 0.0f);
  const int64_t padded = (k + 15) / 16 * 16;
  for (int64_t i = 0; i < padded; ++i) {
    float& lane = lanes[static_cast<size_t>(i % 16)];
    lane = i < k ? std::fma(x.at(row, i), widen(w.at(out, i)), lane) : lane + 0.0f;
  }
  return add_tree(lanes);
}
float canonical_dot(const TestMatrix<bf16>& x, int64_t row, const TestMatrix<bf16>& w, int64_t out, int64_t k) {
  std::vector<float> lanes(16, 0.0f);
  const int64_t padded = (k + 31) / 32 * 32;
  for (int64_t i = 0; i < padded; i += 2) {
    float& lane = lanes[static_cast<size_t>(i / 2 % 16)];
    for (const int64_t j : {i + 1, i}) lane = j < k ? std::fma(widen(x.at(row, j)), widen(w.at(out, j)), lane) : lane + 0.0f;
  }
  return add_tree(lanes);
}

template <class X, class W>
struct Problem {
  Problem(int64_t rows, int64_t in, int64_t out, uint64_t seed, int64_t offset = 0, int64_t gap = 0)
      : rng(seed), x(rows, in, offset, gap), w(out, in, offset, gap), bias(1, out), y(rows, out, offset, gap) {
    x.fill(rng), w.fill(rng), bias.fill(rng), y.fill(rng);
  }
  ops::MatmulArgs args() { return {.x = x.tensor(), .w = w.tensor(), .y = y.tensor()}; }
  std::mt19937_64 rng;
  TestMatrix<X> x;
  TestMatrix<W> w;
  TestMatrix<float> bias, y;
};

template <class T>
class MatmulOf : public ::testing::Test {};
template <class X_, class W_>
struct Pair {
  using X = X_;
  using W = W_;
};
using Pairs = ::testing::Types<Pair<float, float>, Pair<float, bf16>, Pair<float, f16>, Pair<bf16, bf16>>;
TYPED_TEST_SUITE(MatmulOf, Pairs);

TYPED_TEST(MatmulOf, EveryElementIsTheCanonicalDotProductOnEveryInstructionSet) {
  auto runners = make_runners();
  for (const int64_t in : kInner) {
    for (const int64_t rows : {1, 2, 5, 6, 7, 8, 9, 13}) {
      const int64_t out = 1 + (in * 7 + rows * 11) % 67;
      Problem<typename TypeParam::X, typename TypeParam::W> p(rows, in, out, static_cast<uint64_t>(in * 100 + rows), in % 3, rows % 4);
      for (size_t i = 0; i < runners.size(); ++i) {
        std::fill(p.y.raw().begin(), p.y.raw().end(), NAN);
        ASSERT_TRUE(ops::matmul(runners[i]->context, p.args()).ok());
        for (int64_t r = 0; r < rows; ++r) {
          for (int64_t o = 0; o < out; ++o) {
            ASSERT_TRUE(testing::same(p.y.at(r, o), canonical_dot(p.x, r, p.w, o, in)))
                << kernel_tables()[i].name << " [" << r << ", " << o << "] of " << rows << " x " << out << ", in " << in;
          }
        }
        ASSERT_TRUE(p.y.untouched_outside()) << kernel_tables()[i].name;
      }
    }
  }
}

TYPED_TEST(MatmulOf, IsCloseToDoublePrecision) {
  auto runners = make_runners();
  Problem<typename TypeParam::X, typename TypeParam::W> p(7, 515, 21, 5);
  for (size_t i = 0; i < runners.size(); ++i) {
    ASSERT_TRUE(ops::matmul(runners[i]->context, p.args()).ok());
    for (int64_t r = 0; r < 7; ++r) {
      for (int64_t o = 0; o < 21; ++o) {
        double exact = 0, magnitude = 0;
        for (int64_t k = 0; k < 515; ++k) {
          exact += p.x.value(r, k) * p.w.value(o, k);
          magnitude += std::fabs(p.x.value(r, k) * p.w.value(o, k));
        }
        // 33 roundings per lane and 4 in the tree (twice as many products per lane in bf16 make half as many steps of two).
        EXPECT_NEAR(p.y.at(r, o), exact, 37 * 0x1p-24 * magnitude) << kernel_tables()[i].name;
      }
    }
  }
}

TYPED_TEST(MatmulOf, ARowIsTheSameAloneAndAmongMany) {
  auto runners = make_runners();
  const int64_t rows = 130, in = 96, out = 70;
  Problem<typename TypeParam::X, typename TypeParam::W> p(rows, in, out, 9);
  for (size_t i = 0; i < runners.size(); ++i) {
    ASSERT_TRUE(ops::matmul(runners[i]->context, p.args()).ok());
    for (const int64_t r : {0, 1, 5, 63, 64, 65, 95, 96, 97, 129}) {
      TestMatrix<float> alone(1, out);
      ops::MatmulArgs args = p.args();
      args.x = args.x.slice_rows(r, 1);
      args.y = alone.tensor();
      ASSERT_TRUE(ops::matmul(runners[i]->context, args).ok());
      for (int64_t o = 0; o < out; ++o) ASSERT_TRUE(testing::same(alone.at(0, o), p.y.at(r, o))) << kernel_tables()[i].name << " row " << r;
    }
  }
}

TYPED_TEST(MatmulOf, ThreadsLeaveNoTrace) {
  auto one = make_runners(1), three = make_runners(3);
  for (const auto& [rows, in, out] : {std::tuple{1, 512, 700}, {7, 64, 300}, {65, 128, 200}, {200, 40, 130}}) {
    Problem<typename TypeParam::X, typename TypeParam::W> p(rows, in, out, 3);
    for (size_t i = 0; i < one.size(); ++i) {
      ASSERT_TRUE(ops::matmul(one[i]->context, p.args()).ok());
      const auto expected = p.y.values();
      std::fill(p.y.raw().begin(), p.y.raw().end(), NAN);
      ASSERT_TRUE(ops::matmul(three[i]->context, p.args()).ok());
      EXPECT_TRUE(all_same(expected, p.y.values())) << kernel_tables()[i].name;
    }
  }
}

TYPED_TEST(MatmulOf, BiasThenAccumulationAreOneRoundingEach) {
  auto runners = make_runners();
  const int64_t rows = 9, in = 50, out = 37;
  Problem<typename TypeParam::X, typename TypeParam::W> p(rows, in, out, 4, 1, 2);
  const auto before = p.y.values();
  for (size_t i = 0; i < runners.size(); ++i) {
    for (const bool with_bias : {false, true}) {
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t o = 0; o < out; ++o) p.y.at(r, o) = before[static_cast<size_t>(r * out + o)];
      }
      ops::MatmulArgs args = p.args();
      args.accumulate = true;
      if (with_bias) args.bias = &p.bias.at(0, 0);
      ASSERT_TRUE(ops::matmul(runners[i]->context, args).ok());
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t o = 0; o < out; ++o) {
          float v = canonical_dot(p.x, r, p.w, o, in);
          if (with_bias) v = v + p.bias.at(0, o);
          v = before[static_cast<size_t>(r * out + o)] + v;
          ASSERT_TRUE(testing::same(p.y.at(r, o), v)) << kernel_tables()[i].name;
        }
      }
      ASSERT_TRUE(p.y.untouched_outside());
    }
  }
}

TYPED_TEST(MatmulOf, GathersRowsOfX) {
  auto runners = make_runners();
  Problem<typename TypeParam::X, typename TypeParam::W> p(11, 33, 19, 6);
  const std::vector<int32_t> rows = {3, 3, 10, 0, 7, 1, 10, 2};
  TestMatrix<float> y(static_cast<int64_t>(rows.size()), 19);
  for (size_t i = 0; i < runners.size(); ++i) {
    ops::MatmulArgs args = p.args();
    args.x_rows = rows.data();
    args.y = y.tensor();
    ASSERT_TRUE(ops::matmul(runners[i]->context, args).ok());
    for (size_t r = 0; r < rows.size(); ++r) {
      for (int64_t o = 0; o < 19; ++o) {
        ASSERT_TRUE(testing::same(y.at(static_cast<int64_t>(r), o), canonical_dot(p.x, rows[r], p.w, o, 33))) << kernel_tables()[i].name;
      }
    }
  }
}

TYPED_TEST(MatmulOf, InfinityAndNanReachTheirRowsAndColumnsOnly) {
  auto runners = make_runners();
  const int64_t rows = 13, in = 40, out = 23;
  for (const float special : {NAN, INFINITY, -INFINITY}) {
    Problem<typename TypeParam::X, typename TypeParam::W> p(rows, in, out, 8);
    p.x.at(4, 39) = narrow<typename TypeParam::X>(special);
    p.w.at(22, 17) = narrow<typename TypeParam::W>(special);
    for (size_t i = 0; i < runners.size(); ++i) {
      ASSERT_TRUE(ops::matmul(runners[i]->context, p.args()).ok());
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t o = 0; o < out; ++o) {
          const float expected = canonical_dot(p.x, r, p.w, o, in);
          ASSERT_TRUE(testing::same(p.y.at(r, o), expected)) << kernel_tables()[i].name << " " << r << " " << o;
          ASSERT_EQ(std::isfinite(p.y.at(r, o)), r != 4 && o != 22);
        }
      }
    }
  }
}

TYPED_TEST(MatmulOf, ZeroRowsAreFine) {
  auto runners = make_runners();
  Problem<typename TypeParam::X, typename TypeParam::W> p(1, 16, 5, 1);
  for (auto& runner : runners) {
    ops::MatmulArgs args = p.args();
    args.x.rows = 0, args.y.rows = 0;
    const auto before = p.y.values();
    EXPECT_TRUE(ops::matmul(runner->context, args).ok());
    EXPECT_TRUE(all_same(before, p.y.values()));
  }
}

TEST(MatmulF32, KeepsDenormals) {
  auto runners = make_runners();
  for (size_t i = 0; i < runners.size(); ++i) {
    TestMatrix<float> x(1, 3), w(1, 3), y(1, 1);
    for (int64_t k = 0; k < 3; ++k) x.at(0, k) = 0x1p-100f, w.at(0, k) = 0x1p-40f;
    ASSERT_TRUE(ops::matmul(runners[i]->context, {.x = x.tensor(), .w = w.tensor(), .y = y.tensor()}).ok());
    EXPECT_EQ(y.at(0, 0), 3 * 0x1p-140f) << kernel_tables()[i].name;
  }
}

// Denormal inputs count as zero and denormal sums become zero: vdpbf16ps has no other way, so no version has.
TEST(MatmulBf16, FlushesDenormalsOnEveryInstructionSetAlike) {
  auto runners = make_runners();
  std::mt19937_64 rng(77);
  const int64_t rows = 6, in = 70, out = 40;
  TestMatrix<bf16> x(rows, in), w(out, in);
  for (auto* m : {&x, &w}) {
    for (bf16& v : m->raw()) v.bits = static_cast<uint16_t>((rng() & 0x807f) | ((rng() % 66) << 7));  // 0 to 2^-61: products around 2^-126
  }
  std::vector<float> first;
  int64_t zeros = 0;
  for (size_t i = 0; i < runners.size(); ++i) {
    TestMatrix<float> y(rows, out);
    ASSERT_TRUE(ops::matmul(runners[i]->context, {.x = x.tensor(), .w = w.tensor(), .y = y.tensor()}).ok());
    if (i == 0) first = y.values();
    EXPECT_TRUE(all_same(first, y.values())) << kernel_tables()[i].name;
    for (const float v : y.values()) {
      EXPECT_TRUE(v == 0 || std::fabs(v) >= FLT_MIN) << kernel_tables()[i].name << " " << v;
      zeros += v == 0;
    }
  }
  EXPECT_GT(zeros, 0);
}

TEST(MatmulBf16, RestoresTheFloatingPointMode) {
  auto runners = make_runners(2);
  Problem<bf16, bf16> p(9, 64, 300, 2);
  for (size_t i = 0; i < runners.size(); ++i) {
    ASSERT_TRUE(ops::matmul(runners[i]->context, p.args()).ok());
    volatile float tiny = FLT_MIN;
    volatile float half = tiny / 2;
    EXPECT_GT(half, 0.0f) << kernel_tables()[i].name;
  }
}

TEST(Matmul, NamesBothSidesOfAMismatch) {
  OpRunner run(kernel_tables()[0].table);
  TestMatrix<float> x(3, 8), w(5, 9), y(3, 5);
  Status s = ops::matmul(run.context, {.x = x.tensor(), .w = w.tensor(), .y = y.tensor()});
  EXPECT_EQ(s.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(s.message().find("[3, 8]"), std::string::npos) << s.message();
  EXPECT_NE(s.message().find("[5, 9]"), std::string::npos) << s.message();
  TestMatrix<float> fitting(5, 8), wrong_y(3, 4);
  EXPECT_EQ(ops::matmul(run.context, {.x = x.tensor(), .w = fitting.tensor(), .y = wrong_y.tensor()}).code(), StatusCode::kInvalidArgument);
  TestMatrix<bf16> y16(3, 5), x16(3, 8);
  EXPECT_EQ(ops::matmul(run.context, {.x = x.tensor(), .w = fitting.tensor(), .y = y16.tensor()}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(ops::matmul(run.context, {.x = x16.tensor(), .w = fitting.tensor(), .y = y.tensor()}).code(), StatusCode::kInvalidArgument);
}

// Several products of one x in one call against one call each, bit for bit.
template <class X, class W>
void products_of_one_x() {
  auto runners = make_runners(3);
  for (const int64_t rows : {1, 2, 7, 100}) {
    for (const int64_t in : {33, 128}) {
      std::mt19937_64 rng(static_cast<uint64_t>(rows + in));
      TestMatrix<X> x(rows, in, 1, 3);
      TestMatrix<W> w[4] = {{70, in}, {1, in, 0, 5}, {300, in}, {16, in}};
      TestMatrix<float> y[4] = {{rows, 70}, {rows, 1, 0, 2}, {rows, 300}, {rows, 16}}, bias(1, 300);
      x.fill(rng), bias.fill(rng);
      for (auto& m : w) m.fill(rng);
      for (auto& m : y) m.fill(rng);
      for (size_t i = 0; i < runners.size(); ++i) {
        for (const bool accumulate : {false, true}) {
          std::vector<float> before[4], expected[4];
          for (int p = 0; p < 4; ++p) {
            before[p] = y[p].raw();
            const float* b = p % 2 == 0 ? bias.tensor().as<float>() : nullptr;
            ASSERT_TRUE(ops::matmul(runners[i]->context,
                                    {.x = x.tensor(), .w = w[p].tensor(), .bias = b, .y = y[p].tensor(), .accumulate = accumulate}).ok());
            expected[p] = y[p].values();
            y[p].raw() = before[p];
          }
          ops::MatmulArgs args{.x = x.tensor(), .w = w[0].tensor(), .bias = bias.tensor().as<float>(), .y = y[0].tensor(), .accumulate = accumulate,
                               .num_more = 3};
          for (int p = 1; p < 4; ++p) {
            args.more[p - 1] = {.w = w[p].tensor(), .bias = p % 2 == 0 ? bias.tensor().as<float>() : nullptr, .y = y[p].tensor()};
          }
          const Status s = ops::matmul(runners[i]->context, args);
          ASSERT_TRUE(s.ok()) << s.message();
          for (int p = 0; p < 4; ++p) {
            ASSERT_TRUE(all_same(expected[p], y[p].values())) << kernel_tables()[i].name << " product " << p << " " << rows << " x " << in;
            ASSERT_TRUE(y[p].untouched_outside());
          }
        }
      }
    }
  }
}

TEST(Matmul, SeveralProductsOfOneXAreThoseOfOneCallEach) {
  products_of_one_x<bf16, bf16>();
  products_of_one_x<float, bf16>();
  products_of_one_x<float, float>();
}

TEST(Matmul, NamesAProductThatDoesNotGoWithTheFirst) {
  OpRunner run(kernel_tables()[0].table);
  TestMatrix<float> x(3, 8), w(4, 8), y(3, 4), narrow_w(4, 7), short_y(2, 4);
  TestMatrix<bf16> other(4, 8);
  ops::MatmulArgs args{.x = x.tensor(), .w = w.tensor(), .y = y.tensor(), .num_more = 1};
  const auto refusal = [&](const ops::MatmulPart& part) {
    args.more[0] = part;
    const Status s = ops::matmul(run.context, args);
    EXPECT_EQ(s.code(), StatusCode::kInvalidArgument);
    return s.message();
  };
  EXPECT_NE(refusal({.w = narrow_w.tensor(), .y = y.tensor()}).find("[4, 7]"), std::string::npos);
  EXPECT_NE(refusal({.w = other.tensor(), .y = y.tensor()}).find("BF16"), std::string::npos);
  EXPECT_NE(refusal({.w = w.tensor(), .y = short_y.tensor()}).find("2 rows"), std::string::npos);
  args.num_more = ops::kMaxMoreParts + 1;
  EXPECT_EQ(ops::matmul(run.context, args).code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace pointsman
