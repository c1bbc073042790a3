// SPDX-License-Identifier: Apache-2.0
#include "doctor/ascend.h"

#include <gtest/gtest.h>

#include "doctor/version_facts.h"

namespace pointsman::doctor {
namespace {

TEST(NpuSmi, TwoLinesPerChip) {
  const NpuSmi smi = parse_npu_smi(
      "+------------------------------------------------------------------------------------------------+\n"
      "| npu-smi 25.2.0                   Version: 25.2.0                                               |\n"
      "+---------------------------+---------------+----------------------------------------------------+\n"
      "| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|\n"
      "| Chip                      | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |\n"
      "+===========================+===============+====================================================+\n"
      "| 0     910B4-1             | OK            | 91.3        33                0    / 0             |\n"
      "| 0                         | 0000:C1:00.0  | 0           0    / 0          3197 / 65536         |\n"
      "+===========================+===============+====================================================+\n"
      "| 5     910B4-1             | Alarm         | 91.3        33                0    / 0             |\n"
      "| 0                         | 0000:01:00.0  | 0           0    / 0          3300 / 65536         |\n"
      "+===========================+===============+====================================================+\n"
      "| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |\n"
      "| 0       0                 | 4711          | python                   | 3000                    |\n");
  EXPECT_EQ(smi.version, "25.2.0");
  EXPECT_FALSE(smi.has_phy_id_column);
  ASSERT_EQ(smi.npus.size(), 2u);
  EXPECT_EQ(smi.npus[0].name, "910B4-1");
  EXPECT_EQ(smi.npus[0].bus_id, "0000:C1:00.0");
  EXPECT_EQ(smi.npus[0].hbm_used_mb, 3197);
  EXPECT_EQ(smi.npus[0].hbm_total_mb, 65536);
  EXPECT_EQ(smi.npus[1].npu, 5);
  EXPECT_EQ(smi.npus[1].health, "Alarm");
}

TEST(NpuSmi, DiesOfAnA3HavePhysicalIds) {
  const NpuSmi smi = parse_npu_smi(
      "| npu-smi 26.0.rc2                            Version: 26.0.rc2             |\n"
      "| NPU   Name                | Health        | Power(W)  Temp(C)  Hugepages-Usage(page)   |\n"
      "| Chip  Phy-ID              | Bus-Id        | AICore(%) Memory-Usage(MB) HBM-Usage(MB)   |\n"
      "| 0     Ascend910           | OK            | 162.6     34       0    / 0                |\n"
      "| 0     0                   | 0000:9D:00.0  | 0         0    / 0                3419 / 65536 |\n"
      "| 0     Ascend910           | OK            | -         34       0    / 0                |\n"
      "| 1     1                   | 0000:9F:00.0  | 0         0    / 0                2874 / 65536 |\n");
  EXPECT_TRUE(smi.has_phy_id_column);
  ASSERT_EQ(smi.npus.size(), 2u);
  EXPECT_EQ(smi.npus[1].chip, 1);
  EXPECT_EQ(smi.npus[1].phy_id, 1);
  EXPECT_EQ(smi.npus[1].name, "Ascend910");
}

TEST(NpuSmi, AnythingElseIsNoDevice) {
  EXPECT_TRUE(parse_npu_smi("").npus.empty());
  EXPECT_TRUE(parse_npu_smi("dcmi module initialize failed. ret is -8005\n").npus.empty());
  EXPECT_TRUE(parse_npu_smi("| 99999999999999999999 910B | OK | 1 |\n| 0 | 0000:C1:00.0 | 1 |\n").npus.empty());
  EXPECT_TRUE(parse_npu_smi("| 0 | 0000:C1:00.0 | 1 |\n").npus.empty());  // no line with a name before it
}

TEST(VersionInfo, RangesOfDriverAndFirmware) {
  const PackageInfo driver = parse_package_info(
      "Version=25.3.rc1\nascendhal_version=7.35.23\ncompatible_version_fw=[6.4.0,6.4.99],[7.0.0,8.9.9]\npackage_version=25.3."
      "rc1\n",
      "f");
  EXPECT_EQ(driver.version.text(), "25.3.rc1");
  ASSERT_EQ(driver.compatible_firmware.size(), 2u);
  EXPECT_TRUE(in_ranges(Version("7.5.0.1.129"), driver.compatible_firmware));
  EXPECT_TRUE(in_ranges(Version("6.4.12"), driver.compatible_firmware));
  EXPECT_FALSE(in_ranges(Version("6.5.0"), driver.compatible_firmware));
  EXPECT_FALSE(in_ranges(Version("9.0.0"), driver.compatible_firmware));
  const auto drivers = parse_version_ranges("[23.0.0,23.0.0.],[24.1,24.1.],[25.0,25.0.]");
  EXPECT_TRUE(in_ranges(Version("25.0.rc1.1"), drivers));
  EXPECT_TRUE(in_ranges(Version("24.1.0.3"), drivers));
  EXPECT_FALSE(in_ranges(Version("25.2.0"), drivers));
  EXPECT_TRUE(parse_version_ranges("[[[,,]").empty() || !in_ranges(Version("1.0"), parse_version_ranges("[[[,,]")));
}

TEST(VersionFacts, TheTablesOfThisBuild) {
  const VersionFacts facts = builtin_version_facts();
  EXPECT_GT(facts.torch_rows.size(), 50u);
  ASSERT_NE(facts.torch_row(Version("2.9.0.post2")), nullptr);
  EXPECT_EQ(facts.torch_row(Version("2.9.0.post2"))->cann, "9.0.0");
  EXPECT_EQ(facts.torch_row(Version("2.9.0.post99")), nullptr);
  ASSERT_NE(facts.soc("Ascend910B3"), nullptr);
  EXPECT_EQ(facts.soc("Ascend910B3")->family, "A2");
  EXPECT_EQ(facts.soc("Ascend910_9391")->family, "A3");
  EXPECT_EQ(facts.soc("Ascend950PR_9589")->family, "950PR");
  // "Ascend910B" alone is a part of the first generation, not an A2.
  EXPECT_EQ(facts.soc("Ascend910B"), nullptr);
  ASSERT_NE(facts.driver_row(Version("8.5.0")), nullptr);
  EXPECT_EQ(facts.driver_row(Version("9.1.0"))->excluded, std::vector<std::string>{"25.0.X"});
  EXPECT_EQ(facts.driver_row(Version("7.0.0")), nullptr);
}

TEST(VersionFacts, WrongTablesAreRefused) {
  EXPECT_EQ(parse_version_facts("{}").status().code(), StatusCode::kUnsupported);
  EXPECT_EQ(parse_version_facts("[1").status().code(), StatusCode::kCorrupt);
  EXPECT_EQ(parse_version_facts(R"({"schema": 1, "torch_npu_matrix": 3})").status().code(), StatusCode::kCorrupt);
}

}  // namespace
}  // namespace pointsman::doctor
