// SPDX-License-Identifier: Apache-2.0
//
// O10 (colibri#369): one NaN or infinite logit made the sampler answer token 0 for ever, silently. Here a bad logit is never
// chosen, is counted and logged; when nothing finite is left the request fails by name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "sample/sampler.h"
#include "support/log_capture.h"

namespace pointsman {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

const SamplerOptions kModes[] = {
    {},
    {.repetition_penalty = 1.3},
    {.do_sample = true, .seed = 1},
    {.do_sample = true, .temperature = 0.01, .seed = 2},
    {.do_sample = true, .temperature = 2, .top_k = 4, .top_p = 0.9, .min_p = 0.05, .repetition_penalty = 1.2, .seed = 3},
};

TEST(O10, ABadLogitIsNeverChosenWhereverItIs) {
  for (const SamplerOptions& mode : kModes) {
    for (const float bad : {kNan, -kNan, kInf, -kInf}) {
      for (const size_t place : {size_t{0}, size_t{4}, size_t{8}}) {
        testing::LogCapture log;
        auto s = Sampler::make(mode, 9, 9);
        ASSERT_TRUE(s.ok());
        s->observe(static_cast<int32_t>(place));
        std::vector<float> logits = {0.1f, 0.2f, 0.3f, 5.0f, 0.4f, 0.5f, 0.6f, 0.7f, 0.8f};
        logits[place] = bad;
        constexpr uint64_t kSteps = 50;
        for (uint64_t position = 0; position < kSteps; ++position) {
          const auto token = s->sample(logits, position);
          ASSERT_TRUE(token.ok()) << token.status().to_string();
          EXPECT_NE(*token, static_cast<int32_t>(place));
          if (!mode.do_sample) {
            EXPECT_EQ(*token, 3);
          }
        }
        // A mask is not a fault; the others are counted every time and spoken of once.
        EXPECT_EQ(s->nonfinite_logits(), bad == -kInf ? 0 : kSteps);
        EXPECT_EQ(log.lines.size(), bad == -kInf ? 0u : 1u);
      }
    }
  }
}

TEST(O10, NothingFiniteIsANamedError) {
  for (const SamplerOptions& mode : kModes) {
    for (const std::vector<float>& logits :
         {std::vector<float>{kNan, kNan, kNan}, {kInf, kNan, -kInf}, {-kInf, -kInf, -kInf}, {kInf, kInf, kInf}}) {
      auto s = Sampler::make(mode, 3, 3);
      ASSERT_TRUE(s.ok());
      const auto token = s->sample(logits, 0);
      ASSERT_FALSE(token.ok());
      EXPECT_EQ(token.status().code(), StatusCode::kCorrupt);
      EXPECT_THAT(token.status().message(), ::testing::HasSubstr("none of 3 logits is finite"));
    }
  }
}

TEST(O10, OnlyPaddingIsFinite) {
  auto s = Sampler::make({}, 3, 2);
  ASSERT_TRUE(s.ok());
  EXPECT_EQ(s->sample(std::vector<float>{kNan, kNan, 1}, 0).status().code(), StatusCode::kCorrupt);
}

}  // namespace
}  // namespace pointsman
