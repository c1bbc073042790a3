// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/regex.h"

#include <gtest/gtest.h>

#include <ctime>
#include <sstream>

#include "support/golden.h"
#include "support/xz.h"
#include "tokenizer/utf8.h"

namespace pointsman {
namespace {

Regex compile(std::string_view pattern) {
  Result<Regex> r = Regex::compile(pattern);
  EXPECT_TRUE(r.ok()) << r.status().to_string();
  return std::move(r).value();
}

std::vector<std::string> matches(std::string_view pattern, std::string_view text) {
  const Regex regex = compile(pattern);
  RegexMatcher matcher;
  matcher.set_subject(text);
  std::vector<std::string> out;
  size_t begin = 0;
  size_t end = 0;
  for (size_t at = 0; matcher.next(regex, at, begin, end); at = end) out.emplace_back(text.substr(begin, end - begin));
  EXPECT_TRUE(matcher.status().ok()) << matcher.status().to_string();
  return out;
}
using Strings = std::vector<std::string>;

TEST(Regex, WhiteSpaceIsUnicodesOwn) {
  EXPECT_EQ(matches(R"(\s)",
                    "a\xE1\xA0\x8E\x1C"
                    "b\xC2\x85\xE3\x80\x80"),
            (Strings{"\xC2\x85", "\xE3\x80\x80"}));
  EXPECT_EQ(matches(R"([^\s\p{L}]+)", "ab 1\xE1\xA0\x8E!"), (Strings{"1\xE1\xA0\x8E!"}));
}

TEST(Regex, RubySyntaxIsTranslated) {
  EXPECT_EQ(matches("^a$", "a\nb\na"), (Strings{"a", "a"}));
  EXPECT_EQ(matches("(?m:a.b)", "a\nb"), (Strings{"a\nb"}));
  EXPECT_EQ(matches("a.b", "a\nb"), Strings{});
  EXPECT_EQ(matches("a{,2}b", "aaab"), (Strings{"aab"}));
  EXPECT_EQ(matches(R"(\p{N}{1,3}+x)", "1234567x"), (Strings{"1234567x"}));
  EXPECT_EQ(matches(R"((ab){2}+)", "ababababab"), (Strings{"abababab"}));
  EXPECT_EQ(matches(R"(\h+)", "xyzBEEFq"), (Strings{"BEEF"}));
  EXPECT_EQ(matches(R"(\u4e2d[\u6587]?)", "\xE4\xB8\xAD\xE6\x96\x87"), (Strings{"\xE4\xB8\xAD\xE6\x96\x87"}));
  EXPECT_EQ(matches("{a}", "{a}"), (Strings{"{a}"}));
  EXPECT_EQ(matches(R"(\w+)", "a_1\xCC\x81-b"), (Strings{"a_1\xCC\x81", "b"}));
}

TEST(Regex, EmptyMatchesDoNotStall) {
  EXPECT_EQ(matches("x*", "axxb"), (Strings{"", "xx", ""}));
  EXPECT_LE(matches("", "abc").size(), 4u);
}

TEST(Regex, EscapeMatchesItself) {
  const std::string text = R"(a.b*c[d]{e}(f)|^$\+?#-&~ )";
  EXPECT_EQ(matches(Regex::escape(text), "x" + text + "y"), (Strings{text}));
}

TEST(Regex, WhatHasNoCounterpartIsRefusedByName) {
  for (const char* pattern : {"[a&&b]", "[a[b]]", "(?R)", "(?1)", "(*UTF)a", "(?C1)a", R"(\C)", R"(\N{x})", "(a", "a)", "[a",
                              R"(a\)", R"(\p{Nonsense})", R"([\W])"}) {
    const Result<Regex> r = Regex::compile(pattern);
    ASSERT_FALSE(r.ok()) << pattern;
    EXPECT_EQ(r.status().code(), StatusCode::kUnsupported) << pattern;
    EXPECT_NE(r.status().message().find(pattern), std::string::npos) << r.status().message();
  }
  EXPECT_FALSE(Regex::compile(std::string(100'000, 'a')).ok());
}

// All code points of the classes that the reference knows (Unicode 16), those newer than PCRE2's tables included.
TEST(Regex, ClassesAreThoseOfTheReference) {
  std::istringstream lines(testing::read_xz(testing::source_path("tests/golden/tokenizer/unicode_classes.txt.xz")));
  std::string all;
  for (uint32_t cp = 0; cp < 0x110000; ++cp) {
    if (cp < 0xD800 || cp > 0xDFFF) append_utf8(all, cp);
  }
  std::string line;
  std::string current;
  std::vector<bool> expected;
  int checked = 0;
  const auto check = [&] {
    if (current.empty()) return;
    const Regex regex = compile(current);
    RegexMatcher matcher;
    matcher.set_subject(all);
    std::vector<bool> found(0x110000, false);
    size_t begin = 0;
    size_t end = 0;
    for (size_t at = 0; matcher.next(regex, at, begin, end);) {
      for (at = begin; at < end;) found[utf8_decode_valid(all, at)] = true;
    }
    ASSERT_TRUE(matcher.status().ok()) << matcher.status().to_string();
    int wrong = 0;
    for (uint32_t cp = 0; cp < 0x110000; ++cp) {
      if (found[cp] != expected[cp] && ++wrong <= 3) ADD_FAILURE() << current << " and U+" << std::hex << cp;
    }
    EXPECT_EQ(wrong, 0) << current;
    ++checked;
  };
  while (std::getline(lines, line)) {
    std::istringstream fields(line);
    std::string name;
    std::string first;
    std::string last;
    fields >> name >> first >> last;
    if (name == "#") continue;
    name = name[0] >= 'a' ? "\\" + name : "\\p{" + name + "}";
    if (name != current) {
      check();
      current = name;
      expected.assign(0x110000, false);
    }
    const auto low = std::stoul(first, nullptr, 16);
    for (auto cp = low; cp <= std::stoul(last, nullptr, 16); ++cp) expected[cp] = true;
  }
  check();
  EXPECT_GE(checked, 14);
}

Status run(std::string_view pattern, const std::string& text) {
  const Regex regex = compile(pattern);
  RegexMatcher matcher;
  matcher.set_subject(text);
  size_t begin = 0;
  size_t end = 0;
  for (size_t at = 0; matcher.next(regex, at, begin, end); at = end) {
  }
  return matcher.status();
}

TEST(Regex, HostilePatternsEndWithAnError) {
  const Status exponential = run("(a+)+$|x", std::string(100'000, 'a') + "b");
  EXPECT_EQ(exponential.code(), StatusCode::kUnsupported) << exponential.to_string();
  // Quadratic: every attempt runs to the end of the text.
  const std::clock_t start = std::clock();
  const Status quadratic = run("a.*b|a", std::string(150'000, 'a'));
  EXPECT_EQ(quadratic.code(), StatusCode::kDeadlineExceeded) << quadratic.to_string();
  EXPECT_LT(std::clock() - start, 60 * CLOCKS_PER_SEC);
}

TEST(Regex, ALongRunOfSpacesIsNoHostileText) {
  EXPECT_TRUE(run(R"(\s*[\r\n]+|\s+(?!\S)|\s+)", std::string(2'000'000, ' ') + "x").ok());
}

}  // namespace
}  // namespace pointsman
