// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/unicode.h"

#include <gtest/gtest.h>

#include <ctime>
#include <sstream>

#include "support/golden.h"
#include "support/xz.h"
#include "tokenizer/utf8.h"

namespace pointsman {
namespace {

std::string utf8(uint32_t cp) {
  std::string out;
  append_utf8(out, cp);
  return out;
}

// Single code points against the tables of the reference. `disputed` ones are newer than its tables.
TEST(Unicode, NormalFormsOfSingleCharactersAgreeWithTheReference) {
  std::istringstream lines(testing::read_xz(testing::source_path("tests/golden/tokenizer/unicode_forms.txt.xz")));
  std::string line;
  int checked = 0;
  int wrong = 0;
  while (std::getline(lines, line)) {
    if (line.find("disputed") != std::string::npos || line.starts_with('#')) continue;
    std::istringstream fields(line);
    std::string form;
    std::string code;
    fields >> form >> code;
    std::string expected;
    for (std::string part; fields >> part;) expected += utf8(static_cast<uint32_t>(std::stoul(part, nullptr, 16)));
    const NormalForm f = form == "NFC"    ? NormalForm::kNfc
                         : form == "NFD"  ? NormalForm::kNfd
                         : form == "NFKC" ? NormalForm::kNfkc
                                          : NormalForm::kNfkd;
    const auto cp = static_cast<uint32_t>(std::stoul(code, nullptr, 16));
    ++checked;
    if (unicode_normalize(utf8(cp), f) == expected) continue;
    if (++wrong <= 5) ADD_FAILURE() << line;
  }
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(checked, 10000);
}

TEST(Unicode, ComposesAcrossFastAndSlowCharacters) {
  EXPECT_EQ(unicode_normalize("caf\x65\xCC\x81 x", NormalForm::kNfc), "caf\xC3\xA9 x");
  // か + voiced mark; a Hangul syllable + final consonant.
  EXPECT_EQ(unicode_normalize(utf8(0x304B) + utf8(0x3099), NormalForm::kNfc), utf8(0x304C));
  EXPECT_EQ(unicode_normalize(utf8(0xAC00) + utf8(0x11A8), NormalForm::kNfc), utf8(0xAC01));
  // Marks are put in order of their class.
  EXPECT_EQ(unicode_normalize("a" + utf8(0x301) + utf8(0x323), NormalForm::kNfd), "a" + utf8(0x323) + utf8(0x301));
  EXPECT_EQ(unicode_normalize("", NormalForm::kNfc), "");
}

TEST(Unicode, AMegabyteOfMarksTakesNoQuadraticTime) {
  std::string text = "a";
  for (int i = 0; i < 250'000; ++i) text += i % 2 == 0 ? utf8(0x301) : utf8(0x323);
  const std::clock_t start = std::clock();
  const std::string out = unicode_normalize(text, NormalForm::kNfc);
  EXPECT_LT(std::clock() - start, 5 * CLOCKS_PER_SEC);
  EXPECT_EQ(utf8_length(out), 250'000u);  // a with dot below is one character
}

TEST(Unicode, CaseAndClasses) {
  std::string out;
  append_lower(out, 0x130);
  append_lower(out, 'A');
  append_upper(out, 0xDF);
  EXPECT_EQ(out,
            "i\xCC\x87"
            "aSS");
  EXPECT_TRUE(is_white_space(0x3000));
  EXPECT_FALSE(is_white_space(0x180E));
  EXPECT_FALSE(is_white_space(0x1C));
  EXPECT_TRUE(is_punctuation('$'));
  EXPECT_TRUE(is_numeric(0xBD));
  EXPECT_FALSE(is_decimal_digit(0xBD));
}

}  // namespace
}  // namespace pointsman
