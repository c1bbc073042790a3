// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/byte_level.h"

#include <array>

#include "tokenizer/utf8.h"

namespace pointsman {
namespace {

struct Tables {
  std::array<uint16_t, 256> to_code_point{};
  std::array<int16_t, 0x144> to_byte{};

  constexpr Tables() {
    for (int16_t& b : to_byte) b = -1;
    uint16_t next = 0x100;
    for (int b = 0; b < 256; ++b) {
      const bool own = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
      const uint16_t cp = own ? static_cast<uint16_t>(b) : next++;
      to_code_point[static_cast<size_t>(b)] = cp;
      to_byte[cp] = static_cast<int16_t>(b);
    }
  }
};

constexpr Tables kTables;

}  // namespace

uint32_t byte_to_alphabet(unsigned char byte) {
  return kTables.to_code_point[byte];
}

int alphabet_to_byte(uint32_t cp) {
  return cp < kTables.to_byte.size() ? kTables.to_byte[cp] : -1;
}

std::string bytes_to_alphabet(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size() * 2);
  for (const char c : bytes) append_utf8(out, byte_to_alphabet(static_cast<unsigned char>(c)));
  return out;
}

bool alphabet_to_bytes(std::string_view text, std::string& out) {
  std::string bytes;
  bytes.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const int b = alphabet_to_byte(utf8_decode_valid(text, i));
    if (b < 0) return false;
    bytes += static_cast<char>(b);
  }
  out = std::move(bytes);
  return true;
}

}  // namespace pointsman
