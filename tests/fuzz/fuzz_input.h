// SPDX-License-Identifier: Apache-2.0
//
// What every fuzz target needs: its input as text, and a check that stays on in every build.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <utility>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace pointsman::fuzz {

inline std::string_view text_of(const uint8_t* data, size_t size) { return {reinterpret_cast<const char*>(data), size}; }

// Two texts in one input: what precedes the first NUL byte, and what follows it.
inline std::pair<std::string_view, std::string_view> split(std::string_view input) {
  const size_t nul = input.find('\0');
  if (nul == input.npos) return {input, {}};
  return {input.substr(0, nul), input.substr(nul + 1)};
}

inline void expect(bool condition) {
  if (!condition) std::abort();
}

}  // namespace pointsman::fuzz
