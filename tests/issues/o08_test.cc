// SPDX-License-Identifier: Apache-2.0
//
// O8 (sglang-jax#1282, flashinfer#2889): the scaling factor was applied only when normalising, and the norm flag was ignored.
#include "ops/moe/router.h"
#include "support/ops_fixture.h"

namespace pointsman {
namespace {

using testing::TestMatrix;

TEST(O08, WeightsSumToScaleWhenNormalisedAndToScaleTimesTheRawSumWhenNot) {
  auto runners = testing::make_runners();
  std::mt19937_64 rng(8);
  for (const auto score : {ops::ScoreFunction::kSoftmax, ops::ScoreFunction::kSigmoid, ops::ScoreFunction::kSqrtSoftplus}) {
    for (const bool normalize : {true, false}) {
      for (const float scale : {1.0f, 2.5f}) {
        const ops::RouterContract c{.score = score, .num_experts = 16, .top_k = 3, .normalize = normalize, .norm_epsilon = 1e-20f, .scale = scale};
        TestMatrix<float> logits(50, 16);
        logits.fill(rng);
        for (size_t i = 0; i < runners.size(); ++i) {
          std::vector<int32_t> ids(150);
          std::vector<float> weights(150);
          ops::RouterReport report;
          ASSERT_TRUE(ops::route(runners[i]->context, {.contract = c, .logits = logits.tensor(), .ids = ids.data(), .weights = weights.data(),
                                                       .report = &report}).ok());
          for (int64_t t = 0; t < 50; ++t) {
            double softmax_sum = 0, sum = 0, raw = 0;
            for (int64_t e = 0; e < 16; ++e) softmax_sum += std::exp(logits.value(t, e));
            for (size_t k = 0; k < 3; ++k) {
              const double z = logits.value(t, ids[static_cast<size_t>(t) * 3 + k]);
              sum += weights[static_cast<size_t>(t) * 3 + k];
              raw += score == ops::ScoreFunction::kSoftmax   ? std::exp(z) / softmax_sum
                     : score == ops::ScoreFunction::kSigmoid ? 1 / (1 + std::exp(-z))
                                                             : std::sqrt(std::log1p(std::exp(z)));
            }
            const double expected = normalize ? scale : scale * raw;
            ASSERT_NEAR(sum, expected, 1e-6 * std::max(1.0, expected)) << testing::kernel_tables()[i].name << " norm " << normalize << " scale " << scale;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace pointsman
