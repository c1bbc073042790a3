// SPDX-License-Identifier: Apache-2.0
#include "tools/routing_target.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "tools/position_kernel.h"

namespace pointsman::tools {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

double sum(const std::vector<double>& v) { return std::accumulate(v.begin(), v.end(), 0.0); }

TEST(RoutingTarget, StretchedCurvesKeepTheirSumAndOrder) {
  EXPECT_THAT(stretch_ranks({0.6, 0.3, 0.1}, 3), ElementsAre(DoubleNear(0.6, 1e-12), DoubleNear(0.3, 1e-12), DoubleNear(0.1, 1e-12)));
  EXPECT_THAT(stretch_ranks({0.6, 0.4}, 4), ElementsAre(DoubleNear(0.3, 1e-12), DoubleNear(0.3, 1e-12), DoubleNear(0.2, 1e-12), DoubleNear(0.2, 1e-12)));
  EXPECT_THAT(stretch_ranks({0.4, 0.3, 0.2, 0.1}, 2), ElementsAre(DoubleNear(0.7, 1e-12), DoubleNear(0.3, 1e-12)));
  EXPECT_THAT(stretch_ranks({0.6, 0.3, 0.1}, 2), ElementsAre(DoubleNear(0.75, 1e-12), DoubleNear(0.25, 1e-12)));
}

TEST(RoutingTarget, FrequenciesSumToTopKWithinTheirLimits) {
  EXPECT_THAT(frequencies_of({1, 1, 1, 1}, 2), ElementsAre(DoubleNear(0.5, 1e-9), DoubleNear(0.5, 1e-9), DoubleNear(0.5, 1e-9), DoubleNear(0.5, 1e-9)));
  // One expert cannot be chosen more than once per token: the others get what is left.
  const std::vector<double> f = frequencies_of({100, 2, 1, 1}, 2);
  EXPECT_NEAR(f[0], kMostFrequency, 1e-9);
  EXPECT_NEAR(sum(f), 2, 1e-9);
  EXPECT_NEAR(f[1], 2 * f[2], 1e-6);
  // Only two of six are ever chosen.
  const std::vector<double> dead = frequencies_of({1, 1, 0, 0, 0, 0}, 2);
  EXPECT_NEAR(sum(dead), 2, 1e-9);
  for (const double x : dead) {
    EXPECT_GE(x, kLeastFrequency - 1e-12);
    EXPECT_LE(x, kMostFrequency + 1e-12);
  }
}

// Two of eight drawn one after the other, without the first: p_i + sum over j != i of p_j * p_i / (1 - p_j).
TEST(RoutingTarget, ZipfWithoutPersistenceIsDrawingWithoutRepeats) {
  const auto target = routing_target("zipf:s=1,stay=0,seed=4", {.layers = 3, .experts = 8, .top_k = 2}, 1);
  ASSERT_TRUE(target.ok()) << target.status().message();
  std::vector<double> p;
  for (int rank = 1; rank <= 8; ++rank) p.push_back(1.0 / rank);
  const double total = sum(p);
  for (double& x : p) x /= total;
  for (std::vector<double> layer : target->frequency) {
    std::sort(layer.begin(), layer.end(), std::greater<>());
    for (size_t i = 0; i < p.size(); ++i) {
      double expected = p[i];
      for (size_t j = 0; j < p.size(); ++j) expected += j == i ? 0 : p[j] * p[i] / (1 - p[j]);
      EXPECT_NEAR(layer[i], expected, 0.003) << i;
    }
  }
  EXPECT_NE(target->frequency[0], target->frequency[1]);
  EXPECT_NEAR(target->kept, target->chance, 0.003);
}

TEST(RoutingTarget, SaysWhatIsWrong) {
  const RoutingShape shape{.layers = 2, .experts = 8, .top_k = 2};
  EXPECT_THAT(routing_target("uniform", shape, 1).status().message(), HasSubstr("'uniform': expected zipf:s=0.6,stay=0.3,seed=0"));
  EXPECT_THAT(routing_target("zipf:s=1,experts=9", shape, 1).status().message(), HasSubstr("experts is the model's"));
  EXPECT_THAT(routing_target("zipf:s=9", shape, 1).status().message(), HasSubstr("s=9: expected 0 to 8"));
  EXPECT_THAT(routing_target("zipf:top=9", shape, 1).status().message(), HasSubstr("top=9"));
  EXPECT_THAT(routing_target("trace:", shape, 1).status().message(), HasSubstr("trace:PATH"));
  EXPECT_FALSE(routing_target("trace:/nonexistent.safetensors", shape, 1).ok());
  EXPECT_THAT(routing_target("zipf", {.layers = 2, .experts = 2, .top_k = 2}, 1).status().message(), HasSubstr("nothing to choose"));
}

// Weights of a kernel fall by about e in 1 / rate tokens, with the ripple of few frequencies, and are nothing far away.
TEST(PositionKernel, FallsWithTheDistance) {
  for (const int64_t head_dim : {32, 64, 128}) {
    double before = 0;
    for (const double rate : {0.02, 0.2, 1.0}) {
      const PositionKernel k = position_kernel({.head_dim = head_dim, .context = 4096, .rope_theta = 1e6}, rate, [](float v) { return v; });
      ASSERT_EQ(k.weights.size(), 4096u);
      EXPECT_NEAR(std::accumulate(k.weights.begin(), k.weights.end(), 0.0), 1, 1e-9);
      const auto reach = static_cast<size_t>(1 / rate);
      for (size_t i = 1; i < 4; ++i) {
        const double ratio = k.weights[(i - 1) * reach] / k.weights[i * reach];
        EXPECT_GT(ratio, 1.3) << head_dim << " " << rate << " " << i;
        EXPECT_LT(ratio, 4.5) << head_dim << " " << rate << " " << i;
      }
      EXPECT_GT(std::accumulate(k.weights.begin(), k.weights.begin() + static_cast<ptrdiff_t>(12 * reach), 0.0), 0.95) << head_dim << " " << rate;
      const double squares = std::inner_product(k.weights.begin(), k.weights.end(), k.weights.begin(), 0.0);
      EXPECT_GT(squares, before);  // fewer tokens count
      before = squares;
    }
  }
}

}  // namespace
}  // namespace pointsman::tools
