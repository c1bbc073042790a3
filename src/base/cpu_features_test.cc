// SPDX-License-Identifier: Apache-2.0
#include "base/cpu_features.h"

#include <gtest/gtest.h>

namespace pointsman {
namespace {

TEST(CpuFeatures, LargerSetsIncludeSmallerOnes) {
  const CpuFeatures cpu = detect_cpu_features();
  EXPECT_GE(cpu.avx2, cpu.avx512);
  EXPECT_GE(cpu.avx512, cpu.avx512_bf16);
  EXPECT_GE(cpu.avx512, cpu.avx512_vnni);
  EXPECT_FALSE(cpu.model_name.empty());
}

TEST(CpuFeatures, NamesRoundTrip) {
  for (const Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512}) EXPECT_EQ(parse_isa(isa_name(isa)).value(), isa);
  for (const char* name : {"", "AVX2", "sse", "avx512 "})
    EXPECT_EQ(parse_isa(name).status().code(), StatusCode::kInvalidArgument);
}

TEST(CpuFeatures, TheChoiceIsWhatTheCpuCanRun) {
  CpuFeatures cpu;
  cpu.model_name = "Old One";
  EXPECT_EQ(choose_isa("", cpu).value(), Isa::kScalar);
  EXPECT_EQ(choose_isa("scalar", cpu).value(), Isa::kScalar);
  const Status status = choose_isa("avx2", cpu).status();
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_NE(status.message().find("Old One"), std::string::npos) << status.message();
  cpu.avx2 = cpu.avx512 = true;
  EXPECT_EQ(choose_isa("", cpu).value(), Isa::kAvx512);
  EXPECT_EQ(choose_isa("avx2", cpu).value(), Isa::kAvx2);
  EXPECT_EQ(choose_isa("neon", cpu).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace pointsman
