// SPDX-License-Identifier: Apache-2.0
#include "base/philox.h"

#include <gtest/gtest.h>

#include <set>

namespace pointsman {
namespace {

// The known answers that Random123 publishes for philox4x32, 10 rounds: zeros, ones, digits of pi.
TEST(Philox, KnownAnswers) {
  const uint32_t m = 0xffffffff;
  EXPECT_EQ(philox4x32_10({0, 0, 0, 0}, {0, 0}), (PhiloxCounter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32_10({m, m, m, m}, {m, m}), (PhiloxCounter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32_10({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (PhiloxCounter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, EveryArgumentOfADrawCounts) {
  const auto draw = [](uint64_t seed, RandomPurpose p, uint64_t step, uint32_t layer, uint64_t token, uint32_t expert) {
    return random_u32(seed, p, step, layer, token, expert);
  };
  const uint64_t high = uint64_t{1} << 32;
  const std::set<uint32_t> draws = {
      draw(1, RandomPurpose::kTest, 1, 1, 1, 1),        draw(2, RandomPurpose::kTest, 1, 1, 1, 1),
      draw(1 + high, RandomPurpose::kTest, 1, 1, 1, 1), draw(1, RandomPurpose::kSampling, 1, 1, 1, 1),
      draw(1, RandomPurpose::kTest, 2, 1, 1, 1),        draw(1, RandomPurpose::kTest, 1 + high, 1, 1, 1),
      draw(1, RandomPurpose::kTest, 1, 2, 1, 1),        draw(1, RandomPurpose::kTest, 1, 1, 2, 1),
      draw(1, RandomPurpose::kTest, 1, 1, 1 + high, 1), draw(1, RandomPurpose::kTest, 1, 1, 1, 2)};
  EXPECT_EQ(draws.size(), 10u);
  EXPECT_EQ(draw(1, RandomPurpose::kTest, 1, 1, 1, 1), draw(1, RandomPurpose::kTest, 1, 1, 1, 1));
}

TEST(Philox, UniformIsOpenAtBothEnds) {
  EXPECT_GT(uniform_open(0), 0.0);
  EXPECT_LT(uniform_open(0xffffffff), 1.0);
  double sum = 0;
  for (uint32_t t = 0; t < 10'000; ++t) sum += uniform_open(random_u32(7, RandomPurpose::kTest, 0, 0, t, 0));
  EXPECT_NEAR(sum / 10'000, 0.5, 0.02);
}

}  // namespace
}  // namespace pointsman
