// SPDX-License-Identifier: Apache-2.0
//
// A KV cache of eight-bit codes: what qkv_prepare stores, and what attention makes of it, against plain formulas.
#include "ops/attention/attention.h"
#include "support/ops_fixture.h"

namespace pointsman {
namespace {

using testing::all_same;
using testing::kernel_tables;
using testing::make_runners;
using testing::OpRunner;
using testing::TestMatrix;

struct Shape {
  int64_t tokens, first_position;
  int32_t heads, kv_heads, head_dim;
  int64_t window = 0;
};

// Positions before the chunk and the chunk itself, through qkv_prepare without norm or rotation.
struct Cache {
  Cache(OpRunner& run, const Shape& shape, uint64_t seed) : s(shape), capacity(s.first_position + s.tokens + 3) {
    const auto bytes = static_cast<size_t>(ops::cache_plane_bytes(DType::kI8, ops::CacheLayout::kRows, s.kv_heads, capacity, s.head_dim));
    k.resize(bytes / 4 + 1, NAN), v.resize(bytes / 4 + 1, NAN);
    std::mt19937_64 rng(seed);
    const int64_t n = s.first_position + s.tokens;
    TestMatrix<float> q(n, int64_t{s.heads} * s.head_dim), keys(n, int64_t{s.kv_heads} * s.head_dim), values(n, int64_t{s.kv_heads} * s.head_dim);
    q.fill(rng), keys.fill(rng, 2), values.fill(rng);
    for (int64_t c = 0; c < s.head_dim; ++c) keys.at(n / 2, c) = 0;  // a row of zeros
    raw_keys = keys.values(), raw_values = values.values();
    status = ops::qkv_prepare(run.context, {.q = q.tensor(), .k = keys.tensor(), .v = values.tensor(), .heads = s.heads, .kv_heads = s.kv_heads,
                                            .head_dim = s.head_dim, .k_cache = k.data(), .v_cache = v.data(), .cache_dtype = DType::kI8, .capacity = capacity, .sequences = {n, 0}});
  }
  const int8_t* codes(const std::vector<float>& plane) const { return reinterpret_cast<const int8_t*>(plane.data() + s.kv_heads * capacity); }
  float scale(const std::vector<float>& plane, int64_t h, int64_t p) const { return plane[static_cast<size_t>(h * capacity + p)]; }
  double value(const std::vector<float>& plane, int64_t h, int64_t p, int64_t d) const {
    return static_cast<double>(codes(plane)[(h * capacity + p) * s.head_dim + d]) * scale(plane, h, p);
  }
  ops::AttentionArgs args(TestMatrix<float>& q, TestMatrix<float>& out) {
    return {.q = q.tensor(), .k_cache = k.data(), .v_cache = v.data(), .cache_dtype = DType::kI8, .capacity = capacity, .sequences = {q.tensor().rows, s.first_position},
            .window = s.window, .heads = s.heads, .kv_heads = s.kv_heads, .head_dim = s.head_dim, .scale = 1 / std::sqrt(static_cast<float>(s.head_dim)),
            .out = out.tensor()};
  }
  Shape s;
  int64_t capacity;
  std::vector<float> k, v, raw_keys, raw_values;
  Status status = ok_status();
};

const Shape kShapes[] = {{1, 0, 1, 1, 16}, {1, 130, 8, 2, 128}, {5, 0, 2, 2, 1}, {70, 61, 6, 2, 33}, {9, 200, 14, 2, 64}, {70, 90, 4, 4, 48, 64}};

TEST(Int8Cache, HoldsEveryElementToHalfACodeAndTheSameOnEveryInstructionSet) {
  auto runners = make_runners(2);
  for (const Shape& s : kShapes) {
    Cache first(*runners[0], s, 5);
    ASSERT_TRUE(first.status.ok()) << first.status.to_string();
    for (auto& run : runners) {
      Cache c(*run, s, 5);
      ASSERT_TRUE(all_same(first.k, c.k));
      ASSERT_TRUE(all_same(first.v, c.v));
    }
    for (int64_t p = 0; p < s.first_position + s.tokens; ++p) {
      for (int64_t h = 0; h < s.kv_heads; ++h) {
        const float* row = first.raw_keys.data() + (p * s.kv_heads + h) * s.head_dim;
        float most = 0;
        for (int64_t d = 0; d < s.head_dim; ++d) most = std::max(most, std::fabs(row[d]));
        ASSERT_EQ(first.scale(first.k, h, p), most / 127.0f);
        for (int64_t d = 0; d < s.head_dim; ++d) ASSERT_NEAR(first.value(first.k, h, p, d), row[d], most / 253.9);
      }
    }
  }
}

TEST(Int8Cache, AttentionIsCloseToDoublePrecisionOverTheDecodedCacheAndTheSameEverywhere) {
  auto one = make_runners(1), three = make_runners(3);
  for (const Shape& s : kShapes) {
    Cache c(*one[0], s, 6);
    std::mt19937_64 rng(7);
    TestMatrix<float> q(s.tokens, int64_t{s.heads} * s.head_dim, 1, 2), out(s.tokens, int64_t{s.heads} * s.head_dim, 2, 1);
    q.fill(rng);
    std::vector<float> expected;
    for (size_t i = 0; i < one.size(); ++i) {
      ASSERT_TRUE(ops::attention(one[i]->context, c.args(q, out)).ok());
      if (i == 0) expected = out.values();
      ASSERT_TRUE(all_same(expected, out.values())) << kernel_tables()[i].name;
      ASSERT_TRUE(out.untouched_outside());
      std::fill(out.raw().begin(), out.raw().end(), NAN);
      for (int64_t t = 0; t < s.tokens; t += 7) {  // in chunks, on three threads
        const int64_t n = std::min<int64_t>(7, s.tokens - t);
        auto args = c.args(q, out);
        args.q = args.q.slice_rows(t, n), args.out = args.out.slice_rows(t, n), args.sequences = {n, s.first_position + t};
        ASSERT_TRUE(ops::attention(three[i]->context, args).ok());
      }
      ASSERT_TRUE(all_same(expected, out.values())) << kernel_tables()[i].name << " in chunks";
    }
    for (int64_t t = 0; t < s.tokens; ++t) {
      for (int64_t head = 0; head < s.heads; ++head) {
        const int64_t h = head / (s.heads / s.kv_heads), last = s.first_position + t, begin = s.window > 0 ? std::max<int64_t>(0, last - s.window + 1) : 0;
        std::vector<double> p;
        double largest = -INFINITY, sum = 0;
        for (int64_t j = begin; j <= last; ++j) {
          double dot = 0;
          for (int64_t d = 0; d < s.head_dim; ++d) dot += static_cast<double>(to_float(to_bf16(q.at(t, head * s.head_dim + d)))) * c.value(c.k, h, j, d);
          p.push_back(dot / std::sqrt(static_cast<double>(s.head_dim)));
          largest = std::max(largest, p.back());
        }
        for (double& x : p) sum += x = std::exp(x - largest);
        for (int64_t d = 0; d < s.head_dim; ++d) {
          double exact = 0;
          for (int64_t j = begin; j <= last; ++j) exact += p[static_cast<size_t>(j - begin)] / sum * c.value(c.v, h, j, d);
          ASSERT_NEAR(out.at(t, head * s.head_dim + d), exact, 3e-5) << t << " " << head << " " << d;
        }
      }
    }
  }
}

TEST(Int8Cache, ARowThatIsNotFiniteShows) {
  for (auto& run : make_runners()) {
    for (const float bad : {NAN, INFINITY}) {
      TestMatrix<float> q(1, 16), k(1, 16), v(1, 16), out(1, 16);
      std::mt19937_64 rng(8);
      q.fill(rng), k.fill(rng), v.fill(rng);
      k.at(0, 3) = bad;
      std::vector<float> k_cache(5), v_cache(5);
      ASSERT_TRUE(ops::qkv_prepare(run->context, {.q = q.tensor(), .k = k.tensor(), .v = v.tensor(), .heads = 1, .kv_heads = 1, .head_dim = 16,
                                                  .k_cache = k_cache.data(), .v_cache = v_cache.data(), .cache_dtype = DType::kI8, .capacity = 1, .sequences = {1, 0}}).ok());
      EXPECT_TRUE(std::isnan(k_cache[0]));
      ASSERT_TRUE(ops::attention(run->context, {.q = q.tensor(), .k_cache = k_cache.data(), .v_cache = v_cache.data(), .cache_dtype = DType::kI8, .capacity = 1,
                                                .sequences = {1, 0}, .heads = 1, .kv_heads = 1, .head_dim = 16, .out = out.tensor()}).ok());
      EXPECT_TRUE(std::isnan(out.at(0, 0)));
    }
  }
}

TEST(Int8Cache, ValuesInsideWiderRowsAreRefused) {
  OpRunner run(kernel_tables()[0].table);
  TestMatrix<float> q(1, 16), out(1, 8);
  std::vector<float> cache(64);
  EXPECT_EQ(ops::attention(run.context, {.q = q.tensor(), .k_cache = cache.data(), .v_cache = cache.data(), .cache_dtype = DType::kI8, .capacity = 1, .heads = 1,
                                         .kv_heads = 1, .head_dim = 16, .v_head_dim = 8, .v_row = 16, .out = out.tensor()}).code(),
            StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace pointsman
