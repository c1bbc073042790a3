// SPDX-License-Identifier: Apache-2.0
#include "sample/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/fs.h"
#include "base/json.h"
#include "support/golden.h"

namespace pointsman {
namespace {

using ::testing::ElementsAre;

constexpr float kInf = std::numeric_limits<float>::infinity();

Sampler make(const SamplerOptions& o, size_t vocab, int64_t num_ids = 1 << 30) {
  auto s = Sampler::make(o, static_cast<int64_t>(vocab), num_ids);
  EXPECT_TRUE(s.ok()) << s.status().to_string();
  return std::move(*s);
}

std::vector<int32_t> survivors(Sampler& s, const std::vector<float>& logits) {
  const auto c = s.candidates(logits);
  EXPECT_TRUE(c.ok()) << c.status().to_string();
  std::vector<int32_t> ids;
  for (const Candidate& x : *c) ids.push_back(x.id);
  return ids;
}

double number_or(const Json& c, const char* key, double fallback) {
  const Json* v = c.find(key);
  return v == nullptr || v->is_null() ? fallback : v->as_double();
}

TEST(Sampler, KeepsWhatTransformersKeeps) {
  const auto text = read_text_file(FileSystem::real(), testing::source_path("tests/golden/sampler/cases.json"), 16 << 20);
  ASSERT_TRUE(text.ok()) << text.status().to_string();
  const auto cases = parse_json(*text);
  ASSERT_TRUE(cases.ok()) << cases.status().to_string();
  ASSERT_GE(cases->as_array().size(), 200u);
  size_t number = 0;
  for (const Json& c : cases->as_array()) {
    SCOPED_TRACE("case " + std::to_string(number++));
    std::vector<float> logits;
    for (const Json& v : c.find("logits_64ths")->as_array())
      logits.push_back(v.is_null() ? -kInf : static_cast<float>(v.as_double() / 64));
    Sampler s = make({.do_sample = true,
                      .temperature = number_or(c, "temperature", 1),
                      .top_k = static_cast<int64_t>(number_or(c, "top_k", 0)),
                      .top_p = number_or(c, "top_p", 1),
                      .min_p = number_or(c, "min_p", 0),
                      .repetition_penalty = number_or(c, "repetition_penalty", 1)},
                     logits.size());
    for (const Json& id : c.find("previous")->as_array()) s.observe(static_cast<int32_t>(id.as_int()));
    const auto found = s.candidates(logits);
    ASSERT_TRUE(found.ok()) << found.status().to_string();
    std::vector<Candidate> by_id(found->begin(), found->end());
    std::sort(by_id.begin(), by_id.end(), [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
    const auto& ids = c.find("survivors")->as_array();
    const auto& probabilities = c.find("probabilities")->as_array();
    ASSERT_EQ(by_id.size(), ids.size());
    for (size_t i = 0; i < ids.size(); ++i) {
      EXPECT_EQ(by_id[i].id, ids[i].as_int());
      EXPECT_NEAR(by_id[i].probability, probabilities[i].as_double(), 1e-5);
    }
  }
}

TEST(Sampler, GreedyTakesTheLowestOfEqualIds) {
  Sampler s = make({}, 5);
  EXPECT_EQ(*s.sample(std::vector<float>{1, 3, 3, -1, 3}, 0), 1);
  EXPECT_EQ(*s.sample(std::vector<float>{-0.0f, 0.0f, -1, -1, -1}, 0), 0);
}

TEST(Sampler, TemperatureZeroIsGreedy) {
  Sampler s = make({.do_sample = true, .temperature = 0, .top_k = 2}, 3);
  EXPECT_THAT(survivors(s, {1, 2, 2}), ElementsAre(1));
}

TEST(Sampler, PaddingRowsAreNeverChosen) {
  Sampler greedy = make({}, 6, 4);
  EXPECT_EQ(*greedy.sample(std::vector<float>{0, 1, 0, 0, 100, 100}, 0), 1);
  Sampler sampling = make({.do_sample = true, .top_p = 0.5}, 6, 4);
  EXPECT_THAT(survivors(sampling, {0, 9, 0, 0, 100, 100}), ElementsAre(1));
}

TEST(Sampler, RepetitionPenaltyCountsOnceAndWorksOnBothSigns) {
  Sampler s = make({.repetition_penalty = 2}, 3);
  for (int i = 0; i < 5; ++i) s.observe(0);
  s.observe(-1);
  s.observe(77);                                               // not of this vocabulary
  EXPECT_EQ(*s.sample(std::vector<float>{3, 1.4f, 0}, 0), 0);  // 1.5
  EXPECT_EQ(*s.sample(std::vector<float>{3, 1.6f, 0}, 0), 1);
  EXPECT_EQ(*s.sample(std::vector<float>{-1, -1.9f, -9}, 0), 1);  // -2
  s.forget_all();
  EXPECT_EQ(*s.sample(std::vector<float>{3, 1.6f, 0}, 0), 0);
}

TEST(Sampler, ADrawDependsOnSeedAndPositionOnly) {
  const std::vector<float> logits(50, 0.0f);
  Sampler a = make({.do_sample = true, .seed = 7}, 50), b = make({.do_sample = true, .seed = 7}, 50),
          c = make({.do_sample = true, .seed = 8}, 50);
  std::vector<int32_t> forward, backward, other;
  for (uint64_t p = 0; p < 40; ++p) forward.push_back(*a.sample(logits, p));
  for (uint64_t p = 40; p-- > 0;) backward.insert(backward.begin(), *b.sample(logits, p));
  for (uint64_t p = 0; p < 40; ++p) other.push_back(*c.sample(logits, p));
  EXPECT_EQ(forward, backward);
  EXPECT_NE(forward, other);
}

TEST(Sampler, FrequenciesFollowTheProbabilities) {
  Sampler s = make({.do_sample = true, .seed = 3}, 4);
  const std::vector<float> logits = {0.0f, std::log(2.0f), std::log(3.0f), std::log(4.0f)};
  constexpr int kDraws = 20000;
  int count[4] = {};
  for (int i = 0; i < kDraws; ++i) ++count[*s.sample(logits, static_cast<uint64_t>(i))];
  for (int i = 0; i < 4; ++i) {
    const double p = (i + 1) / 10.0;
    // Five standard deviations.
    EXPECT_NEAR(count[i], kDraws * p, 5 * std::sqrt(kDraws * p * (1 - p))) << i;
  }
}

TEST(Sampler, NoTemperatureOverflows) {
  for (const double t : {1e-300, 1e-30, 1000.0}) {
    Sampler s = make({.do_sample = true, .temperature = t}, 3);
    const auto c = s.candidates(std::vector<float>{std::numeric_limits<float>::max(), std::numeric_limits<float>::lowest(), 0});
    ASSERT_TRUE(c.ok());
    double sum = 0;
    for (const Candidate& x : *c) sum += x.probability;
    EXPECT_NEAR(sum, 1, 1e-12) << t;
    EXPECT_EQ(c->front().id, 0);
  }
}

TEST(Sampler, PenaltyOfTheLargestLogitStaysFinite) {
  Sampler s = make({.do_sample = true, .repetition_penalty = 1000}, 2);
  s.observe(0);
  EXPECT_THAT(survivors(s, {std::numeric_limits<float>::lowest(), std::numeric_limits<float>::lowest()}), ElementsAre(0, 1));
}

TEST(Sampler, OptionsOutOfRangeAreRefusedByName) {
  const double nan = std::nan("");
  const std::pair<SamplerOptions, const char*> bad[] = {
      {{.temperature = -1}, "temperature"},
      {{.temperature = nan}, "temperature"},
      {{.top_k = -1}, "top_k"},
      {{.top_p = 1.5}, "top_p"},
      {{.min_p = -0.1}, "min_p"},
      {{.repetition_penalty = 0}, "repetition_penalty"},
  };
  for (const auto& [options, name] : bad) {
    const auto s = Sampler::make(options, 10, 10);
    ASSERT_FALSE(s.ok()) << name;
    EXPECT_EQ(s.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(s.status().message(), ::testing::HasSubstr(name));
  }
  EXPECT_FALSE(Sampler::make({}, 0, 10).ok());
  EXPECT_FALSE(Sampler::make({}, 10, 0).ok());
}

TEST(Sampler, GreedyNeedsNoCandidates) {
  EXPECT_LT(Sampler::memory_bytes({}, 150000), 32u * 1024);
  EXPECT_GE(Sampler::memory_bytes({.do_sample = true}, 150000), 150000 * sizeof(Candidate));
}

}  // namespace
}  // namespace pointsman
