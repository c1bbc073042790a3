// SPDX-License-Identifier: Apache-2.0
//
// Thousands of decode steps with steady eviction: memory, files and threads do not grow.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "base/log.h"
#include "memory/memory_limit.h"
#include "pointsman/engine.h"
#include "pointsman/session.h"
#include "support/memory_model.h"
#include "support/sanitizer.h"

namespace pointsman {
namespace {

constexpr int kWarmUp = 300;
constexpr int kSteps = testing::kSanitized ? 1'000 : 10'000;
constexpr int64_t kContext = 128;
constexpr uint64_t kNoise = 512 << 10;  // the kernel's counters lag by some hundred KiB per thread

size_t entries(const char* directory) {
  size_t n = 0;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) n += !entry.path().empty();
  return n;
}

struct Footprint {
  uint64_t rss = current_rss_bytes();
  size_t fds = entries("/proc/self/fd"), threads = entries("/proc/self/task");
};

TEST(Soak, NothingGrowsOverThousandsOfSteps) {
  EngineOptions options{.model_dir = testing::small_model_folder(),
                        .memory_bytes = uint64_t{1} << 40,
                        .num_threads = 2,
                        .context_length = kContext,
                        .prefill_chunk = 16,
                        .num_readers = 2,
                        .load_tokenizer = false};
  const auto plan = Engine::plan(options);
  ASSERT_TRUE(plan.ok()) << plan.status().to_string();
  options.memory_bytes = plan->smallest_budget_bytes + (plan->full_residency_bytes - plan->smallest_budget_bytes) / 4;
  auto engine = Engine::load(options);
  ASSERT_TRUE(engine.ok()) << engine.status().to_string();
  auto session = (*engine)->new_session();
  ASSERT_TRUE(session.ok()) << session.status().to_string();
  const auto vocab = static_cast<uint32_t>((*engine)->config().vocab_size);

  uint32_t state = 1;
  const auto step = [&]() -> Status {
    if ((*session)->position() == kContext) PM_RETURN_IF_ERROR((*session)->rewind(kContext / 4));
    state = state * 1664525 + 1013904223;
    return (*session)->decode(static_cast<int32_t>((state >> 8) % vocab)).status();
  };
  for (int i = 0; i < kWarmUp; ++i) {
    const Status s = step();
    ASSERT_TRUE(s.ok()) << s.to_string();
  }
  const Footprint before;
  const uint64_t ledger = (*engine)->stats().ledger_bytes;
  uint64_t highest = before.rss;
  for (int i = 0; i < kSteps; ++i) {
    const Status s = step();
    ASSERT_TRUE(s.ok()) << s.to_string();
    if (i % 500 == 0) highest = std::max(highest, current_rss_bytes());
  }
  const Footprint after;
  const EngineStats stats = (*engine)->stats();
  if (!testing::kSanitized) {
    EXPECT_LE(std::max(highest, after.rss), before.rss + kNoise);
  }
  EXPECT_EQ(after.fds, before.fds);
  EXPECT_EQ(after.threads, before.threads);
  EXPECT_EQ(stats.ledger_bytes, ledger);
  EXPECT_EQ(stats.ledger_peak_bytes, ledger);
  EXPECT_GT(stats.experts.evicted, 1000u);
  RecordProperty("rss_growth_bytes", std::to_string(static_cast<int64_t>(after.rss) - static_cast<int64_t>(before.rss)));
}

}  // namespace
}  // namespace pointsman
