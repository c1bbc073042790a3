// SPDX-License-Identifier: Apache-2.0
#include "experts/routing_stats.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace pointsman {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;

// Counted by hand: two layers of four experts, two chosen, runs of three and two tokens.
TEST(RoutingStats, CountsByHand) {
  const RoutingTrace trace{.num_layers = 2, .num_experts = 4, .top_k = 2, .ids = {0, 1, 2, 3,   //
                                                                                  1, 2, 2, 3,   //
                                                                                  1, 0, 3, 2,   //
                                                                                  1, 0, 0, 1,   //
                                                                                  0, 1, 2, 3},  //
                           .run_starts = {0, 3}};
  ASSERT_TRUE(trace.check().ok());
  const RoutingStats stats = routing_stats(trace);
  ASSERT_EQ(stats.layers.size(), 2u);
  EXPECT_THAT(stats.layers[0].frequency, ElementsAre(0.8, 1.0, 0.2, 0.0));
  EXPECT_THAT(stats.layers[1].frequency, ElementsAre(0.2, 0.2, 0.8, 0.8));
  // Followers: tokens 1, 2 and 4. Layer 0: 1 of 2, 1 of 2, 2 of 2; layer 1: 2, 2, 0.
  EXPECT_DOUBLE_EQ(stats.layers[0].kept, 4.0 / 6);
  EXPECT_DOUBLE_EQ(stats.layers[1].kept, 4.0 / 6);
  EXPECT_DOUBLE_EQ(stats.layers[0].chance, (0.64 + 1 + 0.04) / 2);
  EXPECT_DOUBLE_EQ(stats.kept(), 4.0 / 6);
  EXPECT_THAT(stats.by_rank(), ElementsAre(DoubleNear(0.9, 1e-12), DoubleNear(0.8, 1e-12), DoubleNear(0.2, 1e-12), DoubleNear(0.1, 1e-12)));
}

TEST(RoutingStats, IndependentTokensKeepWhatChanceKeeps) {
  const RoutingTrace trace = make_trace({.num_layers = 3, .num_experts = 32, .top_k = 4, .num_tokens = 20000, .exponent = 0.9, .stay = 0});
  const RoutingStats stats = routing_stats(trace);
  EXPECT_NEAR(stats.kept(), stats.chance(), 0.005);
  EXPECT_GT(stats.chance(), 4.0 / 32 + 0.05);
  const RoutingStats sticky = routing_stats(make_trace({.num_layers = 3, .num_experts = 32, .top_k = 4, .num_tokens = 20000, .exponent = 0, .stay = 0.5}));
  EXPECT_NEAR(sticky.chance(), 4.0 / 32, 0.001);
  EXPECT_GT(sticky.kept(), 0.5);
}

TEST(RoutingStats, RunsOfOneTokenKeepNothing) {
  const RoutingTrace trace{.num_layers = 1, .num_experts = 2, .top_k = 1, .ids = {0, 0}, .run_starts = {0, 1}};
  EXPECT_EQ(routing_stats(trace).kept(), 0);
  EXPECT_EQ(routing_stats({.num_layers = 1, .num_experts = 2, .top_k = 1}).kept(), 0);
}

}  // namespace
}  // namespace pointsman
