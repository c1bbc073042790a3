// SPDX-License-Identifier: Apache-2.0
#include "ops/attention/attention.h"

#include "support/ops_fixture.h"

namespace pointsman {
namespace {

using testing::all_same;
using testing::kernel_tables;
using testing::make_runners;
using testing::TestMatrix;

struct Shape {
  int64_t tokens;
  int32_t heads, kv_heads, head_dim, rotary_dim;
  bool q_norm, k_norm;
};

template <class C>
struct Problem {
  explicit Problem(const Shape& shape)
      : s(shape), rng(5), q(s.tokens, s.heads * s.head_dim, 1, 2), k(s.tokens, s.kv_heads * s.head_dim, 2, 1), v(s.tokens, s.kv_heads * s.head_dim, 0, 3),
        norms(2, s.head_dim), cos(s.tokens, std::max(1, s.rotary_dim / 2)), sin(s.tokens, std::max(1, s.rotary_dim / 2)),
        k_cache(s.kv_heads * kStored, s.head_dim + s.head_dim % 2), v_cache(s.kv_heads * kStored, s.head_dim + s.head_dim % 2) {
    q.fill(rng), k.fill(rng), v.fill(rng), norms.fill(rng);
    for (int64_t t = 0; t < s.tokens; ++t) {
      for (int64_t i = 0; i < s.rotary_dim / 2; ++i) {
        const double angle = static_cast<double>(rng() % 1000) * 0.01;
        cos.at(t, i) = static_cast<float>(std::cos(angle)), sin.at(t, i) = static_cast<float>(std::sin(angle));
      }
    }
  }
  ops::QkvPrepareArgs args() {
    return {.q = q.tensor(), .k = k.tensor(), .v = v.tensor(), .q_norm = s.q_norm ? &norms.at(0, 0) : nullptr,
            .k_norm = s.k_norm ? &norms.at(1, 0) : nullptr, .eps = 1e-5f, .cos = &cos.at(0, 0), .sin = &sin.at(0, 0), .heads = s.heads,
            .kv_heads = s.kv_heads, .head_dim = s.head_dim, .rotary_dim = s.rotary_dim, .k_cache = k_cache.tensor().data,
            .v_cache = v_cache.tensor().data, .cache_dtype = testing::kDTypeOf<C>, .capacity = kCapacity, .sequences = {s.tokens, kFirst}};
  }
  // One head in double.
  std::vector<double> expected(const TestMatrix<float>& x, int64_t t, int64_t head, bool normed, int64_t norm_row) const {
    std::vector<double> h(static_cast<size_t>(s.head_dim));
    double squares = 0;
    for (int64_t d = 0; d < s.head_dim; ++d) {
      h[static_cast<size_t>(d)] = x.value(t, head * s.head_dim + d);
      squares += h[static_cast<size_t>(d)] * h[static_cast<size_t>(d)];
    }
    if (normed) {
      const double scale = 1 / std::sqrt(squares / s.head_dim + static_cast<double>(1e-5f));
      for (int64_t d = 0; d < s.head_dim; ++d) h[static_cast<size_t>(d)] *= scale * norms.value(norm_row, d);
    }
    const int64_t half = s.rotary_dim / 2;
    std::vector<double> r = h;
    for (int64_t i = 0; i < half; ++i) {
      const double a = h[static_cast<size_t>(i)], b = h[static_cast<size_t>(i + half)];
      r[static_cast<size_t>(i)] = a * cos.value(t, i) - b * sin.value(t, i);
      r[static_cast<size_t>(i + half)] = b * cos.value(t, i) + a * sin.value(t, i);
    }
    return r;
  }
  // An element of the cache, in rows of fp32 or in tiles of bf16.
  C& cached(TestMatrix<C>& cache, int64_t head, int64_t position, int64_t d, bool is_key) {
    if constexpr (std::is_same_v<C, float>) return cache.raw()[static_cast<size_t>((head * kCapacity + position) * s.head_dim + d)];
    const int64_t at = is_key ? ops::tiled_key_at(position, d, s.head_dim) : ops::tiled_value_at(position, d, s.head_dim);
    return cache.raw()[static_cast<size_t>(head * ops::tiled_head_elements(kCapacity, s.head_dim) + at)];
  }
  double key(int64_t head, int64_t position, int64_t d) { return testing::widen(cached(k_cache, head, position, d, true)); }
  C& value(int64_t head, int64_t position, int64_t d) { return cached(v_cache, head, position, d, false); }
  static constexpr int64_t kCapacity = 90, kStored = 128, kFirst = 6;
  Shape s;
  std::mt19937_64 rng;
  TestMatrix<float> q, k, v, norms, cos, sin;
  TestMatrix<C> k_cache, v_cache;
};

template <class T>
class QkvPrepareOf : public ::testing::Test {};
using Types = ::testing::Types<float, bf16>;
TYPED_TEST_SUITE(QkvPrepareOf, Types);

TYPED_TEST(QkvPrepareOf, NormsRotatesAndAppends) {
  using C = TypeParam;
  auto runners = make_runners();
  for (const Shape& s : {Shape{1, 4, 2, 64, 64, true, true}, Shape{3, 2, 1, 33, 10, false, true}, Shape{7, 3, 3, 16, 16, true, false},
                         Shape{2, 1, 1, 100, 38, false, false}, Shape{70, 6, 2, 40, 40, true, true}, Shape{2, 2, 1, 24, 0, true, true}}) {
    std::vector<float> first_q;
    std::vector<C> first_k;
    for (size_t i = 0; i < runners.size(); ++i) {
      Problem<C> p(s);
      const Problem<C> before = p;
      ASSERT_TRUE(ops::qkv_prepare(runners[i]->context, p.args()).ok());
      if (i == 0) first_q = p.q.values(), first_k = p.k_cache.values();
      ASSERT_TRUE(all_same(first_q, p.q.values())) << kernel_tables()[i].name;
      ASSERT_TRUE(all_same(first_k, p.k_cache.values())) << kernel_tables()[i].name;
      ASSERT_TRUE(p.q.untouched_outside());
      for (int64_t t = 0; t < s.tokens; ++t) {
        for (int64_t h = 0; h < s.heads; ++h) {
          const auto expected = before.expected(before.q, t, h, s.q_norm, 0);
          for (int64_t d = 0; d < s.head_dim; ++d) ASSERT_NEAR(p.q.at(t, h * s.head_dim + d), expected[static_cast<size_t>(d)], 1e-5) << t << " " << h << " " << d;
        }
        for (int64_t h = 0; h < s.kv_heads; ++h) {
          const auto expected = before.expected(before.k, t, h, s.k_norm, 1);
          const int64_t at = p.kFirst + t;
          for (int64_t d = 0; d < s.head_dim; ++d) {
            const double e = expected[static_cast<size_t>(d)];
            ASSERT_NEAR(p.key(h, at, d), e, 1e-5 + (std::is_same_v<C, bf16> ? 0x1p-8 * std::fabs(e) : 0));
            ASSERT_TRUE(testing::same(p.value(h, at, d), testing::narrow<C>(before.v.at(t, h * s.head_dim + d))));
          }
        }
      }
      // Other positions keep what they had.
      for (int64_t h = 0; h < s.kv_heads; ++h) {
        for (int64_t position = 0; position < p.kCapacity; ++position) {
          if (position >= p.kFirst && position < p.kFirst + s.tokens) continue;
          ASSERT_TRUE(std::isnan(p.key(h, position, 0)));
          ASSERT_TRUE(std::isnan(testing::widen(p.value(h, position, s.head_dim - 1))));
        }
      }
    }
  }
}

// After the norm and before the rotation, which may carry a value beyond the limit again; v too; NaN stays NaN.
TYPED_TEST(QkvPrepareOf, ClampsAfterTheNormAndBeforeTheRotation) {
  using C = TypeParam;
  auto runners = make_runners();
  constexpr float kClip = 0.4f;
  for (const Shape& s : {Shape{3, 2, 1, 33, 10, true, true}, Shape{5, 4, 2, 64, 64, false, false}}) {
    std::vector<float> first_q;
    for (size_t i = 0; i < runners.size(); ++i) {
      Problem<C> p(s);
      p.v.at(1, 3) = NAN;
      Problem<C> clamped = p;  // what the op should then rotate: norms applied, clamped
      for (const auto& [x, heads, norm, row] : {std::tuple{&clamped.q, s.heads, s.q_norm, 0}, {&clamped.k, s.kv_heads, s.k_norm, 1}}) {
        for (int64_t t = 0; t < s.tokens; ++t) {
          for (int64_t h = 0; h < heads; ++h) {
            double sum = 0;
            for (int64_t d = 0; d < s.head_dim; ++d) sum += x->value(t, h * s.head_dim + d) * x->value(t, h * s.head_dim + d);
            const double scale = norm ? 1 / std::sqrt(sum / static_cast<double>(s.head_dim) + static_cast<double>(p.args().eps)) : 1;
            for (int64_t d = 0; d < s.head_dim; ++d) {
              const double y = x->value(t, h * s.head_dim + d) * scale * (norm ? clamped.norms.value(row, d) : 1);
              x->at(t, h * s.head_dim + d) = std::clamp(static_cast<float>(y), -kClip, kClip);
            }
          }
        }
      }
      auto args = p.args();
      args.clip = kClip;
      ASSERT_TRUE(ops::qkv_prepare(runners[i]->context, args).ok());
      if (i == 0) first_q = p.q.values();
      ASSERT_TRUE(all_same(first_q, p.q.values())) << kernel_tables()[i].name;
      double highest = 0;
      for (int64_t t = 0; t < s.tokens; ++t) {
        for (int64_t h = 0; h < s.heads; ++h) {
          const auto expected = clamped.expected(clamped.q, t, h, false, 0);
          for (int64_t d = 0; d < s.head_dim; ++d) {
            ASSERT_NEAR(p.q.at(t, h * s.head_dim + d), expected[static_cast<size_t>(d)], 1e-5);
            highest = std::max(highest, std::fabs(expected[static_cast<size_t>(d)]));
          }
        }
        for (int64_t h = 0; h < s.kv_heads; ++h) {
          const auto expected = clamped.expected(clamped.k, t, h, false, 1);
          const int64_t at = p.kFirst + t;
          for (int64_t d = 0; d < s.head_dim; ++d) {
            ASSERT_NEAR(p.key(h, at, d), expected[static_cast<size_t>(d)], (std::is_same_v<C, bf16> ? 4e-3 : 1e-5));
            const double v = clamped.v.value(t, h * s.head_dim + d);
            if (std::isnan(v)) {
              ASSERT_TRUE(std::isnan(testing::widen(p.value(h, at, d))));
            } else {
              ASSERT_NEAR(testing::widen(p.value(h, at, d)), std::clamp(v, -double{kClip}, double{kClip}), (std::is_same_v<C, bf16> ? 2e-3 : 0));
            }
          }
        }
      }
      EXPECT_GT(highest, kClip);
    }
  }
}

TYPED_TEST(QkvPrepareOf, ThreadsAndChunksLeaveNoTrace) {
  auto one = make_runners(1), three = make_runners(3);
  const Shape s{70, 6, 2, 48, 48, true, true};
  for (size_t i = 0; i < one.size(); ++i) {
    Problem<TypeParam> whole(s), parts(s);
    ASSERT_TRUE(ops::qkv_prepare(one[i]->context, whole.args()).ok());
    for (int64_t t = 0; t < s.tokens; t += 9) {
      const int64_t n = std::min<int64_t>(9, s.tokens - t);
      auto args = parts.args();
      args.q = args.q.slice_rows(t, n), args.k = args.k.slice_rows(t, n), args.v = args.v.slice_rows(t, n);
      args.cos += t * (s.rotary_dim / 2), args.sin += t * (s.rotary_dim / 2), args.sequences = {n, Problem<TypeParam>::kFirst + t};
      ASSERT_TRUE(ops::qkv_prepare(three[i]->context, args).ok());
    }
    EXPECT_TRUE(all_same(whole.q.values(), parts.q.values()));
    EXPECT_TRUE(all_same(whole.k_cache.values(), parts.k_cache.values()));
    EXPECT_TRUE(all_same(whole.v_cache.values(), parts.v_cache.values()));
  }
}

TEST(QkvPrepare, RefusesWhatDoesNotFit) {
  testing::OpRunner run(kernel_tables()[0].table);
  Problem<float> p({2, 2, 1, 16, 16, true, true});
  auto args = p.args();
  args.rotary_dim = 15;
  EXPECT_EQ(ops::qkv_prepare(run.context, args).code(), StatusCode::kInvalidArgument);
  args.rotary_dim = 18;
  EXPECT_EQ(ops::qkv_prepare(run.context, args).code(), StatusCode::kInvalidArgument);
  for (const float clip : {-1.0f, NAN}) {
    args = p.args(), args.clip = clip;
    EXPECT_EQ(ops::qkv_prepare(run.context, args).code(), StatusCode::kInvalidArgument);
  }
  args = p.args(), args.sequences = {2, 89};
  EXPECT_EQ(ops::qkv_prepare(run.context, args).code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace pointsman
