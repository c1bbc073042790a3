// SPDX-License-Identifier: Apache-2.0
#include "doctor/text.h"

#include <algorithm>
#include <charconv>

namespace pointsman::doctor {

std::string_view trim(std::string_view text) {
  const auto blank = [](char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; };
  while (!text.empty() && blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && blank(text.back())) text.remove_suffix(1);
  return text;
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

std::vector<std::string_view> lines_of(std::string_view text) {
  if (text.ends_with('\n')) text.remove_suffix(1);
  if (text.empty()) return {};
  return split(text, '\n');
}

std::vector<std::string_view> words_of(std::string_view text) {
  std::vector<std::string_view> words;
  size_t at = 0;
  while (at < text.size()) {
    const size_t begin = text.find_first_not_of(" \t\r", at);
    if (begin == std::string_view::npos) break;
    const size_t end = std::min(text.find_first_of(" \t\r", begin), text.size());
    words.push_back(text.substr(begin, end - begin));
    at = end;
  }
  return words;
}

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return out;
}

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

std::optional<int64_t> parse_int(std::string_view text) {
  int64_t value = 0;
  const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (ec != std::errc() || end != text.data() + text.size() || text.empty()) return std::nullopt;
  return value;
}

std::optional<double> parse_double(std::string_view text) {
  double value = 0;
  const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (ec != std::errc() || end != text.data() + text.size() || text.empty()) return std::nullopt;
  return value;
}

std::optional<int64_t> leading_int(std::string_view text) {
  text = trim(text);
  int64_t value = 0;
  const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (ec != std::errc() || end == text.data()) return std::nullopt;
  return value;
}

std::optional<std::string_view> field(std::string_view text, std::string_view key) {
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = text.substr(at, end - at);
    if (line.starts_with(key)) return trim(line.substr(key.size()));
    at = end + 1;
  }
  return std::nullopt;
}

std::optional<std::vector<int>> parse_cpu_list(std::string_view text, size_t max_items) {
  std::vector<int> ids;
  text = trim(text);
  if (text.empty()) return ids;
  for (const std::string_view piece : split(text, ',')) {
    const size_t dash = piece.find('-');
    const auto first = parse_int(trim(piece.substr(0, dash)));
    const auto last = dash == std::string_view::npos ? first : parse_int(trim(piece.substr(dash + 1)));
    if (!first || !last || *first < 0 || *last < *first || *last > 1'000'000) return std::nullopt;
    if (ids.size() + static_cast<size_t>(*last - *first) + 1 > max_items) return std::nullopt;
    for (int64_t id = *first; id <= *last; ++id) ids.push_back(static_cast<int>(id));
  }
  return ids;
}

std::string cpu_list(const std::vector<int>& ids) {
  std::string out;
  for (size_t i = 0; i < ids.size();) {
    size_t j = i;
    while (j + 1 < ids.size() && ids[j + 1] == ids[j] + 1) ++j;
    if (!out.empty()) out += ',';
    out += std::to_string(ids[i]);
    if (j > i) out += '-' + std::to_string(ids[j]);
    i = j + 1;
  }
  return out;
}

std::string counted(int64_t n, std::string_view thing) {
  return std::to_string(n) + " " + std::string(thing) + (n == 1 ? "" : "s");
}

namespace {

// Length of the valid UTF-8 sequence at the start of `text`, or 0.
size_t utf8_length(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  const size_t n = first < 0x80                    ? 1
                   : first >= 0xC2 && first < 0xE0 ? 2
                   : first >= 0xE0 && first < 0xF0 ? 3
                   : first >= 0xF0 && first < 0xF5 ? 4
                                                   : 0;
  if (n == 0 || text.size() < n) return 0;
  for (size_t i = 1; i < n; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  // Overlong forms, surrogates, beyond U+10FFFF.
  if ((first == 0xE0 && byte(1) < 0xA0) || (first == 0xED && byte(1) > 0x9F) || (first == 0xF0 && byte(1) < 0x90) ||
      (first == 0xF4 && byte(1) > 0x8F)) {
    return 0;
  }
  return n;
}

}  // namespace

std::string printable(std::string_view text, size_t max_bytes) {
  std::string out;
  while (!text.empty()) {
    const size_t n = utf8_length(text);
    if (out.size() + std::max<size_t>(n, 1) > max_bytes) return out + " ...";
    const auto c = static_cast<unsigned char>(text[0]);
    // C1 control characters (U+0080 to U+009F) move terminals too.
    const bool control = n == 1 ? (c < 0x20 || c == 0x7F) : (n == 2 && c == 0xC2 && static_cast<unsigned char>(text[1]) < 0xA0);
    if (n == 0 || control) {
      out += c == '\t' ? ' ' : '?';
    } else {
      out += text.substr(0, n);
    }
    text.remove_prefix(std::max<size_t>(n, 1));
  }
  return out;
}

}  // namespace pointsman::doctor
