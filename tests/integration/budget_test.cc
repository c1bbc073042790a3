// SPDX-License-Identifier: Apache-2.0
//
// The budget of the real program: peak RSS stays under it (plus the documented constant), the tokens are the same under every
// budget, and one that is too small is refused with the smallest that is not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/log.h"
#include "pointsman/engine.h"
#include "support/memory_model.h"
#include "support/run_program.h"
#include "support/sanitizer.h"

namespace pointsman {
namespace {

using testing::ProgramResult;

constexpr int64_t kContext = 192;

EngineOptions plan_options() {
  // What the command line below asks for.
  return {.model_dir = testing::small_model_folder(),
          .memory_bytes = uint64_t{1} << 40,
          .num_threads = 2,
          .context_length = kContext};
}

std::vector<std::string> run_args(uint64_t budget, std::vector<std::string> more = {}) {
  return testing::greedy_run_args({.model = testing::small_model_folder(),
                                   .tokens = "3,17,101,250,9,64,200,33,5,118,77",
                                   .num_tokens = 64,
                                   .context_length = kContext,
                                   .budget_bytes = budget,
                                   .more = std::move(more)});
}

TEST(Budget, PeakRssStaysUnderIt) {
  if (testing::kSanitized) GTEST_SKIP() << "resident sizes are the sanitizer's";
  const auto plan = Engine::plan(plan_options());
  ASSERT_TRUE(plan.ok()) << plan.status().to_string();
  const uint64_t smallest = plan->smallest_budget_bytes, all = plan->full_residency_bytes;
  std::string first;
  uint64_t least_beside = UINT64_MAX, most_beside = 0;
  for (const double share : {0.0, 0.25, 0.5, 1.0}) {
    const uint64_t budget = smallest + static_cast<uint64_t>(share * static_cast<double>(all - smallest));
    SCOPED_TRACE(format("budget {} ({} of what is above the smallest)", budget, share));
    const ProgramResult r = testing::run_program(run_args(budget));
    ASSERT_EQ(r.exit_code, 0) << r.err;
    const Json stats = testing::last_json_line(r.err), result = testing::last_json_line(r.out);
    ASSERT_TRUE(stats.is_object()) << r.err;
    ASSERT_TRUE(result.is_object()) << r.out;
    EXPECT_EQ(result.find("token_ids")->as_array().size(), 64u);
    EXPECT_LE(static_cast<uint64_t>(stats.find("peak_rss_bytes")->as_int()), budget + kProcessOverheadBytes);
    EXPECT_GT(stats.find("peak_rss_bytes")->as_int(), 0);
    EXPECT_LE(static_cast<uint64_t>(stats.find("ledger_peak_bytes")->as_int()), budget);
    // What is resident beside the ledger does not depend on the budget: everything that grows with it is charged.
    const auto beside =
        static_cast<uint64_t>(stats.find("peak_rss_bytes")->as_int() - stats.find("ledger_peak_bytes")->as_int());
    least_beside = std::min(least_beside, beside);
    most_beside = std::max(most_beside, beside);
    if (share == 0.0) {
      EXPECT_GT(stats.find("experts")->find("evicted")->as_int(), 0);
    }
    if (share == 1.0) {
      EXPECT_EQ(stats.find("experts")->find("evicted")->as_int(), 0);
    }
    if (first.empty()) first = r.out;
    EXPECT_EQ(r.out, first);
  }
  EXPECT_LE(most_beside, least_beside + (2 << 20));
}

// Everything that can be on demand, in the smallest budget there is: less than the resident one by what stays on disk.
TEST(Budget, EmbeddingAndHeadOnDemandNeedLessAndGiveTheSameTokens) {
  if (testing::kSanitized) GTEST_SKIP() << "resident sizes are the sanitizer's";
  EngineOptions options = plan_options();
  const auto resident = Engine::plan(options);
  ASSERT_TRUE(resident.ok()) << resident.status().to_string();
  options.placement = {{.pattern = "*", .placement = Placement::kOnDemand}};
  const auto plan = Engine::plan(options);
  ASSERT_TRUE(plan.ok()) << plan.status().to_string();
  uint64_t on_disk = 0;
  for (const PlanUnit& u : plan->units) on_disk += u.placement == Placement::kOnDemand && !u.name.ends_with(".experts") ? u.bytes : 0;
  ASSERT_GT(on_disk, 0u);
  // Two windows of a sixteenth, a table and the stack of the thread that reads.
  EXPECT_LT(plan->smallest_budget_bytes, resident->smallest_budget_bytes - on_disk + on_disk / 8 + (320 << 10));
  const ProgramResult expected = testing::run_program(run_args(resident->full_residency_bytes));
  ASSERT_EQ(expected.exit_code, 0) << expected.err;
  const ProgramResult r = testing::run_program(run_args(plan->smallest_budget_bytes, {"--place", "*=on-demand"}));
  ASSERT_EQ(r.exit_code, 0) << r.err;
  EXPECT_EQ(r.out, expected.out);
  const Json stats = testing::last_json_line(r.err);
  EXPECT_LE(static_cast<uint64_t>(stats.find("peak_rss_bytes")->as_int()), plan->smallest_budget_bytes + kProcessOverheadBytes);
  EXPECT_LE(static_cast<uint64_t>(stats.find("ledger_peak_bytes")->as_int()), plan->smallest_budget_bytes);
  // 64 tokens, each the whole head and a block or more of the embedding.
  const Json* dense = stats.find("dense_on_demand");
  ASSERT_NE(dense, nullptr);
  EXPECT_GT(static_cast<uint64_t>(dense->find("bytes_read")->as_int()), 64 * on_disk / 2);
  EXPECT_GT(dense->find("verified_xxh3")->as_int(), 64);
  const ProgramResult small = testing::run_program(run_args(plan->smallest_budget_bytes - 1, {"--place", "*=on-demand"}));
  EXPECT_EQ(small.exit_code, 3) << small.err;
  EXPECT_THAT(small.err, ::testing::HasSubstr(std::to_string(plan->smallest_budget_bytes)));
}

TEST(Budget, TooSmallIsRefusedWithTheSmallest) {
  const auto plan = Engine::plan(plan_options());
  ASSERT_TRUE(plan.ok()) << plan.status().to_string();
  for (const uint64_t budget : {plan->smallest_budget_bytes - 1, uint64_t{1}}) {
    const ProgramResult r = testing::run_program(run_args(budget));
    EXPECT_EQ(r.exit_code, 3) << r.err;
    EXPECT_THAT(r.err, ::testing::HasSubstr(std::to_string(plan->smallest_budget_bytes)));
    EXPECT_EQ(r.out, "");
  }
}

}  // namespace
}  // namespace pointsman
