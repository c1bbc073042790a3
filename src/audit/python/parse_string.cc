// SPDX-License-Identifier: Apache-2.0
//
// String literals: escapes, implicit concatenation, and the expressions inside f-strings.
#include <algorithm>
#include <utility>

#include "audit/python/parser.h"

namespace pointsman::audit::python {
namespace {

int hex_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// Appends the character of the escape at s[i] == '\\'; gives the index after it. Unicode escapes above ASCII are kept as
// written: no rule compares them.
size_t unescape(std::string_view s, size_t i, std::string& out) {
  if (i + 1 >= s.size()) {
    out += '\\';
    return i + 1;
  }
  const char c = s[i + 1];
  switch (c) {
    case '\n': return i + 2;
    case 'n': out += '\n'; return i + 2;
    case 't': out += '\t'; return i + 2;
    case 'r': out += '\r'; return i + 2;
    case '\\': case '\'': case '"': out += c; return i + 2;
    case 'x': case 'u': case 'U': {
      const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : 8;
      uint32_t value = 0;
      size_t k = 0;
      for (; k < digits && i + 2 + k < s.size() && hex_value(s[i + 2 + k]) >= 0; ++k) value = value << 4 | static_cast<uint32_t>(hex_value(s[i + 2 + k]));
      if (k == digits && value > 0 && value < 0x80) {
        out += static_cast<char>(value);
        return i + 2 + k;
      }
      out += '\\';
      return i + 1;
    }
    default: out += '\\'; return i + 1;
  }
}

}  // namespace

Expr* Parser::string_literal() {
  const uint32_t begin = token().span.begin;
  std::string value;
  Expr properties;
  const size_t mark = stack_.size();
  while (is_kind(TokenKind::kString)) {
    const Span span = token().span;
    advance();
    string_piece(span, value, properties);
  }
  Expr* e = make_from_stack(ExprKind::kString, {begin, last_end()}, store(value), mark);
  e->is_bytes = properties.is_bytes;
  e->is_formatted = properties.is_formatted;
  return e;
}

void Parser::string_piece(Span span, std::string& value, Expr& properties) {
  const StringParts parts = string_parts(unit_.text, span);
  properties.is_bytes |= parts.bytes;
  properties.is_formatted |= parts.formatted;
  if (parts.formatted) {
    fields(parts.content, parts.raw, value);
    return;
  }
  const std::string_view s = unit_.slice(parts.content);
  for (size_t i = 0; i < s.size();) {
    if (s[i] == '\\' && !parts.raw) {
      i = unescape(s, i, value);
    } else {
      value += s[i++];
    }
  }
}

void Parser::fields(Span content, bool raw, std::string& value) {
  const std::string_view s = unit_.text;
  for (uint32_t i = content.begin; i < content.end;) {
    const char c = s[i];
    const bool doubled = i + 1 < content.end && s[i + 1] == c;
    if ((c == '{' || c == '}') && doubled) {
      value += c;
      i += 2;
    } else if (c == '\\' && !raw) {
      i = content.begin + static_cast<uint32_t>(unescape(unit_.slice(content), i - content.begin, value));
    } else if (c != '{') {
      value += c;
      ++i;
    } else {
      // The field ends at its '}'; the expression at '!r', ':format' or '=' on the outer level.
      uint32_t end = i + 1, expression_end = 0;
      int depth = 0;
      char quote = '\0';
      for (; end < content.end; ++end) {
        const char d = s[end];
        if (quote != '\0') {
          if (d == quote) quote = '\0';
        } else if (d == '"' || d == '\'') {
          quote = d;
        } else if (d == '(' || d == '[' || d == '{') {
          ++depth;
        } else if (d == '}' && depth == 0) {
          break;
        } else if (d == ')' || d == ']' || d == '}') {
          depth = std::max(0, depth - 1);
        } else if (depth == 0 && expression_end == 0 && (d == ':' || (d == '!' && end + 1 < content.end && s[end + 1] != '='))) {
          expression_end = end;
        }
      }
      if (expression_end == 0) expression_end = end;
      value += "{}";
      if (depth_ < kMaxDepth && expression_end > i + 1) {
        Lexed inner = lex(s, {i + 1, expression_end}, {.max_tokens = 2000, .in_expression = true});
        const bool failed = std::exchange(failed_, false);
        std::vector<Token> outer = std::exchange(tokens_, std::move(inner.tokens));
        const size_t at = std::exchange(at_, size_t{0});
        ++depth_;
        Expr* e = expression_list();
        --depth_;
        tokens_ = std::move(outer);
        at_ = at;
        failed_ = failed;  // a field that cannot be read spoils nothing else
        stack_.push_back(e);
      }
      i = end < content.end ? end + 1 : content.end;
    }
  }
}

}  // namespace pointsman::audit::python
