// SPDX-License-Identifier: Apache-2.0
//
// run --prompts and bench decode --sessions, through the built program: what is decoded together is what is decoded alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "base/json.h"
#include "cli/args.h"
#include "support/golden.h"
#include "support/program_budget.h"
#include "support/run_shell.h"

namespace pointsman::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::run_shell;
using testing::ShellResult;
using testing::TempDir;

const std::string kModel = "tests/golden/qwen3_moe_base";

std::vector<Json> lines_of(const std::string& text) {
  std::vector<Json> all;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    auto j = parse_json(line);
    EXPECT_TRUE(j.ok()) << j.status().to_string() << "\n" << line;
    if (j.ok()) all.push_back(std::move(*j));
  }
  return all;
}

std::string write_lines(const TempDir& dir, const std::vector<std::string>& lines) {
  const std::string path = dir.file("prompts.txt");
  std::ofstream out(path);
  for (const std::string& line : lines) out << line << "\n";
  return path;
}

TEST(Prompts, GetTheTokensThatTheyGetAloneWhateverIsBesideThem) {
  const TempDir dir;
  const std::vector<std::string> prompts = {"some text", "a", "one two three four five six seven eight nine ten", "In the beginning", "the", "one two"};
  const std::string file = write_lines(dir, prompts);
  for (const std::string& sampling : {std::string("--greedy"), std::string("--temp 1.4 --top-k 0 --top-p 1 --seed 3 --repeat-penalty 1.2")}) {
    const std::string common = " -c 48 --no-progress --log-level error --stats none --stop e --print-ids " + sampling;
    std::vector<std::string> alone;
    for (const std::string& p : prompts) alone.push_back(run_shell("$P run " + kModel + " -p '" + p + "' -n 40" + common).out);
    const std::string two = "--sessions 2 --memory " + testing::program_budget(kModel + " -c 48 --sessions 2", 8);
    for (const std::string& how : {std::string("--sessions 1"), two, std::string("--sessions 4 --prefill-chunk 5 -t 2"), std::string("--sessions 64")}) {
      const ShellResult r = run_shell("$P run " + kModel + " --prompts " + file + " -n 40 " + how + common);
      ASSERT_EQ(r.exit_code, kExitOk) << r.err;
      const std::vector<Json> lines = lines_of(r.out);
      ASSERT_EQ(lines.size(), prompts.size());
      for (size_t i = 0; i < lines.size(); ++i) {
        const Json expected = lines_of(alone[i]).at(0);
        EXPECT_EQ(lines[i].find("index")->as_int(), static_cast<int64_t>(i));
        for (const char* key : {"prompt_token_ids", "token_ids", "text", "finish_reason"}) {
          EXPECT_EQ(lines[i].find(key)->dump(), expected.find(key)->dump()) << how << ", prompt " << i << ", " << key;
        }
      }
    }
  }
}

TEST(Prompts, AsIdsFromStdinWithStats) {
  const ShellResult r = run_shell("printf '1,2,3\\n7\\n9,9\\n' | $P run " + kModel +
                                  " --prompts - --prompts-are-ids -n 5 -c 64 --greedy --ignore-eos --stats json --no-progress --log-level error");
  ASSERT_EQ(r.exit_code, kExitOk) << r.err;
  EXPECT_EQ(lines_of(r.out).size(), 3u);
  const Json j = lines_of(r.err).back();
  EXPECT_EQ(j.find("prompts")->as_int(), 3);
  EXPECT_EQ(j.find("sessions")->as_int(), 3);
  EXPECT_EQ(j.find("prompt_tokens")->as_int(), 6);
  EXPECT_EQ(j.find("generated_tokens")->as_int(), 15);
  // The prompts are one pass, then each pass is a token of all.
  EXPECT_EQ(j.find("passes")->as_int(), 5);
}

