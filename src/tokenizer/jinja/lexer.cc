// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/jinja/lexer.h"

#include <algorithm>

#include "base/log.h"
#include "tokenizer/jinja/python_text.h"
#include "tokenizer/utf8.h"

namespace pointsman::jinja {
namespace {

constexpr size_t kMaxTokens = 200'000;

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_name_start(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || static_cast<unsigned char>(c) >= 0x80;
}
bool is_name_part(char c) {
  return is_name_start(c) || is_digit(c);
}

// Newlines become \n, and one at the very end goes.
std::string normalize_newlines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      out += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      out += source[i];
    }
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : text_(normalize_newlines(source)) {}

  Result<std::vector<Token>> run() {
    while (at_ < text_.size() && status_.ok()) data();
    PM_RETURN_IF_ERROR(status_);
    emit(Token::Kind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  std::string_view rest() const { return std::string_view(text_).substr(at_); }
  bool looking_at(std::string_view s) const { return rest().starts_with(s); }
  void emit(Token::Kind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_}); }
  void fail(std::string_view what) {
    if (status_.ok()) status_ = error(StatusCode::kCorrupt, "template, line {}: {}", line_, what);
    at_ = text_.size();
  }
  // Moves on, counting lines, and remembers how the matched piece ended.
  void advance(size_t n) {
    line_ += static_cast<int>(std::count(text_.begin() + static_cast<std::ptrdiff_t>(at_),
                                         text_.begin() + static_cast<std::ptrdiff_t>(at_ + n), '\n'));
    at_ += n;
    line_starting_ = n > 0 && text_[at_ - 1] == '\n';
  }
  void skip_space() {
    const std::string_view r = rest();
    advance_silently(r.size() - strip(r, true, false).size());
  }
  void advance_silently(size_t n) {
    const bool keep = line_starting_;
    advance(n);
    if (n == 0) line_starting_ = keep;
  }

  // Text up to the next tag, then the tag.
  void data() {
    size_t open = at_;
    while (true) {
      open = text_.find('{', open);
      if (open == std::string::npos || open + 1 >= text_.size()) {
        emit(Token::Kind::kText, text_.substr(at_));
        at_ = text_.size();
        return;
      }
      const char c = text_[open + 1];
      if (c == '%' || c == '{' || c == '#') break;
      ++open;
    }
    std::string before = text_.substr(at_, open - at_);
    const char kind = text_[open + 1];
    const char sign = open + 2 < text_.size() ? text_[open + 2] : '\0';
    const bool has_sign = sign == '-' || sign == '+';
    if (sign == '-') {
      before = std::string(strip(before, false, true));
    } else if (sign != '+' && kind != '{') {
      // Indentation of a block or comment that begins its line.
      const size_t newline = before.rfind('\n');
      const size_t line_begin = newline == std::string::npos ? 0 : newline + 1;
      if ((line_begin > 0 || line_starting_) && strip(std::string_view(before).substr(line_begin), true, false).empty()) {
        before.resize(line_begin);
      }
    }
    if (!before.empty()) emit(Token::Kind::kText, std::move(before));
    advance(open + 2 + (has_sign ? 1 : 0) - at_);
    if (kind == '#') {
      comment();
    } else if (kind == '{') {
      emit(Token::Kind::kVariableBegin, "");
      expression(true);
    } else if (!raw()) {
      emit(Token::Kind::kBlockBegin, "");
      expression(false);
    }
    if (tokens_.size() > kMaxTokens) fail("too many tokens");
  }

  // After "-": all white space that follows; after a bare end of a block or comment: one newline.
  void after_tag(bool stripped, bool trim_newline) {
    if (stripped) {
      skip_space();
    } else if (trim_newline && looking_at("\n")) {
      advance(1);
    }
  }

  void comment() {
    const size_t end = text_.find("#}", at_);
    if (end == std::string::npos) return fail("a comment without its end");
    const char sign = end > at_ ? text_[end - 1] : '\0';
    advance(end + 2 - at_);
    after_tag(sign == '-', sign != '+');
  }

