// SPDX-License-Identifier: Apache-2.0
#include "memory/budget.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace pointsman {
namespace {

TEST(MemoryBudget, ChargesByClassAndRemembersThePeak) {
  MemoryBudget budget(1000);
  ASSERT_TRUE(budget.charge(MemoryClass::kWeights, 600).ok());
  ASSERT_TRUE(budget.charge(MemoryClass::kKvCache, 400).ok());
  EXPECT_EQ(budget.used_bytes(), 1000u);
  EXPECT_EQ(budget.used_bytes(MemoryClass::kKvCache), 400u);
  budget.credit(MemoryClass::kWeights, 600);
  EXPECT_EQ(budget.used_bytes(), 400u);
  EXPECT_EQ(budget.peak_bytes(), 1000u);
  EXPECT_EQ(budget.limit_bytes(), 1000u);
}

TEST(MemoryBudget, ARefusalSaysWhatIsShortAndChargesNothing) {
  MemoryBudget budget(1000);
  ASSERT_TRUE(budget.charge(MemoryClass::kWeights, 600).ok());
  const Status status = budget.charge(MemoryClass::kExpertSlots, 500);
  EXPECT_EQ(status.code(), StatusCode::kBudgetExceeded);
  EXPECT_EQ(status.message(), "expert slots needs 500 bytes, 100 short of the budget of 1000 (600 in use, weights 600)");
  EXPECT_EQ(budget.used_bytes(), 600u);
  EXPECT_EQ(budget.used_bytes(MemoryClass::kExpertSlots), 0u);
  EXPECT_EQ(budget.peak_bytes(), 600u);
}

TEST(MemoryBudget, HugeRequestsDoNotWrapAround) {
  MemoryBudget budget(1000);
  ASSERT_TRUE(budget.charge(MemoryClass::kWeights, 1).ok());
  EXPECT_FALSE(budget.charge(MemoryClass::kWeights, ~uint64_t{0}).ok());
  EXPECT_TRUE(budget.charge(MemoryClass::kWeights, 999).ok());
  EXPECT_FALSE(budget.charge(MemoryClass::kWeights, 1).ok());
  EXPECT_TRUE(budget.charge(MemoryClass::kWeights, 0).ok());
}

TEST(MemoryBudget, CreditOfWhatWasNotChargedAborts) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  MemoryBudget budget(1000);
  EXPECT_DEATH(budget.credit(MemoryClass::kScratch, 1), "credit of more");
}

TEST(MemoryBudget, NeverExceededByManyThreads) {
  MemoryBudget budget(1000);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      const auto c = static_cast<MemoryClass>(t);
      for (int i = 0; i < 20'000; ++i) {
        const auto bytes = static_cast<uint64_t>(1 + (i * 7 + t) % 400);
        if (!budget.charge(c, bytes).ok()) continue;
        EXPECT_LE(budget.used_bytes(), 1000u);
        budget.credit(c, bytes);
      }
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(budget.used_bytes(), 0u);
  EXPECT_LE(budget.peak_bytes(), 1000u);
  for (int c = 0; c < kNumMemoryClasses; ++c) EXPECT_EQ(budget.used_bytes(static_cast<MemoryClass>(c)), 0u);
}

TEST(MemoryBudget, EveryClassHasAName) {
  for (int c = 0; c < kNumMemoryClasses; ++c) EXPECT_STRNE(memory_class_name(static_cast<MemoryClass>(c)), "unknown");
}

TEST(Charge, IsCreditedOnce) {
  MemoryBudget budget(1000);
  {
    Charge a = std::move(Charge::make(budget, MemoryClass::kScratch, 300)).value();
    Charge b = std::move(a);
    EXPECT_EQ(a.bytes(), 0u);  // NOLINT: what a moved-from charge is
    EXPECT_EQ(b.bytes(), 300u);
    Charge c = std::move(Charge::make(budget, MemoryClass::kOutput, 200)).value();
    c = std::move(b);
    EXPECT_EQ(budget.used_bytes(), 300u);
    EXPECT_FALSE(Charge::make(budget, MemoryClass::kScratch, 701).ok());
  }
  EXPECT_EQ(budget.used_bytes(), 0u);
}

TEST(ParseBytes, UnitsAndRefusals) {
  EXPECT_EQ(parse_bytes("4096").value(), 4096u);
  EXPECT_EQ(parse_bytes("64KiB").value(), 65536u);
  EXPECT_EQ(parse_bytes("1.5GiB").value(), uint64_t{3} << 29);
  EXPECT_EQ(parse_bytes("2TiB").value(), uint64_t{2} << 40);
  EXPECT_EQ(parse_bytes("3MB").value(), 3'000'000u);
  for (const char* bad :
       {"", "-1", "0", "GiB", "12 GiB", "12gib", "1e9", "0x10", "nan", "inf", "99999999999999TiB", "12GiBx", "0.1"}) {
    EXPECT_EQ(parse_bytes(bad).status().code(), StatusCode::kInvalidArgument) << bad;
  }
}

}  // namespace
}  // namespace pointsman
