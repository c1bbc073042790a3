// SPDX-License-Identifier: Apache-2.0
//
// Latent attention: the absorbed form against the naive one and against plain double loops, for plain and coded kv_b_proj; attention with
// sinks and with values of another width.
#include "ops/attention/latent.h"

#include <gtest/gtest.h>

#include "ops/attention/attention.h"
#include "ops/matmul/matmul.h"
#include "support/coded_weight.h"
#include "support/ops_fixture.h"

namespace pointsman {
namespace {

using testing::CodedFormat;
using testing::CodedWeight;
using testing::kernel_tables;
using testing::make_runners;
using testing::OpRunner;
using testing::TestMatrix;

struct Shape {
  int64_t tokens, heads, nope, rope, v, rank;
};
constexpr int64_t kCapacity = 80;

// The naive form in double, from q and [c | k_r] as latent_prepare leaves them.
std::vector<double> exact(const Shape& s, const TestMatrix<float>& q, const TestMatrix<float>& kv, const Weight& kv_b, double scale) {
  std::vector<double> out;
  const auto w = [&](int64_t h, int64_t row, int64_t r) { return double{weight_value(kv_b, h * (s.nope + s.v) + row, r)}; };
  for (int64_t t = 0; t < s.tokens; ++t) {
    for (int64_t h = 0; h < s.heads; ++h) {
      std::vector<double> p;
      double total = 0;
      for (int64_t j = 0; j <= t; ++j) {
        double score = 0;
        for (int64_t i = 0; i < s.nope; ++i) {
          double key = 0;
          for (int64_t r = 0; r < s.rank; ++r) key += w(h, i, r) * kv.value(j, r);
          score += q.value(t, h * (s.nope + s.rope) + i) * key;
        }
        for (int64_t i = 0; i < s.rope; ++i) score += q.value(t, h * (s.nope + s.rope) + s.nope + i) * kv.value(j, s.rank + i);
        p.push_back(std::exp(score * scale));
        total += p.back();
      }
      for (int64_t o = 0; o < s.v; ++o) {
        double sum = 0;
        for (int64_t j = 0; j <= t; ++j) {
          double value = 0;
          for (int64_t r = 0; r < s.rank; ++r) value += w(h, s.nope + o, r) * kv.value(j, r);
          sum += p[static_cast<size_t>(j)] / total * value;
        }
        out.push_back(sum);
      }
    }
  }
  return out;
}

std::vector<float> absorbed(OpRunner& run, const Shape& s, TestMatrix<float>& q, TestMatrix<float>& kv, const Weight& kv_b, float scale) {
  const int32_t heads = static_cast<int32_t>(s.heads);
  TestMatrix<float> cache(kCapacity, s.rank + s.rope), q_latent(s.tokens, s.heads * (s.rank + s.rope)), o_latent(s.tokens, s.heads * s.rank),
      out(s.tokens, s.heads * s.v);
  EXPECT_TRUE(ops::latent_cache(run.context, {.kv = kv.tensor(), .k_cache = cache.tensor().data, .capacity = kCapacity, .sequences = {s.tokens, 0}, .heads = heads,
                                              .nope = static_cast<int32_t>(s.nope), .rope = static_cast<int32_t>(s.rope), .v = static_cast<int32_t>(s.v),
                                              .rank = static_cast<int32_t>(s.rank)}).ok());
  EXPECT_TRUE(ops::head_matmul(run.context, {.x = q.tensor(), .w = kv_b, .y = q_latent.tensor(), .heads = heads, .x_width = s.nope + s.rope,
                                             .y_width = s.rank + s.rope, .stride = s.nope + s.v, .count = s.nope, .transposed = true}).ok());
  EXPECT_TRUE(ops::head_copy(run.context, {.x = q.tensor(), .y = q_latent.tensor(), .heads = heads, .x_width = s.nope + s.rope, .x_first = s.nope,
                                           .y_width = s.rank + s.rope, .y_first = s.rank, .count = s.rope}).ok());
  EXPECT_TRUE(ops::attention(run.context, {.q = q_latent.tensor(), .k_cache = cache.tensor().data, .v_cache = cache.tensor().data, .capacity = kCapacity,
                                           .sequences = {s.tokens, 0}, .heads = heads, .kv_heads = 1, .head_dim = static_cast<int32_t>(s.rank + s.rope),
                                           .v_head_dim = static_cast<int32_t>(s.rank), .v_row = s.rank + s.rope, .scale = scale,
                                           .out = o_latent.tensor()}).ok());
  EXPECT_TRUE(ops::head_matmul(run.context, {.x = o_latent.tensor(), .w = kv_b, .y = out.tensor(), .heads = heads, .x_width = s.rank, .y_width = s.v,
                                             .stride = s.nope + s.v, .first = s.nope, .count = s.v}).ok());
  return out.values();
}

std::vector<float> naive(OpRunner& run, const Shape& s, TestMatrix<float>& q, TestMatrix<float>& kv, const Weight& kv_b, float scale) {
  const int32_t heads = static_cast<int32_t>(s.heads);
  TestMatrix<float> k(s.heads * kCapacity, s.nope + s.rope), v(s.heads * kCapacity, s.v), both(s.tokens, s.heads * (s.nope + s.v)), out(s.tokens, s.heads * s.v);
  Tensor latent = kv.tensor();
  latent.cols = s.rank;
  EXPECT_TRUE(ops::matmul(run.context, {.x = latent, .w = kv_b, .y = both.tensor()}).ok());
  EXPECT_TRUE(ops::latent_cache(run.context, {.kv = kv.tensor(), .expanded = both.tensor(), .k_cache = k.tensor().data, .v_cache = v.tensor().data,
                                              .capacity = kCapacity, .sequences = {s.tokens, 0}, .heads = heads, .nope = static_cast<int32_t>(s.nope),
                                              .rope = static_cast<int32_t>(s.rope), .v = static_cast<int32_t>(s.v), .rank = static_cast<int32_t>(s.rank)}).ok());
  EXPECT_TRUE(ops::attention(run.context, {.q = q.tensor(), .k_cache = k.tensor().data, .v_cache = v.tensor().data, .capacity = kCapacity,
                                           .sequences = {s.tokens, 0}, .heads = heads, .kv_heads = heads, .head_dim = static_cast<int32_t>(s.nope + s.rope), .v_head_dim = static_cast<int32_t>(s.v),
                                           .scale = scale, .out = out.tensor()}).ok());
  return out.values();
}

TEST(LatentAttention, BothFormsAreTheSameFunctionOnEveryInstructionSet) {
  auto runners = make_runners(2);
  std::vector<CodedFormat> formats = testing::all_formats();
  for (const Shape& s : {Shape{5, 2, 16, 8, 16, 32}, Shape{70, 3, 11, 6, 13, 21}, Shape{9, 14, 40, 10, 24, 150}}) {
    for (size_t f = 0; f <= formats.size(); ++f) {
      if (f > 1 && s.tokens > 10) continue;
      CodedWeight coded(formats[f % formats.size()], s.heads * (s.nope + s.v), s.rank, 7);
      TestMatrix<float> plain = coded.decoded(), q(s.tokens, s.heads * (s.nope + s.rope)), kv(s.tokens, s.rank + s.rope);
      const Weight w = f == formats.size() ? Weight(plain.tensor()) : coded.weight();
      q.fill(coded.rng, 0.3f), kv.fill(coded.rng, 0.3f);
      const float scale = 0.1f;
      const std::vector<double> expected = exact(s, q, kv, w, double{scale});
      double size = 0;
      for (const double v : expected) size = std::max(size, std::fabs(v));
      std::vector<float> first;
      for (size_t i = 0; i < runners.size(); ++i) {
        const std::vector<float> a = absorbed(*runners[i], s, q, kv, w, scale), n = naive(*runners[i], s, q, kv, w, scale);
        if (i == 0) first = a;
        ASSERT_TRUE(testing::all_same(first, a)) << kernel_tables()[i].name;
        for (size_t j = 0; j < expected.size(); ++j) {
          ASSERT_NEAR(a[j], expected[j], 3e-5 * size) << kernel_tables()[i].name << " format " << f << " at " << j;
          ASSERT_NEAR(n[j], expected[j], 3e-5 * size) << kernel_tables()[i].name << " format " << f << " at " << j;
        }
      }
    }
  }
}

TEST(LatentAttention, RotatesOnlyTheRotatedPartAndNormsOnlyTheLatent) {
  auto runners = make_runners();
  const int64_t tokens = 3, heads = 2, nope = 5, rope = 6, rank = 19;
  for (const bool interleaved : {true, false}) {
    for (size_t i = 0; i < runners.size(); ++i) {
      std::mt19937_64 rng(4);
      TestMatrix<float> q(tokens, heads * (nope + rope)), kv(tokens, rank + rope), norm(1, rank), cos(tokens, rope / 2), sin(tokens, rope / 2);
      q.fill(rng), kv.fill(rng), norm.fill(rng), cos.fill(rng), sin.fill(rng);
      const TestMatrix<float> q0 = q, kv0 = kv;
      ASSERT_TRUE(ops::latent_prepare(runners[i]->context,
                                      {.q = q.tensor(), .kv = kv.tensor(), .norm = norm.tensor().as<float>(), .eps = 1e-6f, .cos = cos.tensor().as<float>(),
                                       .sin = sin.tensor().as<float>(), .heads = 2, .nope = 5, .rope = 6, .rank = 19, .interleaved = interleaved}).ok());
      const auto check = [&](const TestMatrix<float>& before, const TestMatrix<float>& after, int64_t t, int64_t at) {
        for (int64_t p = 0; p < rope / 2; ++p) {
          const int64_t a = at + (interleaved ? 2 * p : p), b = at + (interleaved ? 2 * p + 1 : rope / 2 + p);
          ASSERT_NEAR(after.value(t, a), before.value(t, a) * cos.value(t, p) - before.value(t, b) * sin.value(t, p), 1e-5);
          ASSERT_NEAR(after.value(t, b), before.value(t, b) * cos.value(t, p) + before.value(t, a) * sin.value(t, p), 1e-5);
        }
      };
      for (int64_t t = 0; t < tokens; ++t) {
        for (int64_t h = 0; h < heads; ++h) {
          for (int64_t d = 0; d < nope; ++d) ASSERT_EQ(q.at(t, h * 11 + d), q0.at(t, h * 11 + d));
          check(q0, q, t, h * 11 + nope);
        }
        check(kv0, kv, t, rank);
        double sum = 0;
        for (int64_t r = 0; r < rank; ++r) sum += kv0.value(t, r) * kv0.value(t, r);
        for (int64_t r = 0; r < rank; ++r) ASSERT_NEAR(kv.value(t, r), kv0.value(t, r) / std::sqrt(sum / 19 + 1e-6) * norm.value(0, r), 1e-5);
      }
    }
  }
}

// A sink takes its share of the softmax and adds no value; -infinity is no sink; windows and many heads on one key too.
TEST(Attention, SinksTakeTheirShare) {
  auto runners = make_runners(2);
  const int64_t tokens = 70, heads = 8, dim = 20;
  std::mt19937_64 rng(5);
  TestMatrix<float> q(tokens, heads * dim), k(kCapacity, dim), v(kCapacity, dim), sinks(1, heads), out(tokens, heads * dim);
  q.fill(rng), k.fill(rng), v.fill(rng), sinks.fill(rng, 3);
  sinks.at(0, 3) = -INFINITY;
  sinks.at(0, 4) = 60;
  for (const int64_t window : {0, 5}) {
    std::vector<float> first;
    for (size_t i = 0; i < runners.size(); ++i) {
      ASSERT_TRUE(ops::attention(runners[i]->context, {.q = q.tensor(), .k_cache = k.tensor().data, .v_cache = v.tensor().data, .capacity = kCapacity,
                                                       .sequences = {tokens, 0}, .window = window, .heads = 8, .kv_heads = 1, .head_dim = 20, .scale = 0.3f,
                                                       .sinks = sinks.tensor().as<float>(), .out = out.tensor()}).ok());
      if (i == 0) first = out.values();
      ASSERT_TRUE(testing::all_same(first, out.values())) << kernel_tables()[i].name;
      for (int64_t t = 0; t < tokens; ++t) {
        for (int64_t h = 0; h < heads; ++h) {
          std::vector<double> sum(static_cast<size_t>(dim));
          double total = std::exp(sinks.value(0, h));
          for (int64_t j = window > 0 ? std::max<int64_t>(0, t - window + 1) : 0; j <= t; ++j) {
            double score = 0;
            for (int64_t d = 0; d < dim; ++d) score += q.value(t, h * dim + d) * k.value(j, d);
            const double p = std::exp(score * 0.3);
            total += p;
            for (int64_t d = 0; d < dim; ++d) sum[static_cast<size_t>(d)] += p * v.value(j, d);
          }
          for (int64_t d = 0; d < dim; ++d) ASSERT_NEAR(out.value(t, h * dim + d), sum[static_cast<size_t>(d)] / total, 2e-5) << h << " " << t;
        }
      }
    }
  }
}

TEST(LatentAttention, NamesWhatDoesNotFit) {
  auto runners = make_runners();
  TestMatrix<float> x(2, 20), w(30, 8), y(2, 16);
  ops::HeadMatmulArgs args{.x = x.tensor(), .w = w.tensor(), .y = y.tensor(), .heads = 2, .x_width = 10, .y_width = 8, .stride = 15, .count = 10, .transposed = true};
  EXPECT_TRUE(ops::head_matmul(runners[0]->context, args).ok());
  args.first = 6;
  EXPECT_EQ(ops::head_matmul(runners[0]->context, args).code(), StatusCode::kInvalidArgument);
  args.first = 0, args.heads = 3;
  EXPECT_EQ(ops::head_matmul(runners[0]->context, args).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(ops::latent_cache(runners[0]->context, {.kv = x.tensor(), .capacity = 1, .sequences = {2, 0}, .heads = 1, .rope = 4, .rank = 16}).code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace pointsman
