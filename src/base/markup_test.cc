// SPDX-License-Identifier: Apache-2.0
#include "base/markup.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace pointsman {
namespace {

TEST(EscapeMarkup, TextCannotLeaveItsPlace) {
  EXPECT_EQ(escape_markup("a<b>\"c\" & 'd'"), "a&lt;b&gt;&quot;c&quot; &amp; &#39;d&#39;");
  EXPECT_EQ(escape_markup("é漢\U0001F600\n"), "é漢\U0001F600\n");
}

TEST(EscapeMarkup, WhatXmlForbidsIsReplaced) {
  EXPECT_EQ(escape_markup(std::string_view("\0\x1b", 2)), "\uFFFD\uFFFD");
  EXPECT_EQ(escape_markup("\xff\xc3(\xed\xa0\x80"), "\uFFFD\uFFFD(\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(escape_markup("\xe2\x82"), "\uFFFD\uFFFD");  // cut off
}

TEST(Junit, CountsAndEscapes) {
  const std::string xml = junit_xml("a & b", {{.name = "one", .class_name = "c"}, {.name = "two", .class_name = "c", .failure = "x < y\nmore"}});
  EXPECT_THAT(xml, ::testing::HasSubstr("name=\"a &amp; b\" tests=\"2\" failures=\"1\""));
  EXPECT_THAT(xml, ::testing::HasSubstr("<failure message=\"x &lt; y\">x &lt; y\nmore</failure>"));
}

}  // namespace
}  // namespace pointsman
