// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/jinja/python_text.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/log.h"
#include "tokenizer/unicode.h"
#include "tokenizer/utf8.h"

namespace pointsman::jinja {
namespace {

bool is_cased(uint32_t cp) {
  return is_upper(cp) || is_lower(cp);
}

bool is_line_break(uint32_t cp) {
  return (cp >= 0xA && cp <= 0xD) || (cp >= 0x1C && cp <= 0x1E) || cp == 0x85 || cp == 0x2028 || cp == 0x2029;
}

bool contains(std::string_view set, uint32_t cp) {
  for (size_t i = 0; i < set.size();) {
    if (utf8_decode_valid(set, i) == cp) return true;
  }
  return false;
}

}  // namespace

std::string escape_html(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '\'': out += "&#39;"; break;
      case '"': out += "&#34;"; break;
      default: out += c;
    }
  }
  return out;
}

bool is_python_space(uint32_t cp) {
  return is_white_space(cp) || (cp >= 0x1C && cp <= 0x1F);
}

std::string python_repr(std::string_view text) {
  const char quote = text.find('\'') != std::string_view::npos && text.find('"') == std::string_view::npos ? '"' : '\'';
  std::string out(1, quote);
  for (size_t i = 0; i < text.size();) {
    const size_t begin = i;
    const uint32_t cp = utf8_decode_valid(text, i);
    if (cp == static_cast<uint32_t>(quote) || cp == '\\') {
      out += '\\';
      out += static_cast<char>(cp);
    } else if (cp == '\n') {
      out += "\\n";
    } else if (cp == '\r') {
      out += "\\r";
    } else if (cp == '\t') {
      out += "\\t";
    } else if (is_printable(cp)) {
      out += text.substr(begin, i - begin);
    } else if (cp < 0x100) {
      out += format("\\x{:02x}", cp);
    } else if (cp < 0x10000) {
      out += format("\\u{:04x}", cp);
    } else {
      out += format("\\U{:08x}", cp);
    }
  }
  out += quote;
  return out;
}

std::string python_repr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[40];
  // Shortest digits that read back, as d.ddde[+-]xx.
  const auto [end, ec] = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific);
  std::string_view text(buffer, static_cast<size_t>(end - buffer));
  std::string out;
  if (text.front() == '-') {
    out = "-";
    text.remove_prefix(1);
  }
  const size_t e = text.find('e');
  std::string digits(text.substr(0, e));
  std::erase(digits, '.');
  const int exponent = std::atoi(std::string(text.substr(e + 1)).c_str());
  const int n = static_cast<int>(digits.size());
  if (exponent < -4 || exponent >= 16) {
    out += digits[0];
    if (n > 1) out += "." + digits.substr(1);
    out += format("e{}{:02d}", exponent < 0 ? '-' : '+', std::abs(exponent));
  } else if (exponent < 0) {
    out += "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  } else if (n <= exponent + 1) {
    out += digits + std::string(static_cast<size_t>(exponent + 1 - n), '0') + ".0";
  } else {
    out += digits.substr(0, static_cast<size_t>(exponent) + 1) + "." + digits.substr(static_cast<size_t>(exponent) + 1);
  }
  return out;
}

std::string_view strip(std::string_view text, bool left, bool right, const std::optional<std::string_view>& characters) {
  const auto goes = [&](uint32_t cp) { return characters ? contains(*characters, cp) : is_python_space(cp); };
  while (left && !text.empty()) {
    size_t next = 0;
    if (!goes(utf8_decode_valid(text, next))) break;
    text.remove_prefix(next);
  }
  while (right && !text.empty()) {
    const size_t start = utf8_last_start(text);
    size_t next = start;
    if (!goes(utf8_decode_valid(text, next))) break;
    text = text.substr(0, start);
  }
  return text;
}

std::vector<std::string_view> split(std::string_view text, const std::optional<std::string_view>& separator, int64_t limit) {
  std::vector<std::string_view> out;
  if (separator) {
    while (limit < 0 || static_cast<int64_t>(out.size()) < limit) {
      const size_t at = text.find(*separator);
      if (at == std::string_view::npos) break;
      out.push_back(text.substr(0, at));
      text.remove_prefix(at + separator->size());
    }
    out.push_back(text);
    return out;
  }
  text = strip(text, true, false);
  while (!text.empty()) {
    if (limit >= 0 && static_cast<int64_t>(out.size()) >= limit) {
      out.push_back(strip(text, false, true));
      break;
    }
    size_t end = 0;
    while (end < text.size()) {
      size_t next = end;
      if (is_python_space(utf8_decode_valid(text, next))) break;
      end = next;
    }
    out.push_back(text.substr(0, end));
    text = strip(text.substr(end), true, false);
  }
  return out;
}

