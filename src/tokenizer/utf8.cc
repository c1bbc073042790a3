// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/utf8.h"

#include <cstring>

namespace pointsman {

Utf8Step utf8_next(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const uint32_t b0 = byte(0);
  if (b0 < 0x80) return {b0, 1, true, false};
  uint32_t length;
  uint32_t cp;
  // The second byte has a narrower range after some lead bytes: no overlong forms, no surrogates, no more than U+10FFFF.
  unsigned char low = 0x80;
  unsigned char high = 0xBF;
  if (b0 >= 0xC2 && b0 <= 0xDF) {
    length = 2;
    cp = b0 & 0x1F;
  } else if (b0 >= 0xE0 && b0 <= 0xEF) {
    length = 3;
    cp = b0 & 0x0F;
    if (b0 == 0xE0) low = 0xA0;
    if (b0 == 0xED) high = 0x9F;
  } else if (b0 >= 0xF0 && b0 <= 0xF4) {
    length = 4;
    cp = b0 & 0x07;
    if (b0 == 0xF0) low = 0x90;
    if (b0 == 0xF4) high = 0x8F;
  } else {
    return {0xFFFD, 1, false, false};
  }
  for (uint32_t i = 1; i < length; ++i) {
    if (i >= text.size()) return {0xFFFD, i, false, true};
    const unsigned char b = byte(i);
    if (b < low || b > high) return {0xFFFD, i, false, false};
    low = 0x80;
    high = 0xBF;
    cp = (cp << 6) | (b & 0x3F);
  }
  return {cp, length, true, false};
}

void append_utf8(std::string& out, uint32_t cp) {
  if (cp < 0x80) {
    out += static_cast<char>(cp);
  } else if (cp < 0x800) {
    out += static_cast<char>(0xC0 | (cp >> 6));
    out += static_cast<char>(0x80 | (cp & 0x3F));
  } else if (cp < 0x10000) {
    out += static_cast<char>(0xE0 | (cp >> 12));
    out += static_cast<char>(0x80 | ((cp >> 6) & 0x3F));
    out += static_cast<char>(0x80 | (cp & 0x3F));
  } else {
    out += static_cast<char>(0xF0 | (cp >> 18));
    out += static_cast<char>(0x80 | ((cp >> 12) & 0x3F));
    out += static_cast<char>(0x80 | ((cp >> 6) & 0x3F));
    out += static_cast<char>(0x80 | (cp & 0x3F));
  }
}

size_t utf8_valid_prefix(std::string_view text) {
  size_t i = 0;
  while (i < text.size()) {
    // Eight ASCII bytes at a time.
    while (i + 8 <= text.size()) {
      uint64_t word;
      std::memcpy(&word, text.data() + i, 8);
      if ((word & 0x8080808080808080ULL) != 0) break;
      i += 8;
    }
    if (i >= text.size()) break;
    const Utf8Step step = utf8_next(text.substr(i));
    if (!step.valid) return i;
    i += step.bytes;
  }
  return text.size();
}

void append_utf8_lossy(std::string& out, std::string_view text) {
  while (!text.empty()) {
    const size_t good = utf8_valid_prefix(text);
    out += text.substr(0, good);
    text.remove_prefix(good);
    if (text.empty()) return;
    out += kReplacementCharacter;
    text.remove_prefix(utf8_next(text).bytes);
  }
}

size_t utf8_length(std::string_view text) {
  size_t n = 0;
  for (const char c : text) n += !is_utf8_continuation(c);
  return n;
}

}  // namespace pointsman
