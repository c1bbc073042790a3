// SPDX-License-Identifier: Apache-2.0
#include "ops/moe/router.h"

#include <algorithm>
#include <array>
#include <set>

#include "support/ops_fixture.h"

namespace pointsman {
namespace {

using ops::GroupScore;
using ops::GuardAction;
using ops::RouterContract;
using ops::RouterReport;
using ops::ScoreFunction;
using testing::kernel_tables;
using testing::make_runners;
using testing::OpRunner;
using testing::TestMatrix;

struct Routes {
  std::vector<int32_t> ids;
  std::vector<float> weights;
  RouterReport report;
};

Routes route(OpRunner& run, const RouterContract& c, TestMatrix<float>& logits, int64_t tokens, const float* bias = nullptr, ops::RouterNoise noise = {},
             int64_t first_token = 0, int64_t first_row = 0, int32_t* counts = nullptr) {
  Routes r{std::vector<int32_t>(static_cast<size_t>(tokens * c.top_k), -1), std::vector<float>(static_cast<size_t>(tokens * c.top_k), NAN),
           {.bad_token = 77, .guard_token = 77, .guard_count = 77}};
  const Status s = ops::route(run.context, {.contract = c, .logits = logits.tensor().slice_rows(first_row, tokens), .bias = bias, .noise = noise,
                                            .sequences = {tokens, first_token}, .ids = r.ids.data(), .weights = r.weights.data(), .counts = counts, .report = &r.report});
  EXPECT_TRUE(s.ok()) << s.to_string();
  return r;
}

double score64(ScoreFunction f, const std::vector<float>& z, size_t e, double softmax_sum, double largest) {
  const double v = z[e];
  switch (f) {
    case ScoreFunction::kSoftmax: return std::exp(v - largest) / softmax_sum;
    case ScoreFunction::kSigmoid: return 1 / (1 + std::exp(-v));
    case ScoreFunction::kSqrtSoftplus: return std::sqrt(std::log1p(std::exp(v)));
    case ScoreFunction::kSoftmaxOverTopK: return v;
  }
  return 0;
}

// Scores that fp32 cannot tell apart: a few ulp of the score (exponential, sum, division), and one of the sum with the bias.
bool indistinguishable(double a, double b, bool biased) { return std::fabs(a - b) <= 1e-6 * std::max(std::fabs(a), std::fabs(b)) + (biased ? 2.5e-7 : 0); }

// Whether fp32 rounding may have made this choice instead of the reference's: rank by rank the selection scores are indistinguishable, or
// the last kept group and the first dropped one are. Exact ties are no excuse: their order is part of the contract.
bool rounding_explains(const RouterContract& c, const std::vector<float>& z, const std::vector<float>& bias, const std::vector<int32_t>& found,
                       const std::vector<int32_t>& expected) {
  const double largest = *std::max_element(z.begin(), z.end());
  double sum = 0;
  for (const float v : z) sum += std::exp(v - largest);
  std::vector<double> selection;
  for (size_t e = 0; e < z.size(); ++e) selection.push_back(score64(c.score, z, e, sum, largest) + (bias.empty() ? 0.0 : bias[e]));
  if (c.topk_group < c.n_group) {
    const size_t size = z.size() / static_cast<size_t>(c.n_group);
    std::vector<double> groups;
    for (size_t g = 0; g < static_cast<size_t>(c.n_group); ++g) {
      std::vector<double> members(selection.begin() + static_cast<ptrdiff_t>(g * size), selection.begin() + static_cast<ptrdiff_t>((g + 1) * size));
      std::sort(members.rbegin(), members.rend());
      groups.push_back(members[0] + (c.group_score == GroupScore::kTop2Sum && size > 1 ? members[1] : 0));
    }
    std::sort(groups.rbegin(), groups.rend());
    const size_t cut = static_cast<size_t>(c.topk_group);
    if (indistinguishable(groups[cut - 1], groups[cut], !bias.empty())) return true;
  }
  for (size_t i = 0; i < found.size(); ++i) {
    const double a = selection[static_cast<size_t>(found[i])], b = selection[static_cast<size_t>(expected[i])];
    if (found[i] != expected[i] && (a == b || !indistinguishable(a, b, !bias.empty()))) return false;
  }
  return true;
}

// What the kernel chose against the reference.
void expect_like_reference(const RouterContract& c, const TestMatrix<float>& logits, const std::vector<float>& bias, const Routes& r, int64_t tokens,
                           const std::string& where, int* rounded = nullptr) {
  const size_t k = static_cast<size_t>(c.top_k);
  for (int64_t t = 0; t < tokens; ++t) {
    std::vector<float> row;
    for (int64_t e = 0; e < c.num_experts; ++e) row.push_back(logits.at(t, e));
    std::vector<int32_t> ids(k);
    std::vector<double> weights(k);
    ops::route_reference(c, row, bias, {}, t, ids, weights);
    const std::vector<int32_t> found(r.ids.begin() + t * c.top_k, r.ids.begin() + (t + 1) * c.top_k);
    if (found != ids) {
      ASSERT_EQ(std::set<int32_t>(found.begin(), found.end()).size(), k) << where << " token " << t << ": an expert twice";
      ASSERT_TRUE(rounded != nullptr && rounding_explains(c, row, bias, found, ids)) << where << " token " << t;
      ++*rounded;
      continue;
    }
    for (size_t i = 0; i < k; ++i) {
      ASSERT_NEAR(r.weights[static_cast<size_t>(t) * k + i], weights[i], 4e-6 * std::fabs(weights[i]) + 1e-30) << where << " token " << t << " slot " << i;
    }
  }
}

TEST(Route, FollowsTheReferenceOverContracts) {
  auto runners = make_runners(2);
  std::mt19937_64 rng(1);
  int contracts = 0, rounded = 0;
  int64_t rows = 0;
  for (const auto& [experts, top_k] : {std::pair{1, 1}, {6, 2}, {8, 2}, {64, 8}, {128, 8}, {384, 6}, {1024, 16}, {4096, 64}}) {
    const int64_t tokens = experts > 1000 ? 5 : 40;
    TestMatrix<float> logits(tokens, experts, 1, 3);
    logits.fill(rng, 2);
    std::vector<float> bias(static_cast<size_t>(experts));
    for (float& b : bias) b = static_cast<float>(static_cast<int>(rng() % 2001) - 1000) * 1e-3f;
    for (const auto score : {ScoreFunction::kSoftmax, ScoreFunction::kSigmoid, ScoreFunction::kSqrtSoftplus, ScoreFunction::kSoftmaxOverTopK}) {
      for (const bool normalize : {false, true}) {
        for (const int groups : {1, 2, 8}) {
          for (const auto group_score : {GroupScore::kMax, GroupScore::kTop2Sum}) {
            for (const bool biased : {false, true}) {
              RouterContract c{.score = score, .num_experts = experts, .top_k = top_k, .n_group = groups, .topk_group = (groups + 1) / 2,
                               .group_score = group_score, .normalize = normalize, .norm_epsilon = 1e-20f, .scale = 2.5f};
              if (!ops::check_contract(c).ok()) continue;
              ++contracts;
              for (size_t i = 0; i < runners.size(); ++i) {
                const Routes r = route(*runners[i], c, logits, tokens, biased ? bias.data() : nullptr);
                EXPECT_EQ(r.report.bad_token, -1);
                EXPECT_EQ(r.report.guard_count, 0);
                expect_like_reference(c, logits, biased ? bias : std::vector<float>{}, r, tokens,
                                      kernel_tables()[i].name + " E " + std::to_string(experts), &rounded);
                rows += tokens;
              }
            }
          }
        }
      }
    }
  }
  EXPECT_GT(contracts, 150);
  EXPECT_LT(rounded, rows / 50) << "of " << rows;  // 64 best of 4096 often hold two neighbours; elsewhere it is rare
}

// The fused gate takes other paths for few and many candidates, odd numbers of experts, ties and groups; every table must take them to the same
// bits, whatever the threads, and count what it chose.
TEST(Route, EveryInstructionSetGivesTheSameBitsAndCounts) {
  auto one = make_runners(1), three = make_runners(3);
  std::mt19937_64 rng(6);
  for (const auto& [experts, top_k, groups] :
       {std::tuple{1, 1, 1}, {5, 5, 1}, {16, 3, 1}, {17, 2, 1}, {32, 4, 4}, {40, 8, 5}, {64, 8, 1}, {64, 16, 1}, {96, 6, 3}, {160, 6, 8}, {256, 8, 8},
        {384, 6, 1}, {512, 10, 1}, {1000, 17, 1}, {1024, 16, 1}, {1024, 16, 32}}) {
    const int64_t tokens = experts > 500 ? 70 : 300;
    for (const int kind : {0, 1, 2}) {  // ordinary; few distinct values; a row of zeros, a NaN and far apart values among them
      TestMatrix<float> logits(tokens, experts, 1, 3);
      logits.fill(rng, kind == 2 ? 30 : 2);
      std::vector<float> bias(static_cast<size_t>(experts));
      for (float& b : bias) b = static_cast<float>(static_cast<int>(rng() % 5) - 2) * 0.25f;
      for (int64_t t = 0; t < tokens; ++t) {
        for (int64_t e = 0; e < experts; ++e) {
          if (kind == 1) logits.at(t, e) = static_cast<float>(rng() % 3);
          if (kind == 2 && t % 4 == 1) logits.at(t, e) = 0;
        }
        if (kind == 2 && t == 57) logits.at(t, experts / 2) = NAN;
      }
      for (const auto score : {ScoreFunction::kSoftmax, ScoreFunction::kSigmoid, ScoreFunction::kSqrtSoftplus, ScoreFunction::kSoftmaxOverTopK}) {
        for (const int variant : {0, 1, 2, 3}) {
          const RouterContract c{.score = score, .num_experts = experts, .top_k = top_k, .n_group = groups, .topk_group = (groups + 1) / 2,
                                 .group_score = variant % 2 == 0 ? GroupScore::kMax : GroupScore::kTop2Sum, .normalize = variant != 1,
                                 .norm_epsilon = variant == 2 ? 1e-20f : 0, .scale = 2.5f, .guard = GuardAction::kUniform};
          if (!ops::check_contract(c).ok()) continue;
          Routes expected;
          for (size_t i = 0; i < one.size(); ++i) {
            for (OpRunner* runner : {one[i].get(), three[i].get()}) {
              std::vector<int32_t> counts(static_cast<size_t>(experts) + 1, -7), counted(static_cast<size_t>(experts) + 1, 0);
              counted.back() = -7;
              const Routes r = route(*runner, c, logits, tokens, variant >= 2 ? bias.data() : nullptr, {}, 0, 0, counts.data());
              for (const int32_t id : r.ids) ++counted[static_cast<size_t>(id)];
              ASSERT_EQ(counts, counted);
              if (expected.ids.empty()) expected = r;
              ASSERT_EQ(r.ids, expected.ids) << kernel_tables()[i].name << ": " << top_k << " of " << experts << " kind " << kind << " variant " << variant;
              ASSERT_TRUE(testing::all_same(r.weights, expected.weights)) << kernel_tables()[i].name << ": " << top_k << " of " << experts << " kind " << kind;
              ASSERT_EQ(r.report.bad_token, kind == 2 ? 57 : -1);
              ASSERT_EQ(r.report.guard_count, expected.report.guard_count);
            }
          }
        }
      }
    }
  }
}

// Logits of few distinct values: most experts tie, and ties go to the lower id in kernel and reference alike.
TEST(Route, TiesGoToTheLowerId) {
  auto runners = make_runners();
  std::mt19937_64 rng(2);
  for (const auto score : {ScoreFunction::kSoftmax, ScoreFunction::kSigmoid, ScoreFunction::kSqrtSoftplus, ScoreFunction::kSoftmaxOverTopK}) {
    for (const int groups : {1, 4}) {
      RouterContract c{.score = score, .num_experts = 64, .top_k = 8, .n_group = groups, .topk_group = (groups + 1) / 2, .normalize = true};
      TestMatrix<float> logits(50, 64);
      for (int64_t t = 0; t < 50; ++t) {
        for (int64_t e = 0; e < 64; ++e) logits.at(t, e) = t == 0 ? 0.25f : static_cast<float>(rng() % 3) * 0.5f;
      }
      for (size_t i = 0; i < runners.size(); ++i) {
        const Routes r = route(*runners[i], c, logits, 50);
        for (int32_t k = 0; k < 8; ++k) EXPECT_EQ(r.ids[static_cast<size_t>(k)], k);
        expect_like_reference(c, logits, {}, r, 50, kernel_tables()[i].name);
      }
    }
  }
}

TEST(Route, ABiasThatIsNotFiniteChoosesNothing) {
  auto runners = make_runners(2);
  const RouterContract c{.score = ops::ScoreFunction::kSigmoid, .num_experts = 16, .top_k = 4, .normalize = true};
  std::mt19937_64 rng(3);
  TestMatrix<float> logits(20, 16);
  logits.fill(rng);
  std::vector<float> row(16);
  std::vector<int32_t> ids(4);
  std::vector<double> weights(4);
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    std::vector<float> bias(16, 0.5f);
    bias[11] = bad;
    for (auto& runner : runners) {
      const Routes r = route(*runner, c, logits, 20, bias.data());
      EXPECT_EQ(r.report.bad_token, 0);
      for (const int32_t id : r.ids) EXPECT_TRUE(id >= 0 && id < 16);
      for (const float w : r.weights) EXPECT_TRUE(std::isfinite(w));
    }
    EXPECT_EQ(ops::route_reference(c, row, bias, {}, 0, ids, weights).bad_token, 0);
  }
}

TEST(Route, EveryPlaceOfANanOrInfinityIsFoundAndNamed) {
  for (const int threads : {1, 3}) {
    auto runners = make_runners(threads);
    for (const int64_t experts : {1, 7, 16, 33, 128}) {
      const RouterContract c{.num_experts = static_cast<int32_t>(experts), .top_k = 1, .normalize = true};
      const int64_t tokens = 200;
      std::mt19937_64 rng(3);
      TestMatrix<float> logits(tokens, experts);
      logits.fill(rng);
      for (int64_t place = 0; place < experts; ++place) {
        for (const float bad : {NAN, -NAN, INFINITY, -INFINITY}) {
          const int64_t first = static_cast<int64_t>(rng() % 150), second = first + 1 + static_cast<int64_t>(rng() % 49);
          const float keep1 = logits.at(first, place), keep2 = logits.at(second, place);
          logits.at(first, place) = logits.at(second, place) = bad;
          for (auto& runner : runners) {
            const Routes r = route(*runner, c, logits, tokens);
            ASSERT_EQ(r.report.bad_token, first) << "expert " << place << " of " << experts << ": the first bad token, whichever thread met it";
            for (const int32_t id : r.ids) ASSERT_TRUE(id >= 0 && id < experts);
            for (const float w : r.weights) ASSERT_TRUE(std::isfinite(w));
          }
          logits.at(first, place) = keep1, logits.at(second, place) = keep2;
        }
      }
      for (int64_t e = 0; e < experts; ++e) logits.at(5, e) = -INFINITY;
      for (auto& runner : runners) EXPECT_EQ(route(*runner, c, logits, tokens).report.bad_token, 5);
    }
  }
}

TEST(Route, GuardCatchesScoresThatAllVanish) {
  auto runners = make_runners(2);
  for (const float epsilon : {0.0f, 1e-20f}) {  // 0 / 0 is NaN, 0 / 1e-20 is 0: neither sums to 1
    RouterContract c{.score = ScoreFunction::kSigmoid, .num_experts = 8, .top_k = 2, .normalize = true, .norm_epsilon = epsilon, .scale = 2.5f};
    TestMatrix<float> logits(40, 8);
    std::mt19937_64 rng(4);
    logits.fill(rng);
    for (const int64_t t : {7, 21, 39}) {
      for (int64_t e = 0; e < 8; ++e) logits.at(t, e) = -200;
    }
    for (auto& runner : runners) {
      Routes r = route(*runner, c, logits, 40);
      EXPECT_EQ(r.report.bad_token, -1);
      EXPECT_EQ(r.report.guard_token, 7);
      EXPECT_EQ(r.report.guard_count, 3);
      c.guard = GuardAction::kUniform;
      r = route(*runner, c, logits, 40);
      EXPECT_EQ(r.report.guard_count, 3);
      for (const int64_t t : {7, 21, 39}) {
        for (size_t k = 0; k < 2; ++k) EXPECT_EQ(r.weights[static_cast<size_t>(t) * 2 + k], 1.25f);
      }
      c.guard = GuardAction::kRefuse;
    }
    std::vector<float> row(8, -200.0f);
    std::vector<int32_t> ids(2);
    std::vector<double> weights(2);
    // float64 does not underflow here, so the reference's guard has nothing to say but for the epsilon.
    const RouterReport reference = ops::route_reference(c, row, {}, {}, 0, ids, weights);
    EXPECT_EQ(reference.guard_count, epsilon > 0 ? 1 : 0);
  }
}

TEST(Route, RawWeightsMaySumToAnything) {
  auto runners = make_runners();
  const RouterContract c{.score = ScoreFunction::kSigmoid, .num_experts = 8, .top_k = 2};
  TestMatrix<float> logits(1, 8);
  for (int64_t e = 0; e < 8; ++e) logits.at(0, e) = -3;
  for (auto& runner : runners) EXPECT_EQ(route(*runner, c, logits, 1).report.guard_count, 0);
}

TEST(Route, ChunksAndThreadsLeaveNoTraceEvenWithNoise) {
  auto one = make_runners(1), three = make_runners(3);
  const RouterContract c{.score = ScoreFunction::kSigmoid, .num_experts = 48, .top_k = 4, .n_group = 4, .topk_group = 2,
                         .group_score = GroupScore::kTop2Sum, .normalize = true};
  const ops::RouterNoise noise{.enabled = true, .seed = 11, .step = 3, .layer = 2};
  std::mt19937_64 rng(5);
  TestMatrix<float> logits(130, 48, 0, 5);
  logits.fill(rng);
  std::vector<float> bias(48, 0.125f);
  for (size_t i = 0; i < one.size(); ++i) {
    const Routes whole = route(*one[i], c, logits, 130, bias.data(), noise, 1000);
    for (const int64_t chunk : {1, 9, 64}) {
      for (int64_t t = 0; t < 130; t += chunk) {
        const int64_t n = std::min<int64_t>(chunk, 130 - t);
        const Routes part = route(*three[i], c, logits, n, bias.data(), noise, 1000 + t, t);
        for (size_t s = 0; s < part.ids.size(); ++s) {
          ASSERT_EQ(part.ids[s], whole.ids[static_cast<size_t>(t * 4) + s]);
          ASSERT_TRUE(testing::same(part.weights[s], whole.weights[static_cast<size_t>(t * 4) + s]));
        }
      }
    }
  }
}

// Gumbel noise on the logits samples experts in proportion to softmax(z); weights stay those of the clean logits.
TEST(Route, GumbelNoiseSamplesTheSoftmax) {
  OpRunner run(kernel_tables().back().table, 2);
  const RouterContract c{.num_experts = 5, .top_k = 1, .normalize = false};
  const std::vector<float> z = {0.5f, -1.0f, 2.0f, 0.0f, 1.0f};
  double total = 0;
  for (const float v : z) total += std::exp(v);
  const int64_t tokens = 40'000;
  TestMatrix<float> logits(tokens, 5);
  for (int64_t t = 0; t < tokens; ++t) std::copy(z.begin(), z.end(), &logits.at(t, 0));
  const Routes r = route(run, c, logits, tokens, nullptr, {.enabled = true, .seed = 3});
  std::array<int, 5> count{};
  for (size_t t = 0; t < r.ids.size(); ++t) {
    ++count[static_cast<size_t>(r.ids[t])];
    ASSERT_NEAR(r.weights[t], std::exp(z[static_cast<size_t>(r.ids[t])]) / total, 1e-6);
  }
  for (size_t e = 0; e < 5; ++e) {
    const double p = std::exp(z[e]) / total, sigma = std::sqrt(static_cast<double>(tokens) * p * (1 - p));
    EXPECT_NEAR(count[e], static_cast<double>(tokens) * p, 4.5 * sigma) << "expert " << e;
  }
}

// Two experts at a time: Plackett-Luce, P{i, j} = p_i p_j / (1 - p_i) + p_j p_i / (1 - p_j).
TEST(Route, GumbelNoiseSamplesPairsWithoutReplacement) {
  OpRunner run(kernel_tables().back().table, 2);
  const RouterContract c{.num_experts = 4, .top_k = 2, .normalize = true};
  const std::vector<float> z = {0.3f, -0.7f, 1.1f, 0.0f};
  double total = 0;
  for (const float v : z) total += std::exp(v);
  const int64_t tokens = 40'000;
  TestMatrix<float> logits(tokens, 4);
  for (int64_t t = 0; t < tokens; ++t) std::copy(z.begin(), z.end(), &logits.at(t, 0));
  const Routes r = route(run, c, logits, tokens, nullptr, {.enabled = true, .seed = 4, .layer = 9});
  std::array<std::array<int, 4>, 4> count{};
  for (size_t t = 0; t < static_cast<size_t>(tokens); ++t) {
    ++count[static_cast<size_t>(std::min(r.ids[2 * t], r.ids[2 * t + 1]))][static_cast<size_t>(std::max(r.ids[2 * t], r.ids[2 * t + 1]))];
  }
  for (size_t i = 0; i < 4; ++i) {
    for (size_t j = i + 1; j < 4; ++j) {
      const double a = std::exp(z[i]) / total, b = std::exp(z[j]) / total, p = a * b / (1 - a) + b * a / (1 - b);
      EXPECT_NEAR(count[i][j], static_cast<double>(tokens) * p, 4.5 * std::sqrt(static_cast<double>(tokens) * p * (1 - p))) << i << " " << j;
    }
  }
}

TEST(Route, NoiseIsItsOwnForEveryTokenLayerStepAndSeed) {
  std::set<double> seen;
  for (const uint64_t seed : {1u, 2u}) {
    for (const uint64_t step : {0u, 1u}) {
      for (const uint32_t layer : {0u, 1u}) {
        for (const int64_t token : {0, 1, 1000}) {
          for (const int32_t expert : {0, 1}) seen.insert(ops::gumbel_noise({.enabled = true, .seed = seed, .step = step, .layer = layer}, token, expert));
        }
      }
    }
  }
  EXPECT_EQ(seen.size(), 48u);
}

TEST(Route, ContractsOutOfRangeAreRefused) {
  const RouterContract good{.num_experts = 8, .top_k = 2, .n_group = 4, .topk_group = 2};
  EXPECT_TRUE(ops::check_contract(good).ok());
  const auto refused = [&](auto change) {
    RouterContract c = good;
    change(c);
    return ops::check_contract(c).code() == StatusCode::kInvalidArgument;
  };
  EXPECT_TRUE(refused([](auto& c) { c.num_experts = 0; }));
  EXPECT_TRUE(refused([](auto& c) { c.num_experts = ops::kMaxExperts + 1; }));
  EXPECT_TRUE(refused([](auto& c) { c.top_k = 0; }));
  EXPECT_TRUE(refused([](auto& c) { c.top_k = 9; }));
  EXPECT_TRUE(refused([](auto& c) { c.n_group = 3; }));
  EXPECT_TRUE(refused([](auto& c) { c.topk_group = 5; }));
  EXPECT_TRUE(refused([](auto& c) { c.topk_group = 0; }));
  EXPECT_TRUE(refused([](auto& c) { c.top_k = 5; }));  // two groups of two hold four
  EXPECT_TRUE(refused([](auto& c) { c.norm_epsilon = -1; }));
  EXPECT_TRUE(refused([](auto& c) { c.norm_epsilon = NAN; }));
  EXPECT_TRUE(refused([](auto& c) { c.scale = INFINITY; }));
  EXPECT_TRUE(refused([](auto& c) { c.guard_tolerance = NAN; }));
}

TEST(Route, ZeroTokensGiveACleanReport) {
  OpRunner run(kernel_tables()[0].table);
  const RouterContract c{.num_experts = 6, .top_k = 2};
  TestMatrix<float> logits(1, 6);
  RouterReport report{.bad_token = 3};
  int32_t id = -1;
  float weight = 0;
  Tensor none = logits.tensor();
  none.rows = 0;
  EXPECT_TRUE(ops::route(run.context, {.contract = c, .logits = none, .ids = &id, .weights = &weight, .report = &report}).ok());
  EXPECT_EQ(report.bad_token, -1);
  EXPECT_EQ(id, -1);
}

}  // namespace
}  // namespace pointsman
