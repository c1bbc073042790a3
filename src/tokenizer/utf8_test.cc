// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/utf8.h"

#include <gtest/gtest.h>

namespace pointsman {
namespace {

std::string lossy(std::string_view text) {
  std::string out;
  append_utf8_lossy(out, text);
  return out;
}

const std::string kBad(kReplacementCharacter);

TEST(Utf8, EveryCodePointGoesThereAndBack) {
  for (uint32_t cp = 0; cp < 0x110000; ++cp) {
    if (cp >= 0xD800 && cp < 0xE000) continue;
    std::string text;
    append_utf8(text, cp);
    const Utf8Step step = utf8_next(text);
    ASSERT_TRUE(step.valid);
    ASSERT_EQ(step.code_point, cp);
    ASSERT_EQ(step.bytes, text.size());
    size_t at = 0;
    ASSERT_EQ(utf8_decode_valid(text, at), cp);
    ASSERT_EQ(at, text.size());
  }
}

TEST(Utf8, BrokenBytesAreCutIntoMaximalSubparts) {
  EXPECT_EQ(lossy("a\xFF"
                  "b"),
            "a" + kBad + "b");
  EXPECT_EQ(lossy("\xC0\xAF"), kBad + kBad);                        // overlong
  EXPECT_EQ(lossy("\xED\xA0\x80"), kBad + kBad + kBad);             // surrogate
  EXPECT_EQ(lossy("\xF4\x90\x80\x80"), kBad + kBad + kBad + kBad);  // above U+10FFFF
  EXPECT_EQ(lossy("\xF0\x9F\x98"), kBad);                           // cut at the end
  EXPECT_EQ(lossy("\xE5\xA5x"), kBad + "x");
  EXPECT_EQ(lossy("\xE5\xA5\xBD"), "\xE5\xA5\xBD");
}

TEST(Utf8, ValidPrefixNamesTheFirstBadByte) {
  EXPECT_EQ(utf8_valid_prefix(""), 0u);
  EXPECT_EQ(utf8_valid_prefix("0123456789abcdef"), 16u);
  EXPECT_EQ(utf8_valid_prefix("0123456789\x80"), 10u);
  EXPECT_TRUE(utf8_next("\xF0\x9F").incomplete);
  EXPECT_FALSE(utf8_next("\xF0\x41").incomplete);
}

}  // namespace
}  // namespace pointsman
