// SPDX-License-Identifier: Apache-2.0
//
// Element types as safetensors names them, and the scalar types behind them. Sub-byte types (F4, F6) have a size in bits.
#pragma once

#include <bit>
#include <cstdint>
#include <optional>
#include <string_view>

namespace pointsman {

enum class DType : uint8_t {
  kBool, kF4, kF6E2M3, kF6E3M2, kU8, kI8, kF8E5M2, kF8E4M3, kF8E8M0, kF8E4M3Fnuz, kF8E5M2Fnuz,
  kI16, kU16, kF16, kBF16, kI32, kU32, kF32, kC64, kF64, kI64, kU64,
};

// "BF16", "F8_E4M3", ...
std::string_view dtype_name(DType dtype);
std::optional<DType> parse_dtype(std::string_view name);
int dtype_bits(DType dtype);

// bfloat16: the upper half of an fp32. Storage only; arithmetic happens in fp32.
struct bf16 {
  uint16_t bits = 0;
  friend bool operator==(bf16, bf16) = default;
};
inline float to_float(bf16 v) { return std::bit_cast<float>(uint32_t{v.bits} << 16); }
// Round to nearest, ties to even; NaN stays NaN (quiet).
inline bf16 to_bf16(float f) {
  const uint32_t u = std::bit_cast<uint32_t>(f);
  if ((u & 0x7fffffff) > 0x7f800000) return {static_cast<uint16_t>((u >> 16) | 0x40)};
  return {static_cast<uint16_t>((u + 0x7fff + ((u >> 16) & 1)) >> 16)};
}

// IEEE binary16. Storage only.
struct f16 {
  uint16_t bits = 0;
  friend bool operator==(f16, f16) = default;
};
inline float to_float(f16 v) {
  const uint32_t sign = uint32_t{v.bits & 0x8000u} << 16;
  const uint32_t exponent = (v.bits >> 10) & 31;
  const uint32_t mantissa = v.bits & 0x3ff;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000 | (mantissa << 13));
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return sign ? -magnitude : magnitude;
  }
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

}  // namespace pointsman
