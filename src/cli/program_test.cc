// SPDX-License-Identifier: Apache-2.0
//
// The program from outside: what every command shares - help, usage, environment, exit codes, and what goes to which stream.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/json.h"
#include "cli/args.h"
#include "support/run_shell.h"

namespace pointsman::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using testing::run_shell;
using testing::ShellResult;

constexpr const char* kModel = "tests/golden/qwen3_moe_base";

TEST(Program, WithoutACommandIsUsage) {
  const ShellResult r = run_shell("$P");
  EXPECT_EQ(r.exit_code, kExitUsage);
  EXPECT_THAT(r.out, IsEmpty());
  EXPECT_THAT(r.err, HasSubstr("usage: pointsman COMMAND"));
}

TEST(Program, HelpGoesToStdout) {
  for (const char* line : {"$P --help", "$P -h", "$P help"}) {
    const ShellResult r = run_shell(line);
    EXPECT_EQ(r.exit_code, kExitOk) << line;
    EXPECT_THAT(r.out, HasSubstr("inspect")) << line;
    EXPECT_THAT(r.err, IsEmpty()) << line;
  }
}

TEST(Program, EveryCommandHasHelpWithExamples) {
  for (const std::string command : {"bench", "bench cache", "bench decode", "bench io", "bench ops", "chat", "compare", "inspect", "lock",
                                    "plan", "run", "trace", "version"}) {
    const ShellResult r = run_shell("$P " + command + " --help");
    EXPECT_EQ(r.exit_code, kExitOk) << command;
    EXPECT_THAT(r.out, HasSubstr("Examples:")) << command;
    EXPECT_THAT(r.out, HasSubstr("pointsman " + command)) << command;
    EXPECT_THAT(r.err, IsEmpty()) << command;
  }
}

TEST(Program, UnknownCommandSuggests) {
  ShellResult r = run_shell("$P rnu");
  EXPECT_EQ(r.exit_code, kExitUsage);
  EXPECT_THAT(r.err, HasSubstr("did you mean 'run'?"));
  r = run_shell("$P frobnicate");
  EXPECT_EQ(r.exit_code, kExitUsage);
  EXPECT_THAT(r.err, Not(HasSubstr("did you mean")));
  EXPECT_EQ(run_shell("$P bench nothing").exit_code, kExitUsage);
}

TEST(Program, VersionAsTextAndJson) {
  EXPECT_THAT(run_shell("$P version").out, HasSubstr("pointsman "));
  EXPECT_THAT(run_shell("$P --version").out, HasSubstr("pointsman "));
  const ShellResult r = run_shell("$P version --json");
  EXPECT_EQ(r.exit_code, kExitOk);
  const auto j = parse_json(r.out);
  ASSERT_TRUE(j.ok()) << j.status().to_string();
  EXPECT_EQ(j->find("schema_version")->as_int(), 1);
  for (const char* key : {"version", "compiler", "cpu", "isa", "build_type"}) {
    ASSERT_NE(j->find(key), nullptr) << key;
    EXPECT_TRUE(j->find(key)->is_string()) << key;
  }
}

TEST(Program, UsageErrorsAreTwoAndNameTheFlag) {
  const std::string m = kModel;
  const std::pair<std::string, const char*> cases[] = {
      {"run", "MODEL is missing"},
      {"compare a.safetensors", "B is missing"},
      {"run " + m, "a prompt is needed"},
      {"run " + m + " -p a --tokens 1", "only one of"},
      {"run " + m + " --tokens 1,x", "--tokens"},
      {"run " + m + " --tokens 1,,2", "--tokens"},
      {"run " + m + " --tokens -5", "--tokens"},
      {"run " + m + " -p a --nonsense", "--nonsense"},
      {"run " + m + " -p a -n 0", "--max-tokens"},
      {"run " + m + " -p a --temp x", "--temp"},
      {"run " + m + " -p a --temp -1", "temperature"},
      {"run " + m + " -p a --top-p 2", "top_p"},
      {"run " + m + " -p a --seed -1", "--seed"},
      {"run " + m + " -p a --stats xml", "--stats"},
      {"run " + m + " -p a --numerics fp16", "--numerics"},
      {"run " + m + " -p a --memory lots", "--memory"},
      {"run " + m + " -p a --memory -1GiB", "--memory"},
      {"run " + m + " -p a -t -1", "--threads"},
      {"run " + m + " -p a --readers 0", "--readers"},
      {"run " + m + " -p a --place nothing", "placement rule"},
      {"run " + m + " -p a --place experts=sometimes", "sometimes"},
      {"run " + m + " -p a --router-guard maybe", "--router-guard"},
      {"run " + m + " -p a --log-level loud", "log level"},
      {"run " + m + " -p a --log-format xml", "log format"},
      {"trace " + m + " --tokens 1", "--out"},
      {"trace " + m + " --tokens 1 --out x --what everything", "--what"},
      {"compare a b --profile none", "--profile"},
      {"plan " + m + " --dram-gbps 0", "--dram-gbps"},
      {"lock " + m + " -t -1", "--threads"},
      {"chat " + m + " --template-var x", "--template-var"},
      {"bench decode " + m + " --repeat 0", "--repeat"},
      {"bench decode " + m + " --budgets 1MiB,x", "--budgets"},
  };
  for (const auto& [args, expected] : cases) {
    const ShellResult r = run_shell("$P " + args);
    EXPECT_EQ(r.exit_code, kExitUsage) << args << "\n" << r.err;
    EXPECT_THAT(r.err, HasSubstr(expected)) << args;
    EXPECT_THAT(r.out, IsEmpty()) << args;
  }
}

