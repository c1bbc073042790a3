// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/fs.h"
#include "base/json.h"
#include "cli/args.h"
#include "cli/routing_trace_file.h"
#include "support/golden.h"
#include "support/memory_fs.h"
#include "support/run_shell.h"
#include "support/safetensors_builder.h"
#include "support/temp_dir.h"

namespace pointsman::cli {
namespace {

using ::testing::HasSubstr;
using testing::run_shell;
using testing::SafetensorsBuilder;
using testing::ShellResult;
using testing::TempDir;

const std::string kModel = "models/pointsman-tiny-moe";

std::string text_of(const std::string& path) { return read_text_file(FileSystem::real(), path, 1 << 20).value(); }

TEST(BenchCache, FromARecordedRunToTableCsvAndPicture) {
  const TempDir dir;
  for (const char* name : {"a", "b"}) {
    const ShellResult traced = run_shell("$P trace " + kModel + " --tokens 5,900,33,1200,77,5,900,33,8,2000 --what router -o " + dir.file(name) + ".safetensors --no-progress");
    ASSERT_EQ(traced.exit_code, kExitOk) << traced.err;
  }
  dir.write("notes.txt", "not a trace");
  const ShellResult r = run_shell("$P bench cache " + dir.path() + " --sizes 4,8,16 --json --csv " + dir.file("rates.csv") + " --svg " + dir.file("rates.svg"));
  ASSERT_EQ(r.exit_code, kExitOk) << r.err;
  const auto j = parse_json(r.out);
  ASSERT_TRUE(j.ok()) << r.out;
  EXPECT_EQ(j->find("tokens")->as_int(), 20);
  EXPECT_EQ(j->find("runs")->as_int(), 2);
  EXPECT_EQ(j->find("moe_layers")->as_int(), 6);
  EXPECT_EQ(j->find("experts")->as_int(), 16);
  EXPECT_EQ(j->find("top_k")->as_int(), 4);
  EXPECT_TRUE(j->find("synthetic")->is_null());
  double shares = 0;
  for (const Json& share : j->find("share_by_rank")->as_array()) shares += share.as_double();
  EXPECT_NEAR(shares, 1, 1e-9);
  EXPECT_GT(j->find("kept_by_chance")->as_double(), 4.0 / 16);
  EXPECT_GT(j->find("kept")->as_double(), 0);
  int64_t fewest = -1, best = INT64_MAX;
  for (const Json& cell : j->find("results")->as_array()) {
    EXPECT_EQ(cell.find("hits")->as_int() + cell.find("misses")->as_int(), 20 * 6 * 4);
    if (cell.find("experts_per_layer")->as_int() != 4) continue;
    (cell.find("policy")->as_string() == "optimum" ? fewest : best) = std::min(best, cell.find("misses")->as_int());
  }
  EXPECT_GT(fewest, 0);
  EXPECT_LE(fewest, best);
  EXPECT_THAT(text_of(dir.file("rates.csv")), HasSubstr("policy,experts_per_layer,share,hits,misses,evicted,hit_rate,misses_per_token\n"));
  EXPECT_THAT(text_of(dir.file("rates.csv")), HasSubstr("\noptimum,16,1.000000,"));
  EXPECT_THAT(text_of(dir.file("rates.svg")), HasSubstr("c/N"));
  const ShellResult table = run_shell("$P bench cache " + dir.file("a.safetensors"));
  EXPECT_THAT(table.out, HasSubstr("10 tokens in 1 run, 6 MoE layers of 16 experts, 4 chosen"));
  EXPECT_THAT(table.out, HasSubstr("optimum"));
}

TEST(BenchCache, SyntheticRoutesAreLabelled) {
  const ShellResult r = run_shell("$P bench cache --synthetic zipf:layers=2,experts=8,top-k=2,tokens=50 --sizes 2,4");
  ASSERT_EQ(r.exit_code, kExitOk) << r.err;
  EXPECT_THAT(r.out, HasSubstr("synthetic routes"));
  EXPECT_THAT(r.out, HasSubstr("experts of rank 1, 2, 4, 8 get "));
  const ShellResult markdown = run_shell("$P bench cache --synthetic zipf:layers=2,experts=8,top-k=2,tokens=50 --sizes 2,4 --markdown");
  EXPECT_THAT(markdown.out, HasSubstr("|  | 2 | 4 |\n| --- | --- | --- |\n"));
  EXPECT_THAT(markdown.out, HasSubstr("| c/N | 25.0 | 50.0 |\n"));
  const TempDir dir;
  ASSERT_EQ(run_shell("$P bench cache --synthetic zipf:layers=2,experts=8,top-k=2,tokens=50 --svg " + dir.file("a.svg")).exit_code, kExitOk);
  EXPECT_THAT(text_of(dir.file("a.svg")), HasSubstr("synthetic routes"));
}

TEST(BenchCache, RefusesWhatMakesNoSense) {
  EXPECT_EQ(run_shell("$P bench cache").exit_code, kExitUsage);
  EXPECT_EQ(run_shell("$P bench cache x --synthetic zipf").exit_code, kExitUsage);
  EXPECT_EQ(run_shell("$P bench cache --synthetic uniform").exit_code, kExitUsage);
  EXPECT_EQ(run_shell("$P bench cache --synthetic zipf --sizes 0").exit_code, kExitUsage);
  EXPECT_EQ(run_shell("$P bench cache --synthetic zipf --sizes 4,x").exit_code, kExitUsage);
  EXPECT_EQ(run_shell("$P bench cache --synthetic zipf --prefill-chunk 0").exit_code, kExitUsage);
  const ShellResult r = run_shell("$P bench cache " + kModel + "/model.safetensors");
  EXPECT_EQ(r.exit_code, kExitRefused);
  EXPECT_THAT(r.err, HasSubstr("no layers.N.router.ids"));
}

// A trace with ids of the given bytes: 2 tokens, top-2, 4 experts.
SafetensorsBuilder trace_file(int layers = 1) {
  SafetensorsBuilder b;
  for (int i = 0; i < layers; ++i) {
    b.add("layers." + std::to_string(i) + ".router.ids", "I32", {2, 2}, 16);
    b.add("layers." + std::to_string(i) + ".router.logits", "F32", {2, 4}, 32);
  }
  return b;
}

TEST(RoutingTraceFile, HostileFilesAreNamedErrors) {
  testing::MemoryFs fs;
  const auto read = [&](const std::string& bytes) {
    const auto* begin = reinterpret_cast<const std::byte*>(bytes.data());
    fs.put("t.safetensors", {begin, begin + bytes.size()});
    return read_routes(fs, "t.safetensors").status();
  };
  // The builder's bytes are ids far out of range.
  EXPECT_THAT(read(trace_file().build()).message(), HasSubstr("expert -1 is out of range"));
  EXPECT_THAT(read(SafetensorsBuilder().add("layers.0.router.ids", "I32", {2, 2}, 16).build()).message(), HasSubstr("layers.0.router.logits is missing"));
  EXPECT_THAT(read(SafetensorsBuilder().add("layers.0.router.ids", "I32", {0, 2}, 0).build()).message(), HasSubstr("is empty"));
  EXPECT_THAT(read(trace_file().add("layers.1.router.ids", "I32", {1, 2}, 8).build()).message(), HasSubstr("layers.1.router.ids is [1, 2]"));
  EXPECT_THAT(read(trace_file().add("layers.1.router.ids", "I32", {2, 2}, 16).add("layers.1.router.logits", "F32", {2, 5}, 40).build()).message(),
              HasSubstr("expert"));
  EXPECT_FALSE(read("not safetensors").ok());
}

}  // namespace
}  // namespace pointsman::cli
