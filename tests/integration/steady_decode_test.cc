// SPDX-License-Identifier: Apache-2.0
//
// A decode step allocates nothing, whether its experts are resident or read, whichever numerics.
#include <gtest/gtest.h>

#include <algorithm>

#include "checkpoint/model_config.h"
#include "pointsman/engine.h"
#include "pointsman/session.h"
#include "support/counting_new.h"
#include "support/golden.h"

namespace pointsman {
namespace {

constexpr int kWarmUp = 64, kSteps = 100;

// What the steps after the first ones allocate; `share` of the way from the smallest budget to full residency.
uint64_t news_of_steps(const char* model, Numerics numerics, int threads, double share) {
  EngineOptions options{.model_dir = testing::source_path(model),
                        .memory_bytes = uint64_t{1} << 40,
                        .num_threads = threads,
                        .context_length = kWarmUp + kSteps + 16,
                        .prefill_chunk = 16,
                        .numerics = numerics,
                        .num_readers = 2,
                        .load_tokenizer = false};
  const auto plan = Engine::plan(options);
  EXPECT_TRUE(plan.ok()) << plan.status().to_string();
  options.memory_bytes =
      plan->smallest_budget_bytes + static_cast<uint64_t>(share * static_cast<double>(plan->full_residency_bytes - plan->smallest_budget_bytes));
  auto engine = Engine::load(options);
  EXPECT_TRUE(engine.ok()) << engine.status().to_string();
  auto session = (*engine)->new_session();
  EXPECT_TRUE(session.ok()) << session.status().to_string();
  const auto vocab = static_cast<uint32_t>((*engine)->config().vocab_size);
  uint32_t state = 1;
  uint64_t before = 0;
  for (int i = 0; i < kWarmUp + kSteps; ++i) {
    if (i == kWarmUp) before = num_news.load();
    state = state * 1664525 + 1013904223;
    const auto logits = (*session)->decode(static_cast<int32_t>((state >> 8) % vocab));
    EXPECT_TRUE(logits.ok()) << logits.status().to_string();
    if (!logits.ok()) return 0;
  }
  return num_news.load() - before;
}

TEST(SteadyDecode, AStepAllocatesNothing) {
  for (const char* model : {"models/pointsman-tiny-moe", "tests/golden/qwen3_moe_base", "tests/golden/deepseek_v3_lite"}) {
    for (const Numerics numerics : {Numerics::kFp32, Numerics::kBf16}) {
      for (const int threads : {1, 2}) {
        for (const double share : {0.25, 1.0}) {
          EXPECT_EQ(news_of_steps(model, numerics, threads, share), 0u) << model << " " << threads << " threads, " << share;
        }
      }
    }
  }
}

}  // namespace
}  // namespace pointsman
