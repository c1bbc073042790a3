// SPDX-License-Identifier: Apache-2.0
//
// UTF-8 without tables: decode, encode, validate, repair. "Valid" means what Unicode says: shortest form, no surrogates,
// nothing above U+10FFFF. Broken bytes are cut into maximal subparts, one U+FFFD each, exactly as Rust's from_utf8_lossy and
// Python's errors="replace" do it.
//
// All functions are pure and thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace pointsman {

// U+FFFD in UTF-8.
inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

struct Utf8Step {
  uint32_t code_point = 0;
  uint32_t bytes = 0;  // of the character, or of the maximal subpart to be replaced by one U+FFFD
  bool valid = false;
  bool incomplete = false;  // not valid, but more bytes could make it so: the text ends too early
};

// The character that begins `text`. REQUIRES: text is not empty.
Utf8Step utf8_next(std::string_view text);

// The first character of text that is known to be valid. Advances `position` past it.
inline uint32_t utf8_decode_valid(std::string_view text, size_t& position) {
  const auto byte = [&](size_t i) { return static_cast<uint32_t>(static_cast<unsigned char>(text[position + i])); };
  const uint32_t b0 = byte(0);
  if (b0 < 0x80) return position += 1, b0;
  uint32_t cp;
  if (b0 < 0xE0) {
    cp = ((b0 & 0x1F) << 6) | (byte(1) & 0x3F);
    position += 2;
  } else if (b0 < 0xF0) {
    cp = ((b0 & 0x0F) << 12) | ((byte(1) & 0x3F) << 6) | (byte(2) & 0x3F);
    position += 3;
  } else {
    cp = ((b0 & 0x07) << 18) | ((byte(1) & 0x3F) << 12) | ((byte(2) & 0x3F) << 6) | (byte(3) & 0x3F);
    position += 4;
  }
  return cp;
}

inline bool is_utf8_continuation(char c) {
  return (static_cast<unsigned char>(c) & 0xC0) == 0x80;
}

// Start of the last character of valid, non-empty text.
inline size_t utf8_last_start(std::string_view text) {
  size_t i = text.size() - 1;
  while (i > 0 && is_utf8_continuation(text[i])) --i;
  return i;
}

// REQUIRES: code_point <= 0x10FFFF and no surrogate.
void append_utf8(std::string& out, uint32_t code_point);

// Offset of the first byte that is not part of a valid character; text.size() when all is well.
size_t utf8_valid_prefix(std::string_view text);

// Appends `text` with every maximal broken subpart replaced by U+FFFD.
void append_utf8_lossy(std::string& out, std::string_view text);

// Number of characters of valid text.
size_t utf8_length(std::string_view text);

}  // namespace pointsman
