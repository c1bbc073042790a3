// SPDX-License-Identifier: Apache-2.0
//
// Overflow-checked arithmetic for numbers that come from files. An empty optional means "does not fit".
#pragma once

#include <cstdint>
#include <optional>

namespace pointsman {

inline std::optional<uint64_t> checked_add(uint64_t a, uint64_t b) {
  uint64_t r;
  if (__builtin_add_overflow(a, b, &r)) return std::nullopt;
  return r;
}
inline std::optional<uint64_t> checked_mul(uint64_t a, uint64_t b) {
  uint64_t r;
  if (__builtin_mul_overflow(a, b, &r)) return std::nullopt;
  return r;
}
// Rounds up to a multiple of a power of two. REQUIRES: n + alignment does not overflow.
inline constexpr uint64_t align_up(uint64_t n, uint64_t alignment) { return (n + alignment - 1) & ~(alignment - 1); }

}  // namespace pointsman
