// SPDX-License-Identifier: Apache-2.0
#include "doctor/text.h"

#include <gtest/gtest.h>

#include "doctor/version.h"

namespace pointsman::doctor {
namespace {

TEST(DoctorText, CpuListsGoThereAndBack) {
  EXPECT_EQ(cpu_list(*parse_cpu_list("0-3,8,10-11\n")), "0-3,8,10-11");
  EXPECT_EQ(parse_cpu_list("")->size(), 0u);
  EXPECT_FALSE(parse_cpu_list("3-1"));
  EXPECT_FALSE(parse_cpu_list("0-4294967295"));
  EXPECT_FALSE(parse_cpu_list("0,,1"));
}

TEST(DoctorText, PrintableKeepsTextAndDropsWhatMovesATerminal) {
  EXPECT_EQ(printable("\x1b[31mred"), "?[31mred");
  EXPECT_EQ(printable("模型"), "模型");
  EXPECT_EQ(printable("a\xff\xfe b"), "a?? b");
  EXPECT_EQ(printable("\xc2\x9b 31m"), "? 31m");  // C1 control
  EXPECT_EQ(printable("abcdef", 3), "abc ...");
  EXPECT_EQ(printable("ab模", 4), "ab ...");  // never half a character
}

TEST(DoctorText, NumbersThatDoNotFitAreNone) {
  EXPECT_EQ(parse_int("42"), 42);
  EXPECT_FALSE(parse_int("99999999999999999999"));
  EXPECT_FALSE(parse_int("42 "));
  EXPECT_EQ(leading_int("  42 kB"), 42);
  EXPECT_FALSE(leading_int("kB"));
}

int order(const char* a, const char* b) {
  return Version(a).compare(Version(b));
}

TEST(DoctorVersion, OrderOfReleasesCandidatesAndPostReleases) {
  // Each is older than the next.
  const char* ordered[] = {"8.0.RC1.alpha001", "8.0.RC1", "8.0.RC2",      "8.0.0", "8.1.RC1", "8.2.RC1", "8.5.0",
                           "9.0.0-beta.1",     "9.0.0",   "9.1.0-beta.2", "9.1.0"};
  for (size_t i = 0; i + 1 < std::size(ordered); ++i) {
    // "8.0.RC1.alpha001" is an early build of the candidate.
    if (i == 0) continue;
    EXPECT_LT(order(ordered[i], ordered[i + 1]), 0) << ordered[i] << " " << ordered[i + 1];
    EXPECT_GT(order(ordered[i + 1], ordered[i]), 0);
  }
  EXPECT_LT(order(ordered[0], ordered[1]), 0);
  EXPECT_LT(order("25.0.rc1", "25.0.rc1.1"), 0);
  EXPECT_LT(order("25.0.rc1.1", "25.0.0"), 0);
  EXPECT_LT(order("2.9.0", "2.9.0.post2"), 0);
  EXPECT_LT(order("2.9.0.post2", "2.9.0.post10"), 0);
  EXPECT_EQ(order("8.2.RC1", "8.2.rc1"), 0);
  EXPECT_EQ(order("2.9.0+cu130", "2.9"), 0);
  EXPECT_LT(order("580.65.06", "580.95.05"), 0);
}

TEST(DoctorVersion, PatternsAndBases) {
  EXPECT_TRUE(Version("25.0.rc1.1").matches("25.0.X"));
  EXPECT_TRUE(Version("25.2.0.1").matches("25.2.0"));
  EXPECT_FALSE(Version("25.20.0").matches("25.2.X"));
  EXPECT_TRUE(Version("9.1.0").matches("9.1.x"));
  EXPECT_FALSE(Version("9").matches("9.1.X"));
  EXPECT_EQ(Version("2.9.0.post2+cpu").base().text(), "2.9.0");
  EXPECT_EQ(Version("2.9.0+cpu").base().compare(Version("2.9.0")), 0);
  EXPECT_TRUE(Version("").empty());
}

}  // namespace
}  // namespace pointsman::doctor
