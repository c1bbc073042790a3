// SPDX-License-Identifier: Apache-2.0
#include "base/markup.h"

#include <algorithm>

#include "base/log.h"

namespace pointsman {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// Bytes of the UTF-8 sequence that `s` begins with; 0 when it is none.
size_t utf8_length(std::string_view s) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(s[i]); };
  const size_t n = byte(0) < 0x80 ? 1 : byte(0) >= 0xC2 && byte(0) < 0xE0 ? 2 : (byte(0) & 0xF0) == 0xE0 ? 3 : byte(0) >= 0xF0 && byte(0) < 0xF5 ? 4 : 0;
  if (n == 0 || n > s.size()) return 0;
  uint32_t code = n == 1 ? byte(0) : byte(0) & (0xFFu >> (n + 1));
  for (size_t i = 1; i < n; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
    code = code << 6 | (byte(i) & 0x3F);
  }
  const bool overlong = (n == 3 && code < 0x800) || (n == 4 && code < 0x10000);
  const bool forbidden = (code >= 0xD800 && code < 0xE000) || code > 0x10FFFF || code == 0xFFFE || code == 0xFFFF;
  return overlong || forbidden ? 0 : n;
}

}  // namespace

std::string escape_markup(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const size_t n = utf8_length(text);
    const char c = text[0];
    if (n == 0 || (n == 1 && static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t')) {
      out += kReplacement;
    } else if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else if (c == '"') {
      out += "&quot;";
    } else if (c == '\'') {
      out += "&#39;";
    } else {
      out += text.substr(0, n);
    }
    text.remove_prefix(std::max<size_t>(1, n));
  }
  return out;
}

std::string junit_xml(std::string_view suite, const std::vector<JunitCase>& cases) {
  const auto failures = std::count_if(cases.begin(), cases.end(), [](const JunitCase& c) { return !c.failure.empty(); });
  std::string out = format("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n<testsuite name=\"{}\" tests=\"{}\" failures=\"{}\">\n",
                           escape_markup(suite), cases.size(), failures);
  for (const JunitCase& c : cases) {
    out += format("  <testcase classname=\"{}\" name=\"{}\">", escape_markup(c.class_name), escape_markup(c.name));
    if (!c.failure.empty()) {
      const std::string message = c.failure.substr(0, c.failure.find('\n'));
      out += format("<failure message=\"{}\">{}</failure>", escape_markup(message), escape_markup(c.failure));
    }
    if (!c.output.empty()) out += format("<system-out>{}</system-out>", escape_markup(c.output));
    out += "</testcase>\n";
  }
  return out + "</testsuite>\n</testsuites>\n";
}

}  // namespace pointsman
