// SPDX-License-Identifier: Apache-2.0
//
// The table of measured paths: what is written is read, for this machine only; anything else is a named error. What a path computes is in
// matmul/panel_matmul_test.cc, what an engine does with a table in tests/integration/packed_invariance_test.cc.
#include "ops/path_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "ops/bench/tune.h"
#include "support/ops_fixture.h"
#include "support/temp_dir.h"

namespace pointsman::ops {
namespace {

using ::testing::HasSubstr;

const MachineKey kKey{.cpu = "Some \"CPU\" 3000", .isa = "avx512", .threads = 2};

PathTable some_table() {
  PathTable t{.key = kKey, .shapes = {}};
  TunedShape small{.shape = {.experts = 64, .top_k = 8, .hidden = 1024, .width = 512}, .paths = {}};
  small.paths.of[2][4] = PanelPath::kPackedTile;
  TunedShape large{.shape = {.experts = 8, .top_k = 2, .hidden = 4096, .width = 14336}, .paths = {}};
  large.paths.of[0][11] = PanelPath::kSmallTile;
  t.shapes = {small, large};
  return t;
}

TEST(PanelPaths, BuiltInIsTheRuleForEveryNumberOfRows) {
  const PanelPaths paths;
  for (const DType w : kPanelFormats) {
    for (int64_t rows = 1; rows <= kPanelRowBlock; ++rows) EXPECT_EQ(paths.path(w, rows), built_in_path(w, rows)) << dtype_name(w) << " " << rows;
  }
  EXPECT_EQ(paths.path(DType::kF8E5M2, 5), built_in_path(DType::kF8E5M2, 5));
  EXPECT_EQ(PanelPaths::bound_index(1000), kNumPathRows - 1);
}

TEST(PathTable, ComesBackAsItWasWritten) {
  const testing::TempDir dir;
  const std::string folder = dir.file("new/folder");
  EXPECT_EQ(read_path_table(FileSystem::real(), folder, kKey).status().code(), StatusCode::kNotFound);
  ASSERT_TRUE(write_path_table(FileSystem::real(), folder, some_table()).ok());
  const auto found = read_path_table(FileSystem::real(), folder, kKey);
  ASSERT_TRUE(found.ok()) << found.status().to_string();
  EXPECT_EQ(found->key, kKey);
  ASSERT_EQ(found->shapes.size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(found->shapes[i].shape, some_table().shapes[i].shape);
    EXPECT_TRUE(found->shapes[i].paths == some_table().shapes[i].paths);
  }
  // Of other machines there is none, and one that was carried here is refused.
  for (const MachineKey& other : {MachineKey{"Another", "avx512", 2}, MachineKey{kKey.cpu, "avx2", 2}, MachineKey{kKey.cpu, "avx512", 1}}) {
    EXPECT_EQ(read_path_table(FileSystem::real(), folder, other).status().code(), StatusCode::kNotFound);
    ASSERT_TRUE(write_text_file(FileSystem::real(), join_path(folder, path_table_file_name(other)), path_table_json(some_table())).ok());
    const Status s = read_path_table(FileSystem::real(), folder, other).status();
    EXPECT_EQ(s.code(), StatusCode::kCorrupt);
    EXPECT_THAT(s.message(), HasSubstr("made on Some"));
  }
}

TEST(PathTable, TheNearestShapeDecides) {
  const PathTable t = some_table();
  EXPECT_EQ(nearest_paths(t, {.experts = 128, .top_k = 8, .hidden = 2048, .width = 768}), &t.shapes[0].paths);
  EXPECT_EQ(nearest_paths(t, {.experts = 16, .top_k = 2, .hidden = 4096, .width = 6400}), &t.shapes[1].paths);
  EXPECT_EQ(nearest_paths(t, {.experts = 1, .top_k = 1, .hidden = 0, .width = 0}), &t.shapes[0].paths);
  EXPECT_EQ(nearest_paths({}, {}), nullptr);
}

TEST(PathTable, WhatIsNoTableIsANamedError) {
  const std::string good = path_table_json(some_table());
  ASSERT_TRUE(parse_path_table(good).ok());
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return parse_path_table(text.replace(at, from.size(), to)).status();
  };
  EXPECT_THAT(with("\"schema_version\": 1", "\"schema_version\": 2").message(), HasSubstr("schema_version"));
  EXPECT_THAT(with("\"threads\": 2", "\"threads\": 0").message(), HasSubstr("threads"));
  EXPECT_THAT(with("\"threads\": 2", "\"threads\": \"2\"").message(), HasSubstr("threads"));
  EXPECT_THAT(with("\"experts\": 64", "\"experts\": -64").message(), HasSubstr("shapes[0].experts"));
  EXPECT_THAT(with("\"width\": 512", "\"width\": 1e30").message(), HasSubstr("shapes[0].width"));
  EXPECT_THAT(with("packed_tile", "magic").message(), HasSubstr("row_dot, small_tile or packed_tile"));
  EXPECT_THAT(with("\"row_dot\",", "").message(), HasSubstr("a list of 12"));
  EXPECT_THAT(with("96", "97").message(), HasSubstr("rows_up_to"));
  EXPECT_THAT(with("\"shapes\": [", "\"shapes\": 3, \"x\": [").message(), HasSubstr("shapes"));
  EXPECT_FALSE(parse_path_table("").ok());
  EXPECT_FALSE(parse_path_table("[]").ok());
  EXPECT_FALSE(parse_path_table(std::string(1 << 20, ' ')).ok());
  for (size_t n = 0; n + 2 < good.size(); n += 13) EXPECT_FALSE(parse_path_table(good.substr(0, n)).ok()) << n;
  // A format that is not there has the built-in rule.
  const auto without = parse_path_table(std::string(good).replace(good.find("\"int8\""), 6, "\"int9\""));
  ASSERT_TRUE(without.ok());
  EXPECT_TRUE(without->shapes[0].paths == PanelPaths());
}

TEST(Tune, MeasuresEveryFormatAndNumberOfRowsAndMakesATable) {
  auto runners = pointsman::testing::make_runners(2);
  const MoeShape shapes[] = {{.experts = 4, .top_k = 2, .hidden = 64, .width = 32}, {.experts = 1, .top_k = 1, .hidden = 32, .width = 96}};
  const auto device = make_cpu_device();
  int last = 0;
  const auto tuning = tune_paths(*device, *runners[0]->context.pool, *runners.back()->context.kernels, kKey, {.shapes = shapes, .repeats = 2, .weight_bytes = 1 << 20},
                                 [&](int done, int all) {
                                   EXPECT_EQ(done, ++last);
                                   EXPECT_EQ(all, 8);
                                 });
  ASSERT_TRUE(tuning.ok()) << tuning.status().to_string();
  EXPECT_EQ(last, 8);
  EXPECT_EQ(tuning->timings.size(), 2 * std::size(kPanelFormats) * kNumPathRows);
  for (const TuneTiming& t : tuning->timings) {
    EXPECT_GT(t.quartile_s[static_cast<int>(t.chosen)], 0) << t.rows;
    EXPECT_GT(t.quartile_s[static_cast<int>(t.built_in)], 0) << t.rows;
  }
  ASSERT_EQ(tuning->table.shapes.size(), 2u);
  EXPECT_TRUE(parse_path_table(path_table_json(tuning->table)).ok());
  EXPECT_THAT(tuning_text(*tuning), HasSubstr("2 of 4, 64 x 32"));
  const MoeShape bad[] = {{.experts = 2, .top_k = 3, .hidden = 64, .width = 32}};
  EXPECT_EQ(tune_paths(*device, *runners[0]->context.pool, *runners.back()->context.kernels, kKey, {.shapes = bad}, [](int, int) {}).status().code(),
            StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace pointsman::ops
