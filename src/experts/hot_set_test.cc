// SPDX-License-Identifier: Apache-2.0
#include "experts/hot_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "support/memory_fs.h"
#include "support/temp_dir.h"

namespace pointsman {
namespace {

using ::testing::HasSubstr;

HotSet sample() { return {.model_digest = "abc", .num_layers = 2, .num_experts = 3, .num_runs = 1, .uses = {1, 0, 4294967295, 7, 0, 2}}; }

TEST(HotSet, SurvivesItsFile) {
  const testing::TempDir dir;
  ASSERT_TRUE(write_hot_set(FileSystem::real(), dir.file("h"), sample()).ok());
  const auto set = read_hot_set(FileSystem::real(), dir.file("h"), "abc", 2, 3);
  ASSERT_TRUE(set.ok()) << set.status().to_string();
  EXPECT_EQ(set->uses, sample().uses);
  EXPECT_EQ(set->num_runs, 1u);
}

TEST(HotSet, AnAbsentFileIsASetOfNoRuns) {
  const testing::TempDir dir;
  const auto set = read_hot_set(FileSystem::real(), dir.file("h"), "abc", 2, 3);
  ASSERT_TRUE(set.ok()) << set.status().to_string();
  EXPECT_EQ(set->num_runs, 0u);
  EXPECT_EQ(set->uses, std::vector<uint32_t>(6));
}

TEST(HotSet, ARunCountsHalfAfterTheNext) {
  HotSet set = sample();
  set.add_run(std::vector<uint32_t>{10, 1, 4294967295, 0, 0, 1});
  EXPECT_EQ(set.uses, (std::vector<uint32_t>{10, 1, 4294967295, 3, 0, 2}));
  EXPECT_EQ(set.num_runs, 2u);
}

TEST(HotSet, AFullCounterOfRunsIsStillAFile) {
  HotSet set = sample();
  set.num_runs = static_cast<uint64_t>(INT64_MAX);
  ASSERT_TRUE(parse_hot_set(hot_set_to_json(set), "abc", 2, 3).ok());
  set.add_run(std::vector<uint32_t>(6, 1));
  const auto again = parse_hot_set(hot_set_to_json(set), "abc", 2, 3);
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(again->num_runs, static_cast<uint64_t>(INT64_MAX));
}

TEST(HotSet, HostileBytesAreNamedErrors) {
  const auto refuse = [](std::string text) { return parse_hot_set(text, "abc", 2, 3).status(); };
  const std::string good = hot_set_to_json(sample());
  ASSERT_TRUE(parse_hot_set(good, "abc", 2, 3).ok());
  const auto with = [&](std::string_view from, std::string_view to) {
    std::string text = good;
    text.replace(text.find(from), from.size(), to);
    return refuse(text);
  };
  EXPECT_EQ(refuse("").code(), StatusCode::kCorrupt);
  EXPECT_EQ(refuse("{}").code(), StatusCode::kCorrupt);
  EXPECT_EQ(refuse("[1]").code(), StatusCode::kCorrupt);
  EXPECT_THAT(with("\"version\": 1", "\"version\": 2").message(), HasSubstr("another version"));
  EXPECT_EQ(with("abc", "abd").code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(with("abc", "abd").message(), HasSubstr("another model"));
  EXPECT_EQ(with("\"runs\": 1", "\"runs\": -1").code(), StatusCode::kCorrupt);
  EXPECT_EQ(with("4294967295", "4294967296").code(), StatusCode::kCorrupt);
  EXPECT_EQ(with("4294967295", "-1").code(), StatusCode::kCorrupt);
  EXPECT_EQ(with("4294967295", "1.5").code(), StatusCode::kCorrupt);
  EXPECT_EQ(with("[7,0,2]", "[7,0]").code(), StatusCode::kCorrupt);
  EXPECT_EQ(with("[7,0,2]", "[7,0,2],[1,1,1]").code(), StatusCode::kCorrupt);
  EXPECT_EQ(with("[7,0,2]", "{}").code(), StatusCode::kCorrupt);
  EXPECT_EQ(with("[7,0,2]", "[[[[7]]],0,2]").code(), StatusCode::kCorrupt);
  EXPECT_EQ(parse_hot_set(good, "abc", 3, 2).status().code(), StatusCode::kCorrupt);
}

TEST(HotSet, AFileTooLargeIsNotRead) {
  const testing::TempDir dir;
  dir.write("h", std::string(100000, ' '));
  EXPECT_EQ(read_hot_set(FileSystem::real(), dir.file("h"), "abc", 2, 3).status().code(), StatusCode::kUnsupported);
}

}  // namespace
}  // namespace pointsman
