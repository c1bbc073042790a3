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
  int64_t tokens, first_position;
  int32_t heads, kv_heads, head_dim;
  int64_t window = 0;
};

// How the cache lies: rows of fp32 or bf16, or tiles.
template <class T, ops::CacheLayout kLayout_>
struct CacheOf {
  using Element = T;
  static constexpr ops::CacheLayout kLayout = kLayout_;
};
using Rows32 = CacheOf<float, ops::CacheLayout::kRows>;
using Rows16 = CacheOf<bf16, ops::CacheLayout::kRows>;
using Tiles16 = CacheOf<bf16, ops::CacheLayout::kTiles>;

// A cache whose positions beyond the last query are NaN: nobody may look there.
template <class Cache>
struct Problem {
  using C = typename Cache::Element;
  static constexpr bool kTiled = Cache::kLayout == ops::CacheLayout::kTiles;
  Problem(const Shape& shape, uint64_t seed)
      : s(shape), capacity(s.first_position + s.tokens + 3), rng(seed), q(s.tokens, s.heads * s.head_dim, 1, 2), out(s.tokens, s.heads * s.head_dim, 2, 1),
        k(s.kv_heads * capacity, s.head_dim), v(s.kv_heads * capacity, s.head_dim) {
    q.fill(rng), k.fill(rng), v.fill(rng);
    for (int64_t h = 0; h < s.kv_heads; ++h) {
      for (int64_t p = capacity - 3; p < capacity; ++p) {
        for (int64_t d = 0; d < s.head_dim; ++d) k.at(h * capacity + p, d) = v.at(h * capacity + p, d) = testing::narrow<C>(NAN);
      }
    }
  }
  ops::AttentionArgs args() {
    void *keys = k.tensor().data, *values = v.tensor().data;
    if constexpr (kTiled) {
      const auto elements = static_cast<size_t>(s.kv_heads * ops::tiled_head_elements(capacity, s.head_dim));
      k_tiles.assign(elements, to_bf16(NAN)), v_tiles.assign(elements, to_bf16(NAN));
      for (int64_t h = 0; h < s.kv_heads; ++h) {
        const int64_t base = h * ops::tiled_head_elements(capacity, s.head_dim);
        for (int64_t p = 0; p < capacity; ++p) {
          for (int64_t d = 0; d < s.head_dim; ++d) {
            k_tiles[static_cast<size_t>(base + ops::tiled_key_at(p, d, s.head_dim))] = k.at(h * capacity + p, d);
            v_tiles[static_cast<size_t>(base + ops::tiled_value_at(p, d, s.head_dim))] = v.at(h * capacity + p, d);
          }
          if (s.head_dim % 2 != 0) k_tiles[static_cast<size_t>(base + ops::tiled_key_at(p, s.head_dim, s.head_dim))] = bf16{};
        }
      }
      keys = k_tiles.data(), values = v_tiles.data();
    }
    return {.q = q.tensor(), .k_cache = keys, .v_cache = values, .cache_dtype = testing::kDTypeOf<C>, .layout = Cache::kLayout, .capacity = capacity,
            .sequences = {s.tokens, s.first_position}, .window = s.window, .heads = s.heads, .kv_heads = s.kv_heads, .head_dim = s.head_dim,
            .scale = 1 / std::sqrt(static_cast<float>(s.head_dim)), .out = out.tensor()};
  }
  // Softmax attention as a textbook has it.
  std::vector<double> exact(int64_t t, int64_t h) const {
    const int64_t kv = h / (s.heads / s.kv_heads), last = s.first_position + t;
    const int64_t first = s.window > 0 ? std::max<int64_t>(0, last - s.window + 1) : 0;
    std::vector<double> p;
    double largest = -INFINITY, sum = 0;
    for (int64_t j = first; j <= last; ++j) {
      double dot = 0;
      for (int64_t d = 0; d < s.head_dim; ++d) {
        dot += testing::widen(testing::narrow<C>(q.at(t, h * s.head_dim + d))) * k.value(kv * capacity + j, d);
      }
      p.push_back(dot / std::sqrt(static_cast<double>(s.head_dim)));
      largest = std::max(largest, p.back());
    }
    for (double& v_ : p) sum += v_ = std::exp(v_ - largest);
    std::vector<double> o(static_cast<size_t>(s.head_dim), 0.0);
    for (int64_t j = first; j <= last; ++j) {
      for (int64_t d = 0; d < s.head_dim; ++d) o[static_cast<size_t>(d)] += p[static_cast<size_t>(j - first)] / sum * v.value(kv * capacity + j, d);
    }
    return o;
  }
  Shape s;
  int64_t capacity;
  std::mt19937_64 rng;
  TestMatrix<float> q, out;
  TestMatrix<C> k, v;
  std::vector<bf16> k_tiles, v_tiles;
};

template <class T>
class AttentionOf : public ::testing::Test {};
using Types = ::testing::Types<Rows32, Rows16, Tiles16>;
TYPED_TEST_SUITE(AttentionOf, Types);