std::vector<std::string_view> split_from_right(std::string_view text, const std::optional<std::string_view>& separator,
                                               int64_t limit) {
  if (limit < 0) return split(text, separator, -1);
  std::vector<std::string_view> out;
  if (separator) {
    while (static_cast<int64_t>(out.size()) < limit) {
      const size_t at = text.rfind(*separator);
      if (at == std::string_view::npos) break;
      out.push_back(text.substr(at + separator->size()));
      text = text.substr(0, at);
    }
    out.push_back(text);
  } else {
    text = strip(text, false, true);
    while (!text.empty()) {
      if (static_cast<int64_t>(out.size()) >= limit) {
        out.push_back(strip(text, true, false));
        break;
      }
      size_t begin = text.size();
      while (begin > 0) {
        const size_t start = utf8_last_start(text.substr(0, begin));
        size_t next = start;
        if (is_python_space(utf8_decode_valid(text, next))) break;
        begin = start;
      }
      out.push_back(text.substr(begin));
      text = strip(text.substr(0, begin), false, true);
    }
  }
  std::reverse(out.begin(), out.end());
  return out;
}

std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends) {
  std::vector<std::string_view> out;
  size_t begin = 0;
  for (size_t i = 0; i < text.size();) {
    const size_t at = i;
    const uint32_t cp = utf8_decode_valid(text, i);
    if (!is_line_break(cp)) continue;
    if (cp == '\r' && i < text.size() && text[i] == '\n') ++i;
    out.push_back(text.substr(begin, (keep_ends ? i : at) - begin));
    begin = i;
  }
  if (begin < text.size()) out.push_back(text.substr(begin));
  return out;
}

std::string replace(std::string_view text, std::string_view from, std::string_view to, int64_t count) {
  std::string out;
  size_t i = 0;
  if (from.empty()) {
    // Before every character and at the end.
    while (count != 0) {
      out += to;
      --count;
      if (i >= text.size() || out.size() > (size_t{64} << 20)) break;
      size_t next = i;
      utf8_decode_valid(text, next);
      out += text.substr(i, next - i);
      i = next;
    }
    out += text.substr(i);
    return out;
  }
  for (; count != 0; --count) {
    const size_t at = text.find(from, i);
    if (at == std::string_view::npos || out.size() > (size_t{64} << 20)) break;
    out += text.substr(i, at - i);
    out += to;
    i = at + from.size();
  }
  out += text.substr(i);
  return out;
}

std::string upper(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size();) append_upper(out, utf8_decode_valid(text, i));
  return out;
}

std::string lower(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size();) append_lower(out, utf8_decode_valid(text, i));
  return out;
}

std::string casefold(std::string_view text) {
  return replace(replace(lower(text), "\xC3\x9F", "ss", -1), "\xCF\x82", "\xCF\x83", -1);
}

std::string capitalize(std::string_view text) {
  if (text.empty()) return {};
  size_t i = 0;
  utf8_decode_valid(text, i);
  return upper(text.substr(0, i)) + lower(text.substr(i));
}

std::string swap_case(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    const uint32_t cp = utf8_decode_valid(text, i);
    if (is_upper(cp)) {
      append_lower(out, cp);
    } else {
      append_upper(out, cp);
    }
  }
  return out;
}

std::string title(std::string_view text) {
  std::string out;
  bool in_word = false;
  for (size_t i = 0; i < text.size();) {
    const uint32_t cp = utf8_decode_valid(text, i);
    if (in_word) {
      append_lower(out, cp);
    } else {
      append_upper(out, cp);
    }
    in_word = is_cased(cp);
  }
  return out;
}

std::string jinja_title(std::string_view text) {
  std::string out;
  bool in_word = false;
  for (size_t i = 0; i < text.size();) {
    const uint32_t cp = utf8_decode_valid(text, i);
    const bool breaks = cp == '-' || cp == '(' || cp == '{' || cp == '[' || cp == '<' || is_python_space(cp);
    if (in_word && !breaks) {
      append_lower(out, cp);
    } else {
      append_upper(out, cp);
    }
    in_word = !breaks;
  }
  return out;
}

bool all_characters(std::string_view text, bool (*predicate)(uint32_t)) {
  for (size_t i = 0; i < text.size();) {
    if (!predicate(utf8_decode_valid(text, i))) return false;
  }
  return !text.empty();
}

bool is_upper_text(std::string_view text) {
  bool cased = false;
  for (size_t i = 0; i < text.size();) {
    const uint32_t cp = utf8_decode_valid(text, i);
    if (is_lower(cp)) return false;
    cased = cased || is_upper(cp);
  }
  return cased;
}

bool is_lower_text(std::string_view text) {
  bool cased = false;
  for (size_t i = 0; i < text.size();) {
    const uint32_t cp = utf8_decode_valid(text, i);
    if (is_upper(cp)) return false;
    cased = cased || is_lower(cp);
  }
  return cased;
}

size_t byte_offset(std::string_view text, size_t index) {
  size_t i = 0;
  for (; index > 0 && i < text.size(); --index) utf8_decode_valid(text, i);
  return i;
}

}  // namespace pointsman::jinja
