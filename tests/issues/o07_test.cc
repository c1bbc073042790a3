// SPDX-License-Identifier: Apache-2.0
//
// O7 (vllm#13474, DeepSeek-V3#741): masked groups got score 0, so with negative biased scores a masked expert won.
#include <algorithm>

#include "ops/moe/router.h"
#include "support/ops_fixture.h"

namespace pointsman {
namespace {

using testing::kernel_tables;
using testing::TestMatrix;

TEST(O07, MaskedExpertsNeverWinAgainstNegativeBiasedScores) {
  auto runners = testing::make_runners();
  const std::vector<float> bias(8, -5.0f);  // a sigmoid is below 1: every biased score is below -4
  std::mt19937_64 rng(7);
  for (const auto group_score : {ops::GroupScore::kMax, ops::GroupScore::kTop2Sum}) {
    for (const int top_k : {1, 2, 4}) {
      const ops::RouterContract c{.score = ops::ScoreFunction::kSigmoid, .num_experts = 8, .top_k = top_k, .n_group = 4, .topk_group = 2,
                                  .group_score = group_score, .normalize = true, .norm_epsilon = 1e-20f};
      TestMatrix<float> logits(64, 8);
      logits.fill(rng, 2);
      for (size_t i = 0; i < runners.size(); ++i) {
        std::vector<int32_t> ids(static_cast<size_t>(64 * top_k));
        std::vector<float> weights(ids.size());
        ops::RouterReport report;
        ASSERT_TRUE(ops::route(runners[i]->context, {.contract = c, .logits = logits.tensor(), .bias = bias.data(), .ids = ids.data(),
                                                     .weights = weights.data(), .report = &report}).ok());
        for (int64_t t = 0; t < 64; ++t) {
          // The two best groups, by hand.
          std::vector<std::pair<double, int>> groups;
          for (int g = 0; g < 4; ++g) {
            const double a = 1 / (1 + std::exp(-logits.value(t, 2 * g))) - 5, b = 1 / (1 + std::exp(-logits.value(t, 2 * g + 1))) - 5;
            ASSERT_LT(std::max(a, b), 0);
            groups.emplace_back(group_score == ops::GroupScore::kMax ? std::max(a, b) : a + b, g);
          }
          std::sort(groups.rbegin(), groups.rend());
          std::vector<float> row(&logits.at(t, 0), &logits.at(t, 0) + 8);
          std::vector<int32_t> expected(static_cast<size_t>(top_k));
          std::vector<double> w(expected.size());
          ops::route_reference(c, row, bias, {}, t, expected, w);
          for (int k = 0; k < top_k; ++k) {
            const int32_t id = ids[static_cast<size_t>(t * top_k + k)];
            EXPECT_TRUE(id / 2 == groups[0].second || id / 2 == groups[1].second) << kernel_tables()[i].name << " token " << t << " chose masked expert " << id;
            EXPECT_EQ(id, expected[static_cast<size_t>(k)]) << kernel_tables()[i].name << " token " << t;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace pointsman
