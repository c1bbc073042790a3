// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/shard_index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace pointsman {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ShardIndex, SortsShardsAndTensors) {
  const auto i = parse_shard_index(
      R"({"metadata":{"total_size":12.0},"weight_map":{"b":"s-2.safetensors","a":"s-1.safetensors","c":"s-2.safetensors"}})");
  ASSERT_TRUE(i.ok()) << i.status().to_string();
  EXPECT_THAT(i->shards, ElementsAre("s-1.safetensors", "s-2.safetensors"));
  ASSERT_EQ(i->weight_map.size(), 3u);
  EXPECT_EQ(i->weight_map[0], std::make_pair(std::string("a"), 0u));
  EXPECT_EQ(i->weight_map[1], std::make_pair(std::string("b"), 1u));
  EXPECT_EQ(i->total_size, 12u);
}

TEST(ShardIndex, MetadataIsOptionalAndMayBeAnything) {
  for (const char* metadata :
       {"", R"("metadata":null,)", R"("metadata":{},)", R"("metadata":{"total_size":"12"},)",
        R"("metadata":{"total_size":-1},)", R"("metadata":{"total_size":1e300},)", R"("metadata":[],)"}) {
    const auto i = parse_shard_index(std::string("{") + metadata + R"("weight_map":{"a":"s.safetensors"}})");
    ASSERT_TRUE(i.ok()) << metadata;
    EXPECT_FALSE(i->total_size.has_value()) << metadata;
  }
}

TEST(ShardIndex, RefusesWhatIsNoIndex) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "JSON"},
      {"[]", "\"weight_map\" is missing"},
      {"{}", "\"weight_map\" is missing"},
      {R"({"weight_map":[]})", "array, expected an object"},
      {R"({"weight_map":{}})", "is empty"},
      {R"({"weight_map":{"a":1}})", "shard of a is of type integer"},
      {R"({"weight_map":{"a":null}})", "shard of a is of type null"},
      {R"({"weight_map":{"a":"s.safetensors","a":"t.safetensors"}})", "duplicate key \"a\""},
      {R"({"weight_map":{"a":"s.safetensors"},"weight_map":{}})", "duplicate key"},
      {R"({"weight_map":{"a":"s.safetensors"}} x)", "JSON"},
      {R"({"weight_map":{"":"s.safetensors"}})", "tensor name"},
      {R"({"weight_map":{"a\nb":"s.safetensors"}})", "tensor name"},
  };
  for (const auto& [text, says] : cases) {
    const auto i = parse_shard_index(text);
    ASSERT_FALSE(i.ok()) << text;
    EXPECT_EQ(i.status().code(), StatusCode::kCorrupt);
    EXPECT_THAT(i.status().message(), HasSubstr(says)) << text;
  }
}

TEST(ShardIndex, ShardNamesCannotLeaveTheFolder) {
  for (const char* name : {"../s.safetensors", "/etc/s.safetensors", "a/s.safetensors", "..", ".", "", "a\\\\s.safetensors",
                           "s\\u0000.safetensors", "s.bin", "pytorch_model.bin", "s.safetensors/", "\\u000as.safetensors"}) {
    const auto i = parse_shard_index(std::string(R"({"weight_map":{"w":")") + name + "\"}}");
    ASSERT_FALSE(i.ok()) << name;
    EXPECT_THAT(i.status().message(), HasSubstr("the shard of w is")) << name;
    EXPECT_THAT(i.status().message(), HasSubstr("plain name")) << name;
  }
  EXPECT_TRUE(parse_shard_index(R"({"weight_map":{"w":"..s.safetensors"}})").ok());
  EXPECT_FALSE(parse_shard_index(R"({"weight_map":{"w":")" + std::string(250, 's') + R"(.safetensors"}})").ok());
}

TEST(ShardIndex, TheNumberOfShardsIsBounded) {
  std::string text = R"({"weight_map":{)";
  for (int i = 0; i <= 10'000; ++i)
    text += (i == 0 ? "" : ",") + std::string("\"t") + std::to_string(i) + "\":\"s" + std::to_string(i) + ".safetensors\"";
  const auto i = parse_shard_index(text + "}}");
  ASSERT_FALSE(i.ok());
  EXPECT_EQ(i.status().code(), StatusCode::kUnsupported);
}

}  // namespace
}  // namespace pointsman
