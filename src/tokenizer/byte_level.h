// SPDX-License-Identifier: Apache-2.0
//
// The byte-level alphabet of GPT-2: each of the 256 bytes has a printable character, so that vocabularies can be JSON text.
// Bytes 21..7E, A1..AC and AE..FF are their own code point; the other 68 are U+0100, U+0101, ... in order.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace pointsman {

// Code point that stands for `byte`.
uint32_t byte_to_alphabet(unsigned char byte);
// The byte that a code point stands for, or -1.
int alphabet_to_byte(uint32_t code_point);

// "\x20a" -> "\u0120a". Any bytes.
std::string bytes_to_alphabet(std::string_view bytes);
// The inverse; false (and `out` unchanged) when a character of `text` stands for no byte. REQUIRES: valid UTF-8.
bool alphabet_to_bytes(std::string_view text, std::string& out);

}  // namespace pointsman
