// SPDX-License-Identifier: Apache-2.0
#include "ops/hyper/hyper_connection.h"

#include "support/ops_fixture.h"

namespace pointsman {
namespace {

using testing::all_same;
using testing::kernel_tables;
using testing::make_runners;
using testing::TestMatrix;

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// The formulas of the header, token by token, in double.
struct Site {
  std::vector<double> pre, post, comb;  // [n], [n], [n * n]
};
Site exact_site(const std::vector<double>& m, const float* base, const float* scale, int64_t n, int64_t iters, double eps) {
  const auto un = static_cast<size_t>(n);
  Site s{std::vector<double>(un), std::vector<double>(un), std::vector<double>(un * un)};
  for (size_t j = 0; j < un; ++j) s.pre[j] = sigmoid(m[j] * scale[0] + base[j]) + eps;
  for (size_t j = 0; j < un; ++j) s.post[j] = 2 * sigmoid(m[un + j] * scale[1] + base[un + j]);
  for (size_t j = 0; j < un; ++j) {
    double sum = 0;
    for (size_t k = 0; k < un; ++k) sum += s.comb[j * un + k] = std::exp(m[2 * un + j * un + k] * scale[2] + base[2 * un + j * un + k]);
    for (size_t k = 0; k < un; ++k) s.comb[j * un + k] = s.comb[j * un + k] / sum + eps;
  }
  for (int64_t i = 0; i < 2 * iters - 1; ++i) {
    const bool columns = i % 2 == 0;
    for (size_t a = 0; a < un; ++a) {
      const auto at = [&](size_t b) -> double& { return columns ? s.comb[b * un + a] : s.comb[a * un + b]; };
      double sum = eps;
      for (size_t b = 0; b < un; ++b) sum += at(b);
      for (size_t b = 0; b < un; ++b) at(b) /= sum;
    }
  }
  return s;
}

TEST(HyperConnection, CollapseAndExpandFollowTheFormulas) {
  auto one = make_runners(1), three = make_runners(3);
  std::mt19937_64 rng(1);
  for (const int64_t n : {1, 2, 3, 4, 16}) {
    for (const auto& [tokens, hidden] : {std::pair{1, 1}, {3, 17}, {2, 64}, {40, 33}}) {
      const int64_t num_mixes = (2 + n) * n;
      TestMatrix<float> x(tokens, n * hidden, 2, 3), mixes(tokens, num_mixes, 1, 2), base(1, num_mixes), scale(1, 3), y(tokens, hidden, 1, 1);
      x.fill(rng), mixes.fill(rng, 3), base.fill(rng), scale.fill(rng), y.fill(rng);
      std::vector<float> first_u, first_x;
      for (size_t i = 0; i < one.size(); ++i) {
        TestMatrix<float> m = mixes, m3 = mixes, u(tokens, hidden, 3, 2), u3(tokens, hidden), streams = x, out = y;
        ops::HcCollapseArgs args{.streams = x.tensor(), .mixes = m.tensor(), .base = &base.at(0, 0), .scale = &scale.at(0, 0), .n = n,
                                 .sinkhorn_iters = 20, .eps = 1e-6f, .rms_eps = 1e-5f, .out = u.tensor()};
        ASSERT_TRUE(ops::hc_collapse(one[i]->context, args).ok());
        args.mixes = m3.tensor(), args.out = u3.tensor();
        ASSERT_TRUE(ops::hc_collapse(three[i]->context, args).ok());
        ASSERT_TRUE(ops::hc_expand(one[i]->context, {.y = out.tensor(), .mixes = m.tensor(), .n = n, .streams = streams.tensor()}).ok());
        if (i == 0) first_u = u.values(), first_x = streams.values();
        EXPECT_TRUE(all_same(first_u, u.values())) << kernel_tables()[i].name;
        EXPECT_TRUE(all_same(first_u, u3.values())) << "threads";
        EXPECT_TRUE(all_same(first_x, streams.values())) << kernel_tables()[i].name;
        EXPECT_TRUE(u.untouched_outside() && m.untouched_outside() && streams.untouched_outside() && out.untouched_outside());
        for (const float v : out.values()) ASSERT_EQ(v, 0) << "y is consumed";

        for (int64_t t = 0; t < tokens; ++t) {
          double square = 0;
          for (int64_t c = 0; c < n * hidden; ++c) square += x.value(t, c) * x.value(t, c);
          const double norm = 1 / std::sqrt(square / static_cast<double>(n * hidden) + static_cast<double>(1e-5f));
          std::vector<double> z;
          for (int64_t c = 0; c < num_mixes; ++c) z.push_back(mixes.value(t, c) * norm);
          const Site s = exact_site(z, &base.at(0, 0), &scale.at(0, 0), n, 20, static_cast<double>(1e-6f));
          double columns = 0;
          for (int64_t j = 0; j < n; ++j) columns += m.value(t, 2 * n + j * n);
          EXPECT_NEAR(columns, 1, 1e-5) << "the last step makes columns sum to 1";
          for (int64_t h = 0; h < hidden; ++h) {
            double exact = 0;
            for (int64_t j = 0; j < n; ++j) exact += s.pre[static_cast<size_t>(j)] * x.value(t, j * hidden + h);
            ASSERT_NEAR(u.value(t, h), exact, 2e-5 * (1 + std::fabs(exact)));
            for (int64_t k = 0; k < n; ++k) {
              double next = s.post[static_cast<size_t>(k)] * y.value(t, h);
              for (int64_t j = 0; j < n; ++j) next += s.comb[static_cast<size_t>(j * n + k)] * x.value(t, j * hidden + h);
              ASSERT_NEAR(streams.value(t, k * hidden + h), next, 2e-5 * (1 + std::fabs(next))) << "stream " << k << " of " << n;
            }
          }
        }
      }
    }
  }
}

TEST(HyperConnection, HeadUsesPreOnly) {
  auto runners = make_runners();
  std::mt19937_64 rng(2);
  constexpr int64_t n = 3, hidden = 20;
  TestMatrix<float> x(2, n * hidden), mixes(2, n), base(1, n), u(2, hidden);
  x.fill(rng), mixes.fill(rng), base.fill(rng);
  const float scale = 0.7f;
  for (auto& r : runners) {
    TestMatrix<float> m = mixes;
    ASSERT_TRUE(ops::hc_collapse(r->context, {.streams = x.tensor(), .mixes = m.tensor(), .base = &base.at(0, 0), .scale = &scale, .n = n, .eps = 1e-6f,
                                              .rms_eps = 1e-6f, .head = true, .out = u.tensor()}).ok());
    for (int64_t t = 0; t < 2; ++t) {
      double square = 0;
      for (int64_t c = 0; c < n * hidden; ++c) square += x.value(t, c) * x.value(t, c);
      const double norm = 1 / std::sqrt(square / (n * hidden) + 1e-6);
      for (int64_t h = 0; h < hidden; ++h) {
        double exact = 0;
        for (int64_t j = 0; j < n; ++j) exact += (sigmoid(mixes.value(t, j) * norm * double{scale} + base.value(0, j)) + 1e-6) * x.value(t, j * hidden + h);
        ASSERT_NEAR(u.value(t, h), exact, 1e-5 * (1 + std::fabs(exact)));
      }
    }
  }
}

TEST(HyperConnection, SpreadCopiesToEveryStreamAndClears) {
  auto runners = make_runners(2);
  std::mt19937_64 rng(3);
  for (auto& r : runners) {
    TestMatrix<float> h(5, 19, 1, 2), streams(5, 4 * 19, 2, 1);
    h.fill(rng);
    const TestMatrix<float> before = h;
    ASSERT_TRUE(ops::hc_spread(r->context, {.h = h.tensor(), .streams = streams.tensor()}).ok());
    for (int64_t t = 0; t < 5; ++t) {
      for (int64_t c = 0; c < 4 * 19; ++c) ASSERT_EQ(streams.at(t, c), before.at(t, c % 19));
      for (int64_t c = 0; c < 19; ++c) ASSERT_EQ(h.at(t, c), 0);
    }
    EXPECT_TRUE(h.untouched_outside() && streams.untouched_outside());
  }
}

TEST(HyperConnection, RefusesWhatDoesNotFit) {
  testing::OpRunner run(kernel_tables()[0].table);
  TestMatrix<float> streams(2, 24), mixes(2, 24), u(2, 8), base(1, 24);
  const float scale[3] = {1, 1, 1};
  const auto collapse = [&](int64_t n) {
    return ops::hc_collapse(run.context, {.streams = streams.tensor(), .mixes = mixes.tensor(), .base = &base.at(0, 0), .scale = scale, .n = n, .out = u.tensor()}).code();
  };
  EXPECT_EQ(collapse(4), StatusCode::kInvalidArgument);   // streams hold 3
  EXPECT_EQ(collapse(3), StatusCode::kInvalidArgument);   // mixes hold 4
  EXPECT_EQ(collapse(17), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace pointsman
