// SPDX-License-Identifier: Apache-2.0
#include "ops/moe/expert_table.h"

#include "ops/moe/router.h"
#include "support/ops_fixture.h"

namespace pointsman {
namespace {

using testing::kernel_tables;
using testing::make_runners;
using testing::TestMatrix;

TEST(ExpertTable, GathersTheRowsOfTheTokens) {
  const std::vector<int32_t> table = {0, 1, 2, 3, 4, 5, 6, 7}, tokens = {3, 0, 3, 2};
  for (auto& r : make_runners()) {
    std::vector<int32_t> out(9, -7);
    ASSERT_TRUE(ops::expert_table(r->context, {.table = table.data(), .tokens = tokens.data(), .rows = 4, .top_k = 2, .out = out.data()}).ok());
    EXPECT_EQ(out, (std::vector<int32_t>{6, 7, 0, 1, 6, 7, 4, 5, -7}));
  }
}

// With the choice made, scores still weigh: sqrt-softplus over the given experts, divided by their sum, times the scale; the bias plays no part.
TEST(ExpertTable, GivenExpertsAreWeighedByTheirScores) {
  testing::OpRunner run(kernel_tables()[0].table);
  TestMatrix<float> logits(2, 4);
  const float z[2][4] = {{1, -2, 3, 0}, {-30, -25, -40, -28}};  // the second row: naive log(1 + e^z) would be 0 for all
  for (int64_t t = 0; t < 2; ++t) {
    for (int64_t e = 0; e < 4; ++e) logits.at(t, e) = z[t][e];
  }
  const float bias[4] = {100, 100, 100, 100};
  const std::vector<int32_t> given = {3, 1, 0, 2};
  std::vector<int32_t> ids(4);
  std::vector<float> weights(4);
  ops::RouterReport report;
  ASSERT_TRUE(ops::route(run.context, {.contract = {.score = ops::ScoreFunction::kSqrtSoftplus, .num_experts = 4, .top_k = 2, .normalize = true,
                                                    .norm_epsilon = 1e-20f, .scale = 2.5f},
                                       .logits = logits.tensor(), .bias = bias, .given_ids = given.data(), .ids = ids.data(), .weights = weights.data(),
                                       .report = &report}).ok());
  EXPECT_EQ(ids, given);
  EXPECT_EQ(report.bad_token, -1);
  EXPECT_EQ(report.guard_count, 0);
  for (size_t t = 0; t < 2; ++t) {
    const auto score = [&](size_t k) { return std::sqrt(std::log1p(std::exp(double{z[t][given[2 * t + k]]}))); };
    for (size_t k = 0; k < 2; ++k) EXPECT_NEAR(weights[2 * t + k], 2.5 * score(k) / (score(0) + score(1)), 1e-6);
  }
}

}  // namespace
}  // namespace pointsman
