// SPDX-License-Identifier: Apache-2.0
//
// What the tokenizer needs to know about characters: normalisation forms, case, categories (utf8proc inside, whose tables are
// those of the installed version).
//
// Text is valid UTF-8 throughout. All functions are pure and thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace pointsman {

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };

// Time is O(n log n) whatever the text is: a megabyte of combining marks is sorted, not bubbled.
std::string unicode_normalize(std::string_view text, NormalForm form);

// Unicode White_Space, as Rust's char::is_whitespace (U+180E and U+001C..001F are not).
bool is_white_space(uint32_t code_point);
bool is_mark(uint32_t code_point);         // general category M
bool is_numeric(uint32_t code_point);      // general category N
bool is_punctuation(uint32_t code_point);  // general category P, and all ASCII punctuation (which includes symbols such as '$')
bool is_letter(uint32_t code_point);       // general category L
bool is_decimal_digit(uint32_t code_point);  // general category Nd
// The regular-expression class \w: letters, marks, decimal digits, connectors, joiners.
bool is_word_character(uint32_t code_point);
// What Python's repr() shows as it is.
bool is_printable(uint32_t code_point);
bool is_upper(uint32_t code_point);  // Lu or Lt
bool is_lower(uint32_t code_point);  // Ll

// Character by character, without context: U+0130 becomes two characters, a final sigma is not special.
void append_lower(std::string& out, uint32_t code_point);
// 'ß' becomes "SS".
void append_upper(std::string& out, uint32_t code_point);

}  // namespace pointsman
