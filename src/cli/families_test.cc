// SPDX-License-Identifier: Apache-2.0
//
// Every family through every command that reads a model: no family has a path of its own for budget, verification or I/O.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "base/json.h"
#include "cli/args.h"
#include "support/golden.h"
#include "support/run_shell.h"

namespace pointsman::cli {
namespace {

using ::testing::HasSubstr;
using testing::run_shell;
using testing::ShellResult;
using testing::TempDir;

class EveryFamily : public ::testing::TestWithParam<std::string> {};

Json json_of(const ShellResult& r) {
  auto j = parse_json(r.out);
  EXPECT_TRUE(j.ok()) << j.status().to_string() << "\n" << r.out << r.err;
  return j.ok() ? std::move(*j) : Json::object();
}

std::string ids_text(const std::vector<int32_t>& ids) {
  std::string text;
  for (const int32_t id : ids) text += (text.empty() ? "" : ",") + std::to_string(id);
  return text;
}

TEST_P(EveryFamily, InspectPlanLockRunAndTrace) {
  const std::string family = GetParam();
  const std::string golden_folder = testing::source_path("tests/golden/" + family + "_base");
  const testing::GoldenFile golden = testing::read_golden(golden_folder + "/expected.safetensors");
  const TempDir dir;
  const std::string model = dir.file("model");
  std::filesystem::create_directory(model);
  for (const auto& e : std::filesystem::directory_iterator(golden_folder)) {
    if (e.is_regular_file() && e.path().filename() != "expected.safetensors")
      std::filesystem::copy(e.path(), model + "/" + e.path().filename().string());
  }
  const bool has_experts = golden.count("layers.1.router.ids") > 0;

  const Json inspected = json_of(run_shell("$P inspect " + model + " --json"));
  EXPECT_EQ(inspected.find("model_type")->as_string(), family);
  EXPECT_EQ(inspected.find("experts")->is_null(), !has_experts);
  EXPECT_TRUE(inspected.find("refusals")->as_array().empty());

  const Json plan = json_of(run_shell("$P plan " + model + " --memory 64MiB -c 128 --numerics fp32 --json"));
  EXPECT_TRUE(plan.find("fits")->as_bool());
  EXPECT_EQ(plan.find("num_experts_total")->as_int() > 0, has_experts);
  const int64_t smallest = plan.find("smallest_budget_bytes")->as_int();

  ASSERT_EQ(run_shell("$P lock " + model).exit_code, kExitOk);
  ASSERT_EQ(run_shell("$P lock --check " + model).exit_code, kExitOk);

  // In the smallest budget, with every byte checked against the lock: the greedy tokens of transformers.
  const std::vector<int32_t>& tokens = golden.at("tokens").i32;
  const std::vector<int32_t>& greedy = golden.at("greedy").i32;
  const std::string run = "$P run " + model + " --tokens " + ids_text(tokens) + " -n " + std::to_string(greedy.size()) +
                          " --greedy --ignore-eos --numerics fp32 --print-ids --no-progress -c 128 --memory ";
  const ShellResult small = run_shell(run + std::to_string(smallest));
  ASSERT_EQ(small.exit_code, kExitOk) << small.err;
  const Json result = json_of(small);
  std::vector<int32_t> found;
  for (const Json& id : result.find("token_ids")->as_array()) found.push_back(static_cast<int32_t>(id.as_int()));
  EXPECT_EQ(found, greedy);
  EXPECT_NE(run_shell(run + std::to_string(smallest - 1)).exit_code, kExitOk);

  // A trace needs no more than that; what does not fit in one pass goes in several, with the same values.
  const std::string trace = "$P trace " + model + " --tokens 3,4,5,6,7,8,9,10 --numerics fp32 -c 128 --what all --no-progress --out ";
  const ShellResult traced = run_shell(trace + dir.file("t") + " --memory " + std::to_string(smallest));
  EXPECT_EQ(traced.exit_code, kExitOk) << traced.err;
  EXPECT_EQ(run_shell(trace + dir.file("u") + " --memory 64MiB").exit_code, kExitOk);
  EXPECT_EQ(run_shell("cmp " + dir.file("t") + " " + dir.file("u")).exit_code, 0);
  EXPECT_EQ(json_of(run_shell("$P compare " + dir.file("t") + " " + dir.file("t") + " --json")).find("ok")->as_bool(), true);

  // One flipped byte is found, whichever family it belongs to.
  const std::string weights = model + "/model.safetensors";
  std::fstream file(weights, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(-3, std::ios::end);
  const char byte = static_cast<char>(file.get() ^ 1);
  file.seekp(-3, std::ios::end);
  file.put(byte);
  file.close();
  EXPECT_EQ(run_shell("$P lock --check " + model).exit_code, kExitFindings);
  const ShellResult damaged = run_shell(run + "64MiB");
  EXPECT_NE(damaged.exit_code, kExitOk);
  EXPECT_THAT(damaged.err, HasSubstr("sha256"));
}

INSTANTIATE_TEST_SUITE_P(All, EveryFamily,
                         ::testing::Values("deepseek_v3", "deepseek_v4", "glm4_moe", "gpt_oss", "kimi_k2", "llama", "minimax_m2", "mixtral", "olmoe", "qwen2", "qwen2_moe", "qwen3_moe"),
                         [](const auto& param_info) { return param_info.param; });

}  // namespace
}  // namespace pointsman::cli
