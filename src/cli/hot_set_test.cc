// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/fs.h"
#include "base/json.h"
#include "cli/args.h"
#include "support/golden.h"
#include "support/program_budget.h"
#include "support/run_program.h"
#include "support/run_shell.h"
#include "support/temp_dir.h"

namespace pointsman::cli {
namespace {

using ::testing::HasSubstr;
using testing::program_budget;
using testing::run_shell;
using testing::ShellResult;
using testing::TempDir;

const std::string kModel = "models/pointsman-tiny-moe";

std::string run_line() {
  return "$P run " + kModel + " -p 'In the beginning' -n 40 --greedy --ignore-eos -c 128 --no-progress --memory " +
         program_budget(kModel + " -c 128", 18) + " ";
}

TEST(HotSet, IsLearnedAcrossRunsAndChangesNoToken) {
  const TempDir dir;
  const std::string file = dir.file("hot.json");
  const std::string run = run_line();
  const ShellResult without = run_shell(run + "--policy lfru");
  ASSERT_EQ(without.exit_code, kExitOk) << without.err;
  EXPECT_FALSE(std::filesystem::exists(file));
  int64_t uses = 0;
  for (int i = 1; i <= 2; ++i) {
    const ShellResult r = run_shell(run + "--policy lfru --hot-set " + file);
    ASSERT_EQ(r.exit_code, kExitOk) << r.err;
    EXPECT_EQ(r.out, without.out);
    const auto j = parse_json(read_text_file(FileSystem::real(), file, 1 << 20).value());
    ASSERT_TRUE(j.ok());
    EXPECT_EQ(j->find("runs")->as_int(), i);
    int64_t sum = 0;
    for (const Json& row : j->find("uses")->as_array()) {
      for (const Json& n : row.as_array()) sum += n.as_int();
    }
    EXPECT_GT(sum, uses) << "half of the past and the same again";
    uses = sum;
  }
  // Every decoded token asks for four experts in each of six layers.
  EXPECT_GE(uses, 39 * 6 * 4);
}

TEST(HotSet, ARunAfterAnotherOneMissesLess) {
  const TempDir dir;
  const std::string budget = program_budget(kModel + " -c 128", 20);
  const auto hits = [&](const std::string& more, const std::string& prompt) {
    const ShellResult r = run_shell("$P run " + kModel + " -p '" + prompt + "' -n 30 --temp 0.8 --seed 3 --ignore-eos -c 128 --no-progress --stats json" +
                                    " --memory " + budget + " " + more);
    EXPECT_EQ(r.exit_code, kExitOk) << r.err;
    const Json stats = testing::last_json_line(r.err);
    const Json* experts = stats.is_object() ? stats.find("experts") : nullptr;
    if (experts == nullptr) return -1.0;
    EXPECT_GT(experts->find("evicted")->as_int(), 100);
    return experts->find("hit_rate")->as_double();
  };
  for (const char* policy : {"lfru", "reuse"}) {
    double first = 0, second = 0;
    for (const char* prompt : {"The residency policy decides", "class ExpertStore {", "import numpy as np"}) {
      const std::string flags = std::string("--policy ") + policy + " --hot-set " + dir.file(std::string(policy) + prompt[0] + prompt[1]);
      first += hits(flags, prompt) / 3;
      second += hits(flags, prompt) / 3;
    }
    EXPECT_GT(second, first + 0.001) << policy;
  }
}

TEST(HotSet, RefusesOtherPoliciesAndOtherModels) {
  const TempDir dir;
  const std::string run = run_line();
  EXPECT_EQ(run_shell(run + "--hot-set " + dir.file("h") + " --policy lru").exit_code, kExitUsage);
  dir.write("h", "{\"format\": \"pointsman-hot-set\", \"version\": 1, \"model_digest\": \"0\", \"runs\": 1, \"uses\": []}");
  const ShellResult r = run_shell(run + "--policy lfru --hot-set " + dir.file("h"));
  EXPECT_EQ(r.exit_code, kExitRefused);
  EXPECT_THAT(r.err, HasSubstr("another model"));
}

}  // namespace
}  // namespace pointsman::cli
