// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/json_reader.h"

#include <gtest/gtest.h>

#include "base/json.h"
#include "base/log.h"

namespace pointsman {
namespace {

// True when the text is one valid value.
bool accepts(std::string_view text) {
  TextSource source(text);
  JsonReader reader(source);
  return reader.skip_value() && reader.at_end();
}

TEST(JsonReader, AcceptsWhatJsonIs) {
  for (const char* text :
       {"{}", "[]", " [1, -2.5e+3, 0, true, false, null, \"\"] ", R"({"a": {"b": [{}]}})", R"("\u00e9\ud83d\ude00\n")"}) {
    EXPECT_TRUE(accepts(text)) << text;
  }
}

TEST(JsonReader, RefusesWhatJsonIsNot) {
  for (const char* text : {"",         "{",     "[1,]",  "[1 2]",      "{\"a\":}", "{\"a\" 1}",   "{,}",         "01",
                           "1.",       "-",     "tru",   "\"\x01\"",   R"("\x")",  R"("\ud800")", R"("\udc00")", R"("\u12")",
                           "\"\xFF\"", "\"abc", "[1] 2", "{\"a\":1,}", "'a'",      "nul"}) {
    EXPECT_FALSE(accepts(text)) << text;
    TextSource source(text);
    JsonReader reader(source);
    reader.skip_value();
    if (!reader.at_end() && !reader.failed()) reader.fail("text after the value");
    EXPECT_EQ(reader.status().code(), StatusCode::kCorrupt) << text;
  }
  EXPECT_FALSE(accepts(std::string(100, '[') + std::string(100, ']')));
}

TEST(JsonReader, StringsMayCrossItsBuffer) {
  std::string text = "[";
  for (int i = 0; i < 20'000; ++i) text += format("{}\"\xE5\xA5\xBD\\u4e2d{}\"", i == 0 ? "" : ", ", i);
  text += "]";
  TextSource source(text);
  JsonReader reader(source);
  reader.begin_array();
  std::string s;
  int i = 0;
  while (reader.next_element()) {
    ASSERT_TRUE(reader.read_string(s));
    ASSERT_EQ(s, format("\xE5\xA5\xBD\xE4\xB8\xAD{}", i++));
  }
  EXPECT_TRUE(reader.at_end()) << reader.status().to_string();
  EXPECT_EQ(i, 20'000);
}

TEST(JsonReader, SectionsCanBeVisitedAgain) {
  TextSource source(R"({"a": [1, 2, 3], "b": {"c": "d"}})");
  JsonReader reader(source);
  std::string key;
  reader.begin_object();
  ASSERT_TRUE(reader.next_key(key));
  const uint64_t at = reader.offset();
  reader.skip_value();
  ASSERT_TRUE(reader.next_key(key));
  std::string raw;
  ASSERT_TRUE(reader.read_raw(raw, 100));
  EXPECT_EQ(raw, R"({"c": "d"})");
  reader.seek(at);
  reader.begin_array();
  int64_t sum = 0;
  int64_t v = 0;
  while (reader.next_element() && reader.read_int(v)) sum += v;
  EXPECT_EQ(sum, 6);
}

TEST(JsonReader, LargeSectionsAreRefused) {
  TextSource source(R"({"a": "0123456789"})");
  JsonReader reader(source);
  std::string key;
  std::string raw;
  reader.begin_object();
  reader.next_key(key);
  EXPECT_FALSE(reader.read_raw(raw, 5));
  EXPECT_EQ(reader.status().code(), StatusCode::kUnsupported);
  EXPECT_FALSE(reader.next_key(key));
}

}  // namespace
}  // namespace pointsman
