// SPDX-License-Identifier: Apache-2.0
#include "model/benefit_trial.h"

#include <gtest/gtest.h>

namespace pointsman {
namespace {

// Passes take `with` or `without`; how many of `n` did it.
size_t run(BenefitTrial& t, size_t n, uint64_t with, uint64_t without) {
  size_t on = 0;
  for (size_t i = 0; i < n; ++i) {
    on += t.on();
    t.record(t.on() ? with : without);
  }
  return on;
}

TEST(BenefitTrial, TakesTurnsThenKeepsTheFaster) {
  BenefitTrial t;
  EXPECT_TRUE(t.on());
  EXPECT_EQ(run(t, 64, 90, 100), 32u);
  EXPECT_EQ(t.num_trials(), 1u);
  EXPECT_EQ(t.num_lost(), 0u);
  EXPECT_EQ(t.with_ns(), 90u);
  EXPECT_EQ(t.without_ns(), 100u);
  EXPECT_EQ(run(t, 512, 90, 100), 512u);
  EXPECT_EQ(run(t, 64, 110, 100), 32u) << "the next trial";
  EXPECT_EQ(t.num_lost(), 1u);
  EXPECT_EQ(run(t, 512, 110, 100), 0u);
}

TEST(BenefitTrial, IsTriedLessAndLessWhileItLoses) {
  BenefitTrial t;
  for (const size_t hold : {512u, 1024u, 2048u, 4096u, 8192u, 8192u}) {
    EXPECT_EQ(run(t, 64, 200, 100), 32u);
    EXPECT_EQ(run(t, hold, 200, 100), 0u) << hold;
  }
  EXPECT_EQ(run(t, 64, 50, 100), 32u);
  EXPECT_EQ(run(t, 512, 50, 100), 512u);
  run(t, 64, 200, 100);
  EXPECT_EQ(run(t, 512, 200, 100), 0u);
  EXPECT_TRUE(t.on()) << "after a win the pauses are short again";
}

TEST(BenefitTrial, NoDifferenceIsNoBenefitAndOutliersDecideNothing) {
  BenefitTrial t;
  run(t, 64, 99, 100);
  EXPECT_FALSE(t.on());
  BenefitTrial u;
  for (size_t i = 0; i < 64; ++i) u.record(i % 9 == 0 ? 100000 : u.on() ? 90 : 100);
  EXPECT_TRUE(u.on());
}

TEST(BenefitTrial, ARestartForgetsTimesOfOtherWork) {
  BenefitTrial t;
  run(t, 40, 5000, 10);
  t.restart();
  EXPECT_EQ(run(t, 64, 90, 100), 32u);
  EXPECT_TRUE(t.on());
  EXPECT_EQ(t.num_trials(), 1u);
}

}  // namespace
}  // namespace pointsman