TYPED_TEST(AttentionOf, IsCloseToDoublePrecisionAndTheSameOnEveryInstructionSet) {
  auto runners = make_runners();
  const Shape shapes[] = {{1, 0, 1, 1, 16},      {1, 63, 4, 2, 64},     {1, 64, 4, 1, 33},      {1, 130, 8, 1, 128},     {5, 0, 2, 2, 1},
                          {70, 0, 3, 1, 20},     {70, 61, 6, 2, 32},    {3, 200, 14, 2, 64},    {9, 40, 8, 4, 100},      {2, 10, 1, 1, 512},
                          {1, 150, 4, 2, 64, 1}, {70, 0, 2, 1, 32, 5},  {70, 90, 4, 2, 17, 64}, {13, 100, 14, 1, 48, 65}, {3, 5, 2, 1, 16, 1000}};
  for (const Shape& s : shapes) {
    Problem<TypeParam> p(s, 7);
    std::vector<float> first;
    for (size_t i = 0; i < runners.size(); ++i) {
      ASSERT_TRUE(ops::attention(runners[i]->context, p.args()).ok());
      if (i == 0) first = p.out.values();
      ASSERT_TRUE(all_same(first, p.out.values())) << kernel_tables()[i].name << ": " << s.tokens << " tokens at " << s.first_position << ", " << s.heads
                                                   << "/" << s.kv_heads << " heads of " << s.head_dim << ", window " << s.window;
      ASSERT_TRUE(p.out.untouched_outside());
    }
    for (int64_t t = 0; t < s.tokens; ++t) {
      for (int64_t h = 0; h < s.heads; ++h) {
        const auto exact = p.exact(t, h);
        for (int64_t d = 0; d < s.head_dim; ++d) {
          // A probability rounded to bf16 is off by 2^-9 of itself, a value is a few units at most.
          ASSERT_NEAR(p.out.at(t, h * s.head_dim + d), exact[static_cast<size_t>(d)], TypeParam::kLayout == ops::CacheLayout::kTiles ? 6e-3 : 2e-5)
              << t << " " << h << " " << d;
        }
      }
    }
  }
}

// However a prompt is cut into calls, and whoever else is in the call: the same bits.
TYPED_TEST(AttentionOf, ChunksAndThreadsLeaveNoTrace) {
  auto one = make_runners(1), three = make_runners(3);
  for (const Shape& s : {Shape{140, 30, 6, 2, 40}, Shape{140, 0, 2, 2, 32, 50}, Shape{90, 7, 14, 1, 24, 64}}) {
    Problem<TypeParam> p(s, 8);
    for (size_t i = 0; i < one.size(); ++i) {
      ASSERT_TRUE(ops::attention(one[i]->context, p.args()).ok());
      const auto expected = p.out.values();
      for (const int64_t chunk : {1, 7, 64}) {
        std::fill(p.out.raw().begin(), p.out.raw().end(), NAN);
        for (int64_t t = 0; t < s.tokens; t += chunk) {
          const int64_t n = std::min(chunk, s.tokens - t);
          auto args = p.args();
          args.q = args.q.slice_rows(t, n), args.out = args.out.slice_rows(t, n), args.sequences = {n, s.first_position + t};
          ASSERT_TRUE(ops::attention(three[i]->context, args).ok());
        }
        ASSERT_TRUE(all_same(expected, p.out.values())) << kernel_tables()[i].name << " in chunks of " << chunk;
      }
    }
  }
}

// A key or value that a row may not see changes nothing in it, even when it is NaN or infinite and a neighbour sees it.
TYPED_TEST(AttentionOf, WhatARowMayNotSeeDoesNotReachIt) {
  auto runners = make_runners();
  const Shape s{20, 50, 4, 2, 32, 30};
  Problem<TypeParam> clean(s, 9);
  for (size_t i = 0; i < runners.size(); ++i) {
    ASSERT_TRUE(ops::attention(runners[i]->context, clean.args()).ok());
    for (const float poison : {NAN, INFINITY}) {
      Problem<TypeParam> p(s, 9);
      const int64_t position = 60;  // seen by tokens 10 .. 19 (60 .. 89, window 30)
      for (int64_t h = 0; h < s.kv_heads; ++h) p.v.at(h * p.capacity + position, 3) = p.k.at(h * p.capacity + position, 5) = testing::narrow<typename TypeParam::Element>(poison);
      ASSERT_TRUE(ops::attention(runners[i]->context, p.args()).ok());
      for (int64_t t = 0; t < s.tokens; ++t) {
        for (int64_t c = 0; c < s.heads * s.head_dim && t < 10; ++c) {
          ASSERT_TRUE(testing::same(p.out.at(t, c), clean.out.at(t, c))) << kernel_tables()[i].name << " token " << t;
        }
        ASSERT_TRUE(t < 10 || !std::isnan(poison) || std::isnan(p.out.at(t, 0))) << "a NaN key must show";
      }
      // And keys that have left the window.
      Problem<TypeParam> far(Shape{1, 95, 4, 2, 32, 30}, 10), far_clean(Shape{1, 95, 4, 2, 32, 30}, 10);
      far.v.at(position, 0) = testing::narrow<typename TypeParam::Element>(poison);
      ASSERT_TRUE(ops::attention(runners[i]->context, far.args()).ok());
      ASSERT_TRUE(ops::attention(runners[i]->context, far_clean.args()).ok());
      ASSERT_TRUE(all_same(far_clean.out.values(), far.out.values()));
    }
  }
}

