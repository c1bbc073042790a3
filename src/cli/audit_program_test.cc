// SPDX-License-Identifier: Apache-2.0
//
// pointsman audit as its users call it: exit codes, formats, files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/run_program.h"
#include "support/temp_dir.h"

namespace pointsman::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class AuditProgram : public ::testing::Test {
 protected:
  void SetUp() override { dir_.write("a.py", "import torch\nimport torch.distributed as dist\nx = torch.zeros(3).cuda()\ndist.init_process_group(\"nccl\")\n"); }
  pointsman::testing::ProgramResult run(std::vector<std::string> args) const {
    args.insert(args.begin(), "audit");
    return pointsman::testing::run_program(args);
  }
  pointsman::testing::TempDir dir_;
};

TEST_F(AuditProgram, ExitCodesAreTheContract) {
  EXPECT_EQ(run({dir_.path()}).exit_code, 1);
  EXPECT_EQ(run({dir_.path(), "--fail-on", "never"}).exit_code, 0);
  EXPECT_EQ(run({dir_.path(), "--disable", "X4", "--disable", "R16"}).exit_code, 0);
  EXPECT_EQ(run({dir_.path(), "--min-confidence", "certain", "--rule", "X4"}).exit_code, 0);
  EXPECT_EQ(run({}).exit_code, 2);
  EXPECT_EQ(run({dir_.path(), "--fail-on", "bad"}).exit_code, 2);
  EXPECT_EQ(run({dir_.path(), "--soc", "h100"}).exit_code, 2);
  EXPECT_EQ(run({dir_.path(), "--rule", "Z1"}).exit_code, 2);
  EXPECT_EQ(run({dir_.path(), "--format", "pdf"}).exit_code, 2);
  EXPECT_EQ(run({dir_.file("none")}).exit_code, 3);
  EXPECT_EQ(run({dir_.path(), "--data", dir_.path()}).exit_code, 3);
}

TEST_F(AuditProgram, EveryFormatIsPrinted) {
  EXPECT_THAT(run({dir_.path()}).out, HasSubstr("^^^^"));
  const auto parsed = [&](const char* format) { return parse_json(run({dir_.path(), "--format", format}).out); };
  const auto json = parsed("json");
  ASSERT_TRUE(json.ok());
  EXPECT_EQ(json->find("schema_version")->as_int(), 1);
  EXPECT_EQ(json->find("findings")->as_array().size(), 2u);
  const auto sarif = parsed("sarif");
  ASSERT_TRUE(sarif.ok());
  EXPECT_EQ(sarif->find("version")->as_string(), "2.1.0");
  EXPECT_THAT(run({dir_.path(), "--format", "html"}).out, StartsWith("<!doctype html>"));
  EXPECT_THAT(run({dir_.path(), "--format", "junit"}).out, HasSubstr("failures=\"2\""));
}

TEST_F(AuditProgram, BaselineIsWrittenAndReadAndFilesAreLeftAlone) {
  EXPECT_EQ(run({dir_.path(), "--write-baseline", dir_.file("known.json")}).exit_code, 1);
  const auto known = run({dir_.path(), "--baseline", dir_.file("known.json"), "--exclude", "known.json"});
  EXPECT_EQ(known.exit_code, 0);
  EXPECT_THAT(known.out, HasSubstr("2 known from the baseline"));
  const auto patch = run({dir_.path(), "--fix-preview"});
  EXPECT_THAT(patch.out, HasSubstr("+x = torch.zeros(3).npu()"));
  EXPECT_THAT(patch.err, HasSubstr("nothing was written"));
  EXPECT_EQ(run({dir_.path(), "--format", "json"}).out, run({dir_.path(), "--format", "json", "-t", "3"}).out);
}

TEST_F(AuditProgram, RulesExplainThemselves) {
  const auto one = run({"--explain", "r16"});
  EXPECT_EQ(one.exit_code, 0);
  EXPECT_THAT(one.out, HasSubstr("HCCL_CONNECT_TIMEOUT"));
  EXPECT_THAT(run({"--list-rules"}).out, HasSubstr("X4 "));
  EXPECT_EQ(run({"--explain", "Q1"}).exit_code, 2);
}

}  // namespace
}  // namespace pointsman::cli