TEST(Program, RefusedInputIsThree) {
  const std::string m = kModel;
  const std::pair<std::string, const char*> cases[] = {
      {"run /nonexistent -p a", "pointsman run: not found: /nonexistent"},
      {"plan /nonexistent", "pointsman plan: not found"},
      {"run " + m + " -p a --memory 1MiB", "pointsman run: budget exceeded"},
      {"run " + m + " -p a -c 100000", "context length"},
      {"run " + m + " --tokens 1,2,3,4,5 -c 4", "context"},
      {"run " + m + " --tokens 320", "token 320"},
      {"run " + m + " -p a --require-lock", "pointsman.lock.json"},
      {"run " + m + " -p a --verify fast", "pointsman.lock.json"},
      {"run " + m + " -p a --place 'layers.77.experts=pinned'", "layers.77.experts"},
      {"run " + m + " -p a --policy none", "none"},
      {"lock " + m + " --check", "pointsman.lock.json"},
      {"compare /nonexistent /nonexistent", "not found"},
      {"chat tests/golden/qwen3_moe_linear", "not found"},
  };
  for (const auto& [args, expected] : cases) {
    const ShellResult r = run_shell("$P " + args + " </dev/null");
    EXPECT_EQ(r.exit_code, kExitRefused) << args << "\n" << r.err;
    EXPECT_THAT(r.err, HasSubstr(expected)) << args;
    EXPECT_THAT(r.out, IsEmpty()) << args;
  }
}

TEST(Program, EnvironmentIsCheckedAsStrictlyAsFlags) {
  ShellResult r = run_shell("POINTSMAN_TURBO=1 $P version");
  EXPECT_EQ(r.exit_code, kExitUsage);
  EXPECT_THAT(r.err, HasSubstr("POINTSMAN_TURBO"));
  EXPECT_THAT(r.err, HasSubstr("POINTSMAN_IO, POINTSMAN_ISA, POINTSMAN_LOG_LEVEL"));
  EXPECT_THAT(run_shell("POINTSMAN_IO=mmap $P version").err, HasSubstr("uring"));
  for (const char* bad : {"POINTSMAN_IO=mmap", "POINTSMAN_ISA=sse9", "POINTSMAN_LOG_LEVEL=loud"}) {
    EXPECT_EQ(run_shell(std::string(bad) + " $P version").exit_code, kExitUsage) << bad;
  }
  for (const char* good : {"POINTSMAN_IO=auto", "POINTSMAN_IO=pread", "POINTSMAN_IO=uring", "POINTSMAN_ISA=scalar", "POINTSMAN_LOG_LEVEL=debug",
                           "POINTSMAN_IO=", "POINTSMANX=1"}) {
    EXPECT_EQ(run_shell(std::string(good) + " $P version").exit_code, kExitOk) << good;
  }
}

TEST(Program, LogLinesAsJson) {
  const ShellResult r =
      run_shell(std::string("$P run ") + kModel + " --tokens 5 -n 1 --greedy --log-format json --log-level info --stats none");
  EXPECT_EQ(r.exit_code, kExitOk);
  ASSERT_THAT(r.err, Not(IsEmpty()));
  for (size_t at = 0; at < r.err.size();) {
    const size_t end = r.err.find('\n', at);
    const auto j = parse_json(r.err.substr(at, end - at));
    ASSERT_TRUE(j.ok()) << r.err;
    EXPECT_TRUE(j->find("level")->is_string());
    EXPECT_TRUE(j->find("message")->is_string());
    at = end + 1;
  }
}

TEST(Program, AClosedStdoutIsAFailure) {
  const std::string run = std::string("$P run ") + kModel + " -p abc -n 200 --ignore-eos --greedy";
  EXPECT_EQ(run_shell(run + " >/dev/full").exit_code, kExitRuntime);
  EXPECT_EQ(run_shell("$P inspect " + std::string(kModel) + " >/dev/full").exit_code, kExitRuntime);
  // A reader that went away ends the program, not by a signal. The subshell waits until the reader is gone.
  const ShellResult r = run_shell("{ (trap '' PIPE; while printf x 2>/dev/null; do sleep 0.02; done); " + run + "; echo $? >&2; } | head -c 1 >/dev/null");
  EXPECT_THAT(r.err, HasSubstr("stdout could not be written"));
  EXPECT_THAT(r.err, HasSubstr("4\n"));
}

}  // namespace
}  // namespace pointsman::cli
