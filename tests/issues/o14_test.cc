// SPDX-License-Identifier: Apache-2.0
//
// O14 (colibri#403 and #229, ComfyUI#14938): inside a container whose limit is the budget and the documented constant, with a
// model several times larger than its expert slots, 300 tokens come out, the same as without a limit. Needs cgroup v1 and root.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "base/log.h"
#include "pointsman/engine.h"
#include "support/memory_model.h"
#include "support/run_program.h"
#include "support/sanitizer.h"

namespace pointsman {
namespace {

constexpr const char* kMemoryHierarchy = "/sys/fs/cgroup/memory";

// A memory group with a limit. Empty path when it cannot be made here.
class MemoryGroup {
 public:
  explicit MemoryGroup(uint64_t limit_bytes) {
    const std::string path = format("{}/pointsman-test-{}", kMemoryHierarchy, ::getpid());
    if (::mkdir(path.c_str(), 0755) != 0) return;
    path_ = path;
    std::ofstream file(path + "/memory.limit_in_bytes");
    file << limit_bytes << std::flush;
    works_ = file.good() && read("memory.limit_in_bytes") / 4096 == limit_bytes / 4096;
  }
  ~MemoryGroup() {
    if (!path_.empty()) ::rmdir(path_.c_str());
  }
  bool works() const { return works_; }
  const std::string& path() const { return path_; }
  uint64_t read(const char* name) const {
    uint64_t value = 0;
    std::ifstream(path_ + "/" + name) >> value;
    return value;
  }

 private:
  std::string path_;
  bool works_ = false;
};

TEST(O14, ThreeHundredTokensInsideALimitOfTheBudget) {
  if (testing::kSanitized) GTEST_SKIP() << "resident sizes are the sanitizer's";
  const std::string model = testing::small_model_folder();
  EngineOptions options{.model_dir = model, .memory_bytes = uint64_t{1} << 40, .num_threads = 2};
  auto plan = Engine::plan(options);
  ASSERT_TRUE(plan.ok()) << plan.status().to_string();
  // 300 tokens, or what the context of the small golden model holds.
  const int64_t tokens = std::min<int64_t>(300, plan->context_length - 5);
  const int64_t context = std::min<int64_t>(plan->context_length, 320);
  options.context_length = context;
  plan = Engine::plan(options);
  ASSERT_TRUE(plan.ok()) << plan.status().to_string();
  const uint64_t budget = plan->smallest_budget_bytes + 16 * plan->expert_bytes;
  const auto args = [&](uint64_t bytes) {
    return testing::greedy_run_args(
        {.model = model, .tokens = "3,17,101,9", .num_tokens = tokens, .context_length = context, .budget_bytes = bytes});
  };
  const auto unlimited = testing::run_program(args(plan->full_residency_bytes));
  ASSERT_EQ(unlimited.exit_code, 0) << unlimited.err;
  EXPECT_EQ(testing::last_json_line(unlimited.out).find("token_ids")->as_array().size(), static_cast<size_t>(tokens));

  const MemoryGroup group(budget + kProcessOverheadBytes);
  if (!group.works()) GTEST_SKIP() << "no memory group can be made under " << kMemoryHierarchy;
  const auto limited = testing::run_program(args(budget), group.path());
  ASSERT_EQ(limited.exit_code, 0) << "137 is a kill by the kernel\n" << limited.err;
  EXPECT_EQ(limited.out, unlimited.out);
  const Json stats = testing::last_json_line(limited.err);
  ASSERT_TRUE(stats.is_object()) << limited.err;
  EXPECT_LE(static_cast<uint64_t>(stats.find("peak_rss_bytes")->as_int()), budget + kProcessOverheadBytes);
  EXPECT_LE(group.read("memory.max_usage_in_bytes"), budget + kProcessOverheadBytes);
}

}  // namespace
}  // namespace pointsman