TYPED_TEST(AttentionOf, WritesBf16RoundedFromFp32) {
  auto runners = make_runners();
  Problem<TypeParam> p({5, 70, 4, 2, 40}, 11);
  for (auto& runner : runners) {
    ASSERT_TRUE(ops::attention(runner->context, p.args()).ok());
    TestMatrix<bf16> out(5, 160, 3, 5);
    auto args = p.args();
    args.out = out.tensor();
    ASSERT_TRUE(ops::attention(runner->context, args).ok());
    for (int64_t t = 0; t < 5; ++t) {
      for (int64_t c = 0; c < 160; ++c) ASSERT_TRUE(testing::same(out.at(t, c), to_bf16(p.out.at(t, c))));
    }
    EXPECT_TRUE(out.untouched_outside());
  }
}

// Scores far apart, first rising then falling from block to block: the running maximum must carry both.
TYPED_TEST(AttentionOf, SurvivesScoresFarApart) {
  auto runners = make_runners();
  for (const float step : {3.0f, -3.0f}) {
    Problem<TypeParam> p({1, 300, 1, 1, 16}, 12);
    for (int64_t d = 0; d < 16; ++d) p.q.at(0, d) = 1;
    for (int64_t j = 0; j <= 300; ++j) {
      for (int64_t d = 0; d < 16; ++d) p.k.at(j, d) = testing::narrow<typename TypeParam::Element>(step * static_cast<float>(j / 8));
    }
    const auto exact = p.exact(0, 0);
    for (auto& runner : runners) {
      ASSERT_TRUE(ops::attention(runner->context, p.args()).ok());
      for (int64_t d = 0; d < 16; ++d) ASSERT_NEAR(p.out.at(0, d), exact[static_cast<size_t>(d)], 1e-5);
    }
  }
}

// Rounding the probabilities must not lean to one side: with equal values everywhere the result is that value.
TEST(Attention, TilesDivideByWhatTheyAdd) {
  auto runners = make_runners();
  Problem<Tiles16> p({3, 100, 4, 2, 40}, 13);
  for (int64_t r = 0; r < p.s.kv_heads * p.capacity; ++r) {
    for (int64_t d = 0; d < 40; ++d) p.v.at(r, d) = testing::narrow<bf16>(static_cast<float>(d) - 20);
  }
  for (auto& runner : runners) {
    ASSERT_TRUE(ops::attention(runner->context, p.args()).ok());
    for (int64_t t = 0; t < 3; ++t) {
      for (int64_t c = 0; c < 160; ++c) ASSERT_NEAR(p.out.at(t, c), static_cast<float>(c % 40) - 20, 2e-5);
    }
  }
}

TEST(Attention, RefusesWhatDoesNotFitAndTakesZeroTokens) {
  testing::OpRunner run(kernel_tables()[0].table);
  Problem<Rows32> p({2, 3, 4, 2, 16}, 1);
  auto args = p.args();
  args.heads = 3;
  EXPECT_EQ(ops::attention(run.context, args).code(), StatusCode::kInvalidArgument);
  args = p.args(), args.sequences = {2, p.capacity - 1};
  EXPECT_EQ(ops::attention(run.context, args).code(), StatusCode::kInvalidArgument);
  args = p.args(), args.head_dim = ops::kMaxHeadDim + 1;
  EXPECT_EQ(ops::attention(run.context, args).code(), StatusCode::kInvalidArgument);
  args = p.args(), args.cache_dtype = DType::kF16;
  EXPECT_EQ(ops::attention(run.context, args).code(), StatusCode::kInvalidArgument);
  args = p.args(), args.layout = ops::CacheLayout::kTiles;
  EXPECT_EQ(ops::attention(run.context, args).code(), StatusCode::kInvalidArgument) << "tiles of fp32";
  args = p.args(), args.layout = ops::CacheLayout::kTiles, args.cache_dtype = DType::kBF16, args.v_head_dim = 8;
  EXPECT_EQ(ops::attention(run.context, args).code(), StatusCode::kInvalidArgument) << "tiles of two widths";
  args = p.args(), args.q.rows = 0, args.out.rows = 0, args.sequences = {0, 3};
  EXPECT_TRUE(ops::attention(run.context, args).ok());
}

}  // namespace
}  // namespace pointsman
