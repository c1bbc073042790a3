// SPDX-License-Identifier: Apache-2.0
//
// The router against tests/golden/router/cases.json: contracts of several families, chosen experts and weights computed in float64 by
// python/golden and, where transformers has the family, agreed on by its class.
#include <fstream>
#include <iterator>
#include <optional>

#include "base/json.h"
#include "ops/moe/router.h"
#include "support/golden.h"
#include "support/ops_fixture.h"

namespace pointsman {
namespace {

using testing::kernel_tables;
using testing::make_runners;
using testing::TestMatrix;

ops::RouterContract contract_of(const Json& j) {
  const auto number = [&](const char* key) { return j.find(key)->as_double(); };
  const auto integer = [&](const char* key) { return static_cast<int32_t>(j.find(key)->as_int()); };
  const std::string score = j.find("score")->as_string();
  EXPECT_TRUE(score == "softmax" || score == "sigmoid" || score == "sqrt_softplus" || score == "softmax_over_top_k") << score;
  return {.score = score == "softmax"         ? ops::ScoreFunction::kSoftmax
                   : score == "sigmoid"       ? ops::ScoreFunction::kSigmoid
                   : score == "sqrt_softplus" ? ops::ScoreFunction::kSqrtSoftplus
                                              : ops::ScoreFunction::kSoftmaxOverTopK,
          .num_experts = integer("num_experts"),
          .top_k = integer("top_k"),
          .n_group = integer("n_group"),
          .topk_group = integer("topk_group"),
          .group_score = j.find("group_score")->as_string() == "max" ? ops::GroupScore::kMax : ops::GroupScore::kTop2Sum,
          .normalize = j.find("normalize")->as_bool(),
          .norm_epsilon = static_cast<float>(number("norm_epsilon")),
          .scale = static_cast<float>(number("scale"))};
}

TEST(RouterGolden, ReferenceAndKernelsAgreeWithEveryCase) {
  std::ifstream in(testing::source_path("tests/golden/router/cases.json"));
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  auto parsed = parse_json(text);
  ASSERT_TRUE(parsed.ok()) << parsed.status().to_string();
  auto runners = make_runners(2);
  int cases = 0;
  for (const Json& j : parsed->as_array()) {
    const std::string name = j.find("name")->as_string();
    SCOPED_TRACE(name);
    ++cases;
    const ops::RouterContract c = contract_of(*j.find("contract"));
    ASSERT_TRUE(ops::check_contract(c).ok());
    std::vector<float> bias;
    if (j.find("bias")->is_array()) {
      for (const Json& b : j.find("bias")->as_array()) bias.push_back(static_cast<float>(b.as_double()));
    }
    const auto& rows = j.find("logits")->as_array();
    const int64_t tokens = static_cast<int64_t>(rows.size());
    const size_t k = static_cast<size_t>(c.top_k);
    TestMatrix<float> logits(tokens, c.num_experts);
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t e = 0; e < c.num_experts; ++e) logits.at(t, e) = static_cast<float>(rows[static_cast<size_t>(t)].as_array()[static_cast<size_t>(e)].as_double());
    }
    const auto expected_id = [&](int64_t t, size_t i) { return j.find("ids")->as_array()[static_cast<size_t>(t)].as_array()[i].as_int(); };
    const auto expected_weight = [&](int64_t t, size_t i) { return j.find("weights")->as_array()[static_cast<size_t>(t)].as_array()[i].as_double(); };
    // The float64 reference: to the twelve digits that the file has.
    for (int64_t t = 0; t < tokens; ++t) {
      std::vector<float> row(&logits.at(t, 0), &logits.at(t, 0) + c.num_experts);
      std::vector<int32_t> ids(k);
      std::vector<double> weights(k);
      ops::route_reference(c, row, bias, {}, t, ids, weights);
      for (size_t i = 0; i < k; ++i) {
        EXPECT_EQ(ids[i], expected_id(t, i)) << "reference, token " << t;
        EXPECT_NEAR(weights[i], expected_weight(t, i), 1e-6 * std::fabs(expected_weight(t, i)) + 1e-12) << "reference, token " << t;
      }
    }
    for (size_t r = 0; r < runners.size(); ++r) {
      std::vector<int32_t> ids(static_cast<size_t>(tokens) * k);
      std::vector<float> weights(ids.size());
      ops::RouterReport report;
      ASSERT_TRUE(ops::route(runners[r]->context, {.contract = c, .logits = logits.tensor(), .bias = bias.empty() ? nullptr : bias.data(), .ids = ids.data(),
                                                   .weights = weights.data(), .report = &report}).ok());
      EXPECT_EQ(report.bad_token, -1);
      for (int64_t t = 0; t < tokens; ++t) {
        for (size_t i = 0; i < k; ++i) {
          const size_t slot = static_cast<size_t>(t) * k + i;
          EXPECT_EQ(ids[slot], expected_id(t, i)) << kernel_tables()[r].name << ", token " << t;
          EXPECT_NEAR(weights[slot], expected_weight(t, i), 1e-5 * std::fabs(expected_weight(t, i)) + 1e-12) << kernel_tables()[r].name << ", token " << t;
        }
      }
    }
  }
  EXPECT_GE(cases, 60);
}

}  // namespace
}  // namespace pointsman