  // {% raw %} ... {% endraw %}, from behind "{%".
  bool raw() {
    std::string_view r = strip(rest(), true, false);
    if (!r.starts_with("raw") || (r.size() > 3 && is_name_part(r[3]))) return false;
    r = strip(r.substr(3), true, false);
    const bool minus = r.starts_with("-%}");
    if (!minus && !r.starts_with("%}")) return false;
    advance(static_cast<size_t>(r.data() - rest().data()) + (minus ? 3 : 2));
    after_tag(minus, false);
    const size_t begin = at_;
    for (size_t open = text_.find("{%", at_); open != std::string::npos; open = text_.find("{%", open + 2)) {
      std::string_view tag = std::string_view(text_).substr(open + 2);
      const char sign = tag.empty() ? '\0' : tag[0];
      if (sign == '-' || sign == '+') tag.remove_prefix(1);
      tag = strip(tag, true, false);
      if (!tag.starts_with("endraw")) continue;
      tag = strip(tag.substr(6), true, false);
      const char end_sign = tag.empty() ? '\0' : tag[0];
      if (end_sign == '-' || end_sign == '+') tag.remove_prefix(1);
      if (!tag.starts_with("%}")) continue;
      std::string body = text_.substr(begin, open - begin);
      if (sign == '-') {
        body = std::string(strip(body, false, true));
      } else if (sign != '+') {
        const size_t newline = body.rfind('\n');
        const size_t line_begin = newline == std::string::npos ? 0 : newline + 1;
        if ((line_begin > 0 || line_starting_) && strip(std::string_view(body).substr(line_begin), true, false).empty()) {
          body.resize(line_begin);
        }
      }
      if (!body.empty()) emit(Token::Kind::kText, std::move(body));
      advance(static_cast<size_t>(tag.data() - text_.data()) + 2 - at_);
      after_tag(end_sign == '-', end_sign != '+');
      return true;
    }
    fail("raw without endraw");
    return true;
  }

  void expression(bool is_variable) {
    std::string brackets;
    while (status_.ok()) {
      skip_space();
      if (at_ >= text_.size()) return fail("a tag without its end");
      if (brackets.empty()) {
        const std::string_view end = is_variable ? "}}" : "%}";
        const bool minus = looking_at("-") && rest().substr(1).starts_with(end);
        const bool plus = !is_variable && looking_at("+%}");
        if (minus || plus || looking_at(end)) {
          emit(is_variable ? Token::Kind::kVariableEnd : Token::Kind::kBlockEnd, "");
          advance(minus || plus ? 3 : 2);
          after_tag(minus, !is_variable && !plus);
          return;
        }
      }
      token(brackets);
      if (tokens_.size() > kMaxTokens) fail("too many tokens");
    }
  }

  void token(std::string& brackets) {
    const char c = text_[at_];
    if (is_digit(c)) return number();
    if (is_name_start(c)) {
      size_t end = at_;
      while (end < text_.size() && is_name_part(text_[end])) ++end;
      emit(Token::Kind::kName, text_.substr(at_, end - at_));
      return advance(end - at_);
    }
    if (c == '"' || c == '\'') return string(c);
    static constexpr std::string_view kTwo[] = {"==", "!=", ">=", "<=", "//", "**"};
    for (const std::string_view op : kTwo) {
      if (looking_at(op)) {
        emit(Token::Kind::kOperator, std::string(op));
        return advance(2);
      }
    }
    if (std::string_view("+-/*%~[](){}><=.:|,;").find(c) == std::string_view::npos) return fail(format("unexpected '{}'", c));
    if (c == '(' || c == '[' || c == '{') {
      brackets += c == '(' ? ')' : c == '[' ? ']' : '}';
    } else if (c == ')' || c == ']' || c == '}') {
      if (brackets.empty() || brackets.back() != c) return fail(format("unexpected '{}'", c));
      brackets.pop_back();
    }
    emit(Token::Kind::kOperator, std::string(1, c));
    advance(1);
  }

