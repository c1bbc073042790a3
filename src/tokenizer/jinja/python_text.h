// SPDX-License-Identifier: Apache-2.0
//
// What Python's str does, on valid UTF-8. Positions and lengths are in characters.
//
// All functions are pure and thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace pointsman::jinja {

// str.isspace() of one character: White_Space and U+001C..U+001F.
bool is_python_space(uint32_t code_point);

std::string python_repr(std::string_view text);  // 'it\'s'
std::string python_repr(double value);           // 1e+16, 0.1, inf

// Without `characters`: white space.
std::string_view strip(std::string_view text, bool left, bool right, const std::optional<std::string_view>& characters = {});
// Without `separator`: at runs of white space. `limit` < 0: no limit. REQUIRES: separator is not empty.
std::vector<std::string_view> split(std::string_view text, const std::optional<std::string_view>& separator, int64_t limit);
std::vector<std::string_view> split_from_right(std::string_view text, const std::optional<std::string_view>& separator,
                                               int64_t limit);
std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends);
// `count` < 0: all.
std::string replace(std::string_view text, std::string_view from, std::string_view to, int64_t count);

// & < > ' " as entities.
std::string escape_html(std::string_view text);

std::string upper(std::string_view text);
std::string lower(std::string_view text);
std::string casefold(std::string_view text);  // lower, and 'ß' becomes "ss"
std::string capitalize(std::string_view text);
std::string swap_case(std::string_view text);
std::string title(std::string_view text);        // str.title(): a new word after every character that has no case
std::string jinja_title(std::string_view text);  // |title: after white space, '-', '(', '[', '{' and '<'

// All characters are so, and there is one.
bool all_characters(std::string_view text, bool (*predicate)(uint32_t));
bool is_upper_text(std::string_view text);
bool is_lower_text(std::string_view text);

// Byte offset of character `index` (at most the length).
size_t byte_offset(std::string_view text, size_t index);

}  // namespace pointsman::jinja
