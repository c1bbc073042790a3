// SPDX-License-Identifier: Apache-2.0
#include "base/json.h"

#include <gtest/gtest.h>

#include <cmath>

namespace pointsman {
namespace {

Json parse(std::string_view text) {
  auto r = parse_json(text);
  EXPECT_TRUE(r.ok()) << text << ": " << r.status().message();
  return r.ok() ? std::move(r).value() : Json();
}

TEST(Json, ValuesKeepTheirType) {
  const Json j =
      parse(R"({"a": 1, "b": -2.5, "c": [true, false, null], "d": "x\u00e9\n", "e": {}, "f": 1.0, "g": 9223372036854775807})");
  EXPECT_EQ(j.find("a")->as_int(), 1);
  EXPECT_EQ(j.find("b")->as_double(), -2.5);
  EXPECT_TRUE(j.find("c")->as_array()[0].as_bool());
  EXPECT_TRUE(j.find("c")->as_array()[2].is_null());
  EXPECT_EQ(j.find("d")->as_string(), "x\xc3\xa9\n");
  EXPECT_TRUE(j.find("f")->is_double()) << "1.0 is not an integer";
  EXPECT_EQ(j.find("g")->as_int(), INT64_MAX);
  EXPECT_EQ(j.find("none"), nullptr);
  EXPECT_EQ(j.find("a")->find("x"), nullptr);
  EXPECT_STREQ(j.find("c")->type_name(), "array");
}

TEST(Json, NumbersBeyondInt64BecomeDoubles) {
  const Json j = parse("18446744073709551615");
  EXPECT_TRUE(j.is_double());
  EXPECT_EQ(j.as_double(), 18446744073709551616.0);
}

TEST(Json, OrderOfKeysIsKept) {
  const Json j = parse(R"({"z": 1, "a": 2, "m": 3})");
  EXPECT_EQ(j.dump(), R"({"z": 1, "a": 2, "m": 3})");
}

TEST(Json, DuplicateKeysAreRefused) {
  EXPECT_FALSE(parse_json(R"({"a": 1, "a": 2})").ok());
  EXPECT_FALSE(parse_json(R"({"a": 1, "\u0061": 2})").ok());
  std::string many = "{";
  for (int i = 0; i < 40; ++i) many += "\"k" + std::to_string(i) + "\": 0, ";
  EXPECT_TRUE(parse_json(many + "\"x\": 0}").ok());
  const auto r = parse_json(many + "\"k3\": 0}");
  ASSERT_FALSE(r.ok());
  EXPECT_EQ(r.status().code(), StatusCode::kCorrupt);
  EXPECT_NE(r.status().message().find("duplicate key \"k3\""), std::string::npos) << r.status().message();
}

TEST(Json, MalformedTextIsRefused) {
  for (const char* text :
       {"",   " ",  "{",   "[1,]",  "{\"a\":}", "1 2",      "nul",       "\"\\x\"", "\"\xff\"", "\"\xed\xa0\x80\"",
        "01", "+1", "NaN", "[1] x", "{'a': 1}", "\"a\nb\"", "{\"a\" 1}", "[",       "]",        "\"\\ud800\""}) {
    EXPECT_FALSE(parse_json(text).ok()) << text;
  }
}

TEST(Json, NestingIsBounded) {
  EXPECT_TRUE(parse_json(std::string(64, '[') + std::string(64, ']')).ok());
  const auto r = parse_json(std::string(65, '[') + std::string(65, ']'));
  ASSERT_FALSE(r.ok());
  EXPECT_NE(r.status().message().find("nested deeper than 64"), std::string::npos) << r.status().message();
  EXPECT_FALSE(parse_json(std::string(1'000'000, '[')).ok());
  EXPECT_FALSE(parse_json("[[]]", {.max_depth = 1}).ok());
}

TEST(Json, DumpAndParseAgree) {
  Json j = Json::object();
  j.set("text", "quote \" backslash \\ tab \t control \x01 end");
  j.set("number", 0.1);
  j.set("large", 1e300);
  j.set("whole", 3.0);
  j.set("list", Json::array()).push_back(-5);
  j.set("text", "replaced \"");
  EXPECT_EQ(j.as_object().size(), 5u);
  for (const int indent : {-1, 0, 2}) EXPECT_EQ(parse(j.dump(indent)), j) << j.dump(indent);
  EXPECT_EQ(json_quote("a\"b"), R"("a\"b")");
  EXPECT_EQ(Json(0.1).dump(), "0.1");
  EXPECT_EQ(Json(3.0).dump(), "3.0");
}

}  // namespace
}  // namespace pointsman