TEST(Prompts, WhatIsWrongIsNamed) {
  const TempDir dir;
  const std::string run = "$P run " + kModel + " -c 16 --no-progress --log-level error ";
  const ShellResult both = run_shell(run + "-p a --prompts x");
  EXPECT_EQ(both.exit_code, kExitUsage);
  EXPECT_EQ(run_shell(run + "-p a --sessions 2").exit_code, kExitUsage);
  const ShellResult many = run_shell(run + "--prompts x --sessions 65");
  EXPECT_EQ(many.exit_code, kExitUsage);
  EXPECT_THAT(many.err, HasSubstr("expected 1 to 64"));
  EXPECT_THAT(run_shell(run + "--prompts /nowhere").err, HasSubstr("/nowhere"));
  const std::string empty = write_lines(dir, {});
  EXPECT_THAT(run_shell(run + "--prompts " + empty).err, HasSubstr("no prompts"));
  const ShellResult bad = run_shell(run + "--prompts-are-ids --prompts " + write_lines(dir, {"1,2", "3,x"}));
  EXPECT_EQ(bad.exit_code, kExitRefused);
  EXPECT_THAT(bad.err, HasSubstr("prompt 1"));
  const ShellResult large = run_shell(run + "--prompts-are-ids --prompts " + write_lines(dir, {"1", "99999999"}));
  EXPECT_EQ(large.exit_code, kExitRefused);
  EXPECT_THAT(large.err, HasSubstr("token 99999999"));
  const ShellResult long_one = run_shell(run + "--prompts-are-ids --prompts " + write_lines(dir, {"1", "1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1"}));
  EXPECT_THAT(long_one.err, HasSubstr("prompt 1: 17 tokens, the context holds 16"));
  EXPECT_THAT(long_one.out, IsEmpty());
}

TEST(BenchSessions, ReportsThroughputBySize) {
  const std::string bench = "$P bench decode " + kModel + " -c 64 --prompt-tokens 8 -n 6 --repeat 2 --stream-mib 8 --log-level error --no-progress ";
  const ShellResult r = run_shell(bench + "--sessions 1,3,8 --json");
  ASSERT_EQ(r.exit_code, kExitOk) << r.err;
  auto parsed = parse_json(r.out);
  ASSERT_TRUE(parsed.ok()) << r.out;
  const Json& run = parsed->find("runs")->as_array().at(0);
  const Json::Array& rows = run.find("by_sessions")->as_array();
  ASSERT_EQ(rows.size(), 3u);
  const double layers = 3;
  for (size_t i = 0; i < 3; ++i) {
    const double n = std::vector<double>{1, 3, 8}[i];
    EXPECT_EQ(rows[i].find("sessions")->as_int(), static_cast<int64_t>(n));
    EXPECT_GT(rows[i].find("tokens_per_s")->find("median")->as_double(), 0);
    EXPECT_GT(rows[i].find("weight_gbps")->as_double(), 0);
    // Rows per expert times experts is rows: top-k of every layer and session.
    const double slots = rows[i].find("experts_per_step")->as_double() * rows[i].find("rows_per_expert")->as_double();
    EXPECT_NEAR(slots / (n * layers), std::round(slots / (n * layers)), 1e-6);
    EXPECT_EQ(rows[i].find("hit_rate")->as_double(), 1);
  }
  EXPECT_GE(rows[2].find("rows_per_expert")->as_double(), rows[0].find("rows_per_expert")->as_double());
  EXPECT_THAT(run_shell(bench + "--sessions 1,2").out, HasSubstr("| 2 |"));
  EXPECT_EQ(run_shell(bench + "--sessions 1,x").exit_code, kExitUsage);
  EXPECT_EQ(run_shell(bench + "--sessions 0").exit_code, kExitUsage);
  EXPECT_EQ(run_shell(bench + "--sessions 2 --feed greedy").exit_code, kExitUsage);
}

TEST(PlanSessions, MoreSessionsNeedMore) {
  const auto smallest = [](const char* sessions) {
    const ShellResult r = run_shell("$P plan " + kModel + " --memory 64MiB -c 128 --json --sessions " + sessions);
    auto j = parse_json(r.out);
    EXPECT_TRUE(j.ok()) << r.out << r.err;
    return j->find("smallest_budget_bytes")->as_int();
  };
  EXPECT_GT(smallest("8"), smallest("1"));
  EXPECT_EQ(run_shell("$P plan " + kModel + " --sessions 65").exit_code, kExitRefused);
}

}  // namespace
}  // namespace pointsman::cli
