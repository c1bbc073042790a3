// SPDX-License-Identifier: Apache-2.0
//
// The exponential of the reference; the other instruction sets are held against it bit for bit through SwiGLU and attention.
#include "ops/isa/vec_scalar.h"

#include "ops/isa/math.h"

#include <gtest/gtest.h>

#include <cstring>

namespace pointsman::ops {
namespace {

float exp_of(float x) { return vexp(vset(x)).f[0]; }

TEST(Exp, IsWithinOneUlpOfDoublePrecision) {
  double worst = 0, worst_denormal = 0;
  for (uint32_t sign : {0u, 0x80000000u}) {
    for (uint32_t bits = 0x30000000; bits < 0x42d00000; bits += 977) {  // 4.7e-10 to 104; smaller x give 1
      const float x = std::bit_cast<float>(sign | bits), y = exp_of(x);
      const double exact = std::exp(static_cast<double>(x));
      if (exact > 3.4028235e38) {
        EXPECT_TRUE(std::isinf(y)) << x;
      } else if (exact < 0x1p-126) {
        worst_denormal = std::max(worst_denormal, std::fabs(y - exact) / 0x1p-149);
      } else {
        int exponent;
        std::frexp(static_cast<float>(exact), &exponent);
        worst = std::max(worst, std::fabs(y - exact) / std::ldexp(1.0, exponent - 24));
      }
    }
  }
  EXPECT_LT(worst, 1.0);
  EXPECT_LT(worst_denormal, 1.0);
}

TEST(Exp, EndsAreExact) {
  EXPECT_EQ(exp_of(0.0f), 1.0f);
  EXPECT_EQ(exp_of(-0.0f), 1.0f);
  EXPECT_EQ(exp_of(1e-40f), 1.0f);
  EXPECT_EQ(exp_of(-INFINITY), 0.0f);
  EXPECT_EQ(exp_of(-1e30f), 0.0f);
  EXPECT_EQ(exp_of(-104.0f), 0.0f);
  EXPECT_GT(exp_of(-103.9f), 0.0f);  // the smallest denormal
  EXPECT_TRUE(std::isfinite(exp_of(88.7228f)));
  EXPECT_TRUE(std::isinf(exp_of(88.7229f)));
  EXPECT_TRUE(std::isinf(exp_of(1e30f)));
  EXPECT_TRUE(std::isinf(exp_of(INFINITY)));
  EXPECT_TRUE(std::isnan(exp_of(NAN)));
}

TEST(Log1p, IsWithinTwoUlpOfDoublePrecisionForWhatAnExponentialGives) {
  double worst = 0;
  for (uint32_t bits = 1; bits < 0x4e800000; bits += 1237) {  // the smallest denormal to 1e9
    const float x = std::bit_cast<float>(bits);
    const double exact = std::log1p(static_cast<double>(x));
    int exponent;
    std::frexp(static_cast<float>(exact), &exponent);
    worst = std::max(worst, std::fabs(vlog1p(vset(x)).f[3] - exact) / std::ldexp(1.0, std::max(exponent, -125) - 24));
  }
  EXPECT_LT(worst, 2.0);
  EXPECT_EQ(vlog1p(vset(0)).f[0], 0.0f);
}

TEST(Selection, SortsSixteenLanesAndFindsTheKth) {
  uint32_t state = 1;
  for (int round = 0; round < 300; ++round) {
    Vec v, place;
    for (int i = 0; i < 16; ++i) {
      state = state * 1664525u + 1013904223u;
      v.f[i] = static_cast<float>(state >> 24 & (round % 3 == 0 ? 3 : 255));
      place.f[i] = static_cast<float>(100 + i);
    }
    Vec sorted = v, order = place;
    vsort(&sorted, &order);
    for (int i = 0; i < 16; ++i) {
      const float at = order.f[i] - 100;
      EXPECT_EQ(v.f[static_cast<int>(at)], sorted.f[i]);
      EXPECT_EQ(vkth(v, i + 1).f[5], sorted.f[i]);
      if (i > 0) {
        EXPECT_TRUE(sorted.f[i - 1] > sorted.f[i] || (sorted.f[i - 1] == sorted.f[i] && order.f[i - 1] < order.f[i]));
      }
    }
  }
}

}  // namespace
}  // namespace pointsman::ops
