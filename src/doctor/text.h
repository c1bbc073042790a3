// SPDX-License-Identifier: Apache-2.0
//
// Small helpers for the text that machines describe themselves with: "Key: value" lines, "key=value" lines, lists like "0-3,8".
// All of them take hostile input: nothing throws, numbers that do not fit are no numbers.
#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace pointsman::doctor {

std::string_view trim(std::string_view text);                                // blanks, tabs, carriage returns, newlines
std::vector<std::string_view> split(std::string_view text, char separator);  // empty pieces are kept
std::vector<std::string_view> lines_of(std::string_view text);
std::vector<std::string_view> words_of(std::string_view text);  // at blanks and tabs; no empty ones
// The pieces point into the text: it must not be a temporary.
template <std::same_as<std::string> S>
void split(S&&, char) = delete;
template <std::same_as<std::string> S>
void lines_of(S&&) = delete;
template <std::same_as<std::string> S>
void words_of(S&&) = delete;
std::string lower(std::string_view text);
bool contains(std::string_view text, std::string_view part);

// The whole of `text`, or nothing. Decimal.
std::optional<int64_t> parse_int(std::string_view text);
std::optional<double> parse_double(std::string_view text);
// The number at the start of `text` after blanks: "  123 kB" is 123.
std::optional<int64_t> leading_int(std::string_view text);

// The rest of the first line that starts with `key` (which includes the separator, as "MemTotal:" or "version=").
std::optional<std::string_view> field(std::string_view text, std::string_view key);

// "0-3,8" -> {0, 1, 2, 3, 8}. Nothing when it is no such list, or longer than `max_items`.
std::optional<std::vector<int>> parse_cpu_list(std::string_view text, size_t max_items = 65536);
// {0, 1, 2, 3, 8} -> "0-3,8". Sorted input.
std::string cpu_list(const std::vector<int>& ids);

// "1 file", "2 files".
std::string counted(int64_t n, std::string_view thing);

// For terminals and JSON: control characters and invalid UTF-8 become "?", and at most `max_bytes` are kept (" ..." marks a
// cut).
std::string printable(std::string_view text, size_t max_bytes = 200);

}  // namespace pointsman::doctor