  void number() {
    size_t end = at_;
    const auto digits = [&](auto&& is_part) {
      while (end < text_.size() &&
             (is_part(text_[end]) || (text_[end] == '_' && end + 1 < text_.size() && is_part(text_[end + 1])))) {
        ++end;
      }
    };
    const char second = at_ + 1 < text_.size() ? text_[at_ + 1] : '\0';
    bool is_float = false;
    if (text_[at_] == '0' && std::string_view("xXoObB").find(second) != std::string_view::npos && second != '\0') {
      end += 2;
      digits([](char d) { return is_digit(d) || ((d | 0x20) >= 'a' && (d | 0x20) <= 'f'); });
    } else {
      digits(is_digit);
      const auto at = [&](size_t i) { return i < text_.size() ? text_[i] : '\0'; };
      // No number after a dot is a float: a.0.1 is two items.
      const bool after_dot = at_ > 0 && text_[at_ - 1] == '.';
      if (!after_dot && at(end) == '.' && is_digit(at(end + 1))) {
        is_float = true;
        ++end;
        digits(is_digit);
      }
      const size_t sign = at(end + 1) == '+' || at(end + 1) == '-' ? 1 : 0;
      if (!after_dot && (at(end) | 0x20) == 'e' && is_digit(at(end + 1 + sign))) {
        is_float = true;
        end += 1 + sign;
        digits(is_digit);
      }
    }
    std::string text = text_.substr(at_, end - at_);
    std::erase(text, '_');
    emit(is_float ? Token::Kind::kFloat : Token::Kind::kInt, std::move(text));
    advance(end - at_);
  }

  // Python's escapes; an unknown one keeps its backslash.
  void string(char quote) {
    std::string out;
    size_t i = at_ + 1;
    const auto hex = [&](size_t digits) {
      uint32_t cp = 0;
      for (size_t k = 0; k < digits; ++k, ++i) {
        const char d = i < text_.size() ? text_[i] : '\0';
        const char l = static_cast<char>(d | 0x20);
        if (is_digit(d)) {
          cp = cp * 16 + static_cast<uint32_t>(d - '0');
        } else if (l >= 'a' && l <= 'f') {
          cp = cp * 16 + static_cast<uint32_t>(l - 'a' + 10);
        } else {
          return fail("a truncated escape in a string");
        }
      }
      if (cp > 0x10FFFF || (cp >= 0xD800 && cp <= 0xDFFF)) return fail("an escape that is no character");
      append_utf8(out, cp);
    };
    while (status_.ok()) {
      if (i >= text_.size()) return fail("a string without its end");
      const char c = text_[i++];
      if (c == quote) break;
      if (c != '\\') {
        out += c;
        continue;
      }
      if (i >= text_.size()) return fail("a string without its end");
      const char e = text_[i++];
      switch (e) {
        case '\n': break;
        case '\\':
        case '\'':
        case '"': out += e; break;
        case 'a': out += '\a'; break;
        case 'b': out += '\b'; break;
        case 'f': out += '\f'; break;
        case 'n': out += '\n'; break;
        case 'r': out += '\r'; break;
        case 't': out += '\t'; break;
        case 'v': out += '\v'; break;
        case 'x': hex(2); break;
        case 'u': hex(4); break;
        case 'U': hex(8); break;
        case 'N': fail("\\N{...} in a string is not supported"); break;
        default:
          if (e >= '0' && e <= '7') {
            uint32_t cp = static_cast<uint32_t>(e - '0');
            for (int k = 0; k < 2 && i < text_.size() && text_[i] >= '0' && text_[i] <= '7'; ++k) {
              cp = cp * 8 + static_cast<uint32_t>(text_[i++] - '0');
            }
            append_utf8(out, cp);
          } else {
            out += '\\';
            out += e;
          }
      }
    }
    if (!status_.ok()) return;
    emit(Token::Kind::kString, std::move(out));
    advance(i - at_);
  }

  std::string text_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_starting_ = true;
  std::vector<Token> tokens_;
  Status status_;
};

}  // namespace

Result<std::vector<Token>> tokenize(std::string_view source) {
  if (const size_t good = utf8_valid_prefix(source); good != source.size()) {
    return error(StatusCode::kCorrupt, "template is not UTF-8 at byte {}", good);
  }
  return Lexer(source).run();
}

}  // namespace pointsman::jinja
