// SPDX-License-Identifier: Apache-2.0
#include "tensor/dtype.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "tensor/tensor.h"

namespace pointsman {
namespace {

// What a code of a binary format means, from its definition, in double arithmetic.
double decode(uint32_t code, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const uint32_t mantissa = code & ((1u << mantissa_bits) - 1);
  const int exponent = static_cast<int>(code >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const double sign = (code >> (exponent_bits + mantissa_bits)) != 0 ? -1.0 : 1.0;
  if (exponent == (1 << exponent_bits) - 1)
    return mantissa != 0 ? std::nan("") : sign * std::numeric_limits<double>::infinity();
  const double fraction = std::ldexp(static_cast<double>(mantissa), -mantissa_bits) + (exponent != 0 ? 1.0 : 0.0);
  return sign * std::ldexp(fraction, (exponent != 0 ? exponent : 1) - bias);
}

TEST(Dtype, EveryBf16CodeDecodes) {
  for (uint32_t code = 0; code < 65536; ++code) {
    const float got = to_float(bf16{static_cast<uint16_t>(code)});
    const double want = decode(code, 8, 7);
    ASSERT_TRUE(std::isnan(want) ? std::isnan(got) : static_cast<double>(got) == want) << code;
    ASSERT_EQ(std::signbit(got), code >= 32768) << code;
  }
}

TEST(Dtype, EveryF16CodeDecodes) {
  for (uint32_t code = 0; code < 65536; ++code) {
    const float got = to_float(f16{static_cast<uint16_t>(code)});
    const double want = decode(code, 5, 10);
    ASSERT_TRUE(std::isnan(want) ? std::isnan(got) : static_cast<double>(got) == want) << code;
    ASSERT_EQ(std::signbit(got), code >= 32768) << code;
  }
}

TEST(Dtype, Bf16RoundTripsAndNaNStaysNaN) {
  for (uint32_t code = 0; code < 65536; ++code) {
    const bf16 value{static_cast<uint16_t>(code)};
    const bf16 again = to_bf16(to_float(value));
    if (std::isnan(to_float(value))) {
      ASSERT_TRUE(std::isnan(to_float(again))) << code;
    } else {
      ASSERT_EQ(again, value) << code;
    }
  }
  // A NaN whose payload is only in the lower half must not become infinity.
  EXPECT_TRUE(std::isnan(to_float(to_bf16(std::bit_cast<float>(0x7f800001u)))));
  EXPECT_TRUE(std::isnan(to_float(to_bf16(std::bit_cast<float>(0xffffffffu)))));
}

TEST(Dtype, Bf16RoundsToNearestTiesToEven) {
  for (uint32_t high = 0; high < 0x7f80; ++high) {
    const uint32_t base = high << 16;
    const auto rounded = [&](uint32_t low) { return to_bf16(std::bit_cast<float>(base | low)).bits; };
    const auto up = static_cast<uint16_t>(high + 1);
    const auto down = static_cast<uint16_t>(high);
    ASSERT_EQ(rounded(0x0001), down);
    ASSERT_EQ(rounded(0x7fff), down);
    ASSERT_EQ(rounded(0x8000), high % 2 == 0 ? down : up) << high;
    ASSERT_EQ(rounded(0x8001), up);
    ASSERT_EQ(rounded(0xffff), up);
    ASSERT_EQ(to_bf16(std::bit_cast<float>(0x80000000u | base | 0x8001)).bits, 0x8000u | up);
  }
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(to_float(to_bf16(std::numeric_limits<float>::max())), inf);
  EXPECT_EQ(to_float(to_bf16(-inf)), -inf);
}

TEST(Dtype, NamesRoundTrip) {
  for (int i = 0; i <= static_cast<int>(DType::kU64); ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_EQ(parse_dtype(dtype_name(dtype)), dtype);
    EXPECT_GT(dtype_bits(dtype), 0);
  }
  EXPECT_EQ(dtype_bits(DType::kBF16), 16);
  EXPECT_EQ(dtype_bits(DType::kF4), 4);
  EXPECT_EQ(dtype_bits(DType::kC64), 64);
  EXPECT_EQ(dtype_name(DType::kF8E4M3), "F8_E4M3");
  EXPECT_FALSE(parse_dtype("bf16"));
  EXPECT_FALSE(parse_dtype(""));
}

TEST(Tensor, SlicesKeepTheStride) {
  float data[24] = {};
  const Tensor t = Tensor::matrix(data, DType::kF32, 6, 4);
  EXPECT_EQ(t.size_bytes(), 96);
  const Tensor s = t.slice_rows(2, 3);
  EXPECT_EQ(s.row<float>(1), data + 12);
  EXPECT_EQ(s.rows, 3);
  EXPECT_EQ(Tensor::vector(data, DType::kF32, 24).cols, 24);
  EXPECT_TRUE(Tensor().empty());
  EXPECT_FALSE(Tensor());
}

}  // namespace
}  // namespace pointsman
