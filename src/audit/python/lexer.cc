// SPDX-License-Identifier: Apache-2.0
#include "audit/python/lexer.h"

#include <algorithm>
#include <array>

namespace pointsman::audit::python {
namespace {

bool is_name_start(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || static_cast<uint8_t>(c) >= 0x80; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name_part(char c) { return is_name_start(c) || is_digit(c); }

class Lexer {
 public:
  Lexer(std::string_view text, Span range, const LexOptions& options)
      : text_(text.substr(0, range.end)), pos_(range.begin), options_(options) {}

  Lexed run() {
    if (!options_.in_expression) start_line();
    while (pos_ < text_.size()) {
      if (out_.tokens.size() >= options_.max_tokens) {
        out_.truncated = true;
        break;
      }
      step();
    }
    if (!options_.in_expression) {
      if (!out_.tokens.empty() && out_.tokens.back().kind != TokenKind::kNewline) emit(TokenKind::kNewline, text_.size(), text_.size());
      for (; indents_.size() > 1; indents_.pop_back()) emit(TokenKind::kDedent, text_.size(), text_.size());
    }
    emit(TokenKind::kEnd, text_.size(), text_.size());
    return std::move(out_);
  }

 private:
  char at(size_t i) const { return i < text_.size() ? text_[i] : '\0'; }
  void emit(TokenKind kind, size_t begin, size_t end) {
    out_.tokens.push_back({kind, {static_cast<uint32_t>(begin), static_cast<uint32_t>(end)}});
  }

  void step() {
    const char c = text_[pos_];
    if (c == ' ' || c == '\t' || c == '\f') {
      ++pos_;
    } else if (c == '\n') {
      end_line();
    } else if (c == '\\' && at(pos_ + 1) == '\n') {
      pos_ += 2;
    } else if (c == '#') {
      comment();
    } else if (const size_t quote = string_start(); quote != std::string_view::npos) {
      string(quote);
    } else if (is_name_start(c)) {
      const size_t begin = pos_;
      while (is_name_part(at(pos_)) && pos_ < text_.size()) ++pos_;
      emit(TokenKind::kName, begin, pos_);
    } else if (is_digit(c) || (c == '.' && is_digit(at(pos_ + 1)))) {
      number();
    } else {
      symbol(c);
    }
  }

  void comment() {
    const size_t end = std::min(text_.find('\n', pos_), text_.size());
    out_.comments.push_back({static_cast<uint32_t>(pos_), static_cast<uint32_t>(end)});
    pos_ = end;
  }

  // Position of the opening quote when a string starts here (with up to three prefix letters).
  size_t string_start() const {
    size_t i = pos_;
    for (; i < pos_ + 3; ++i) {
      const char c = at(i);
      if (c == '"' || c == '\'') return i;
      if (std::string_view("rRbBuUfFtT").find(c) == std::string_view::npos || c == '\0') return std::string_view::npos;
    }
    return at(i) == '"' || at(i) == '\'' ? i : std::string_view::npos;
  }

  void string(size_t quote) {
    const size_t begin = pos_;
    const std::string_view prefix = text_.substr(begin, quote - begin);
    const bool formatted = prefix.find_first_of("fFtT") != prefix.npos;
    const char q = text_[quote];
    const bool triple = at(quote + 1) == q && at(quote + 2) == q;
    const size_t none = std::string_view::npos;
    size_t end = none;
    bool& hopeless = hopeless_[(q == '"') * 2 + triple];
    if (!(triple && hopeless)) {
      if (formatted) end = string_end(quote, q, triple, true);
      if (end == none) end = string_end(quote, q, triple, false);
      if (end == none && triple) hopeless = true;  // no later one closes either: do not search again
    }
    if (end == none) {  // not closed: the rest of the line
      end = triple ? quote + 3 : std::min(text_.find('\n', quote), text_.size());
      emit(TokenKind::kBad, begin, end);
    } else {
      emit(TokenKind::kString, begin, end);
    }
    pos_ = end;
  }

  // One past the closing quote. With `fields`, quotes inside {} belong to strings of their own (Python 3.12).
  size_t string_end(size_t quote, char q, bool triple, bool fields) const {
    size_t i = quote + (triple ? 3 : 1);
    int depth = 0;
    char inner = '\0';
    while (i < text_.size()) {
      const char c = text_[i];
      if (c == '\\') {
        i += 2;
        continue;
      }
      if (c == '\n' && !triple) return std::string_view::npos;
      if (inner != '\0') {
        if (c == inner) inner = '\0';
      } else if (fields && c == '{') {
        if (depth == 0 && at(i + 1) == '{') ++i;
        else ++depth;
      } else if (fields && depth > 0 && c == '}') {
        --depth;
      } else if (depth > 0 && (c == '"' || c == '\'') && !(triple && c == q && at(i + 1) == q && at(i + 2) == q)) {
        inner = c;
      } else if (c == q && (!triple || (at(i + 1) == q && at(i + 2) == q))) {
        return i + (triple ? 3 : 1);
      }
      ++i;
    }
    return std::string_view::npos;
  }

  void number() {
    const size_t begin = pos_;
    while (pos_ < text_.size()) {
      const char c = text_[pos_];
      if (is_digit(c) || c == '.' || c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) {
        const bool hex = at(begin + 1) == 'x' || at(begin + 1) == 'X';
        if ((c == 'e' || c == 'E') && !hex && (at(pos_ + 1) == '+' || at(pos_ + 1) == '-')) ++pos_;
        ++pos_;
      } else {
        break;
      }
    }
    emit(TokenKind::kNumber, begin, pos_);
  }

  void symbol(char c) {
    constexpr std::string_view kThree[] = {"**=", "//=", ">>=", "<<=", "..."};
    constexpr std::string_view kTwo[] = {"**", "//", ">>", "<<", "<=", ">=", "==", "!=", "->", "+=", "-=",
                                         "*=", "/=", "%=", "&=", "|=", "^=", "@=", ":=", "<>"};
    size_t n = 1;
    for (const std::string_view s : kTwo) n = text_.substr(pos_, 2) == s ? 2 : n;
    for (const std::string_view s : kThree) n = text_.substr(pos_, 3) == s ? 3 : n;
    if (c == '(' || c == '[' || c == '{') ++depth_;
    if ((c == ')' || c == ']' || c == '}') && depth_ > 0) --depth_;
    const bool known = std::string_view("()[]{}+-*/%@&|^~<>=!.,:;`$?").find(c) != std::string_view::npos;
    emit(known ? TokenKind::kOperator : TokenKind::kBad, pos_, pos_ + n);
    pos_ += n;
  }

  void end_line() {
    const size_t newline = pos_++;
    if (options_.in_expression) return;
    if (depth_ > 0) {
      if (!statement_begins()) return;
      depth_ = 0;  // an unclosed bracket
    }
    if (!out_.tokens.empty() && is_content(out_.tokens.back().kind)) emit(TokenKind::kNewline, newline, newline + 1);
    start_line();
  }
  static bool is_content(TokenKind k) { return k != TokenKind::kNewline && k != TokenKind::kIndent && k != TokenKind::kDedent; }

  // Inside brackets: does the line at pos_ start a statement that no expression can continue with, no deeper than its own?
  bool statement_begins() const {
    size_t i = pos_;
    while (at(i) == ' ' || at(i) == '\t') ++i;
    if (i - pos_ > indents_.back()) return false;
    constexpr std::string_view kWords[] = {"def", "class", "import", "return", "while", "try", "raise", "assert"};
    for (const std::string_view w : kWords) {
      if (text_.substr(i, w.size()) == w && (at(i + w.size()) == ' ' || at(i + w.size()) == ':')) return true;
    }
    return false;
  }

  // Measures indentation of the next line that has code on it.
  void start_line() {
    while (pos_ < text_.size()) {
      size_t i = pos_, width = 0;
      for (; i < text_.size() && (text_[i] == ' ' || text_[i] == '\t' || text_[i] == '\f'); ++i)
        width = text_[i] == '\t' ? (width / 8 + 1) * 8 : text_[i] == '\f' ? 0 : width + 1;
      if (i >= text_.size()) {
        pos_ = i;
        return;
      }
      if (text_[i] == '\n') {
        pos_ = i + 1;
        continue;
      }
      if (text_[i] == '#') {
        pos_ = i;
        comment();
        if (pos_ < text_.size()) ++pos_;
        continue;
      }
      if (width > indents_.back() && indents_.size() < 200) {
        indents_.push_back(width);
        emit(TokenKind::kIndent, pos_, i);
      }
      while (width < indents_.back()) {
        indents_.pop_back();
        emit(TokenKind::kDedent, i, i);
      }
      pos_ = i;
      return;
    }
  }

  std::string_view text_;
  size_t pos_;
  const LexOptions& options_;
  Lexed out_;
  std::vector<size_t> indents_{0};
  int depth_ = 0;
  std::array<bool, 4> hopeless_{};
};

}  // namespace

Lexed lex(std::string_view text, Span range, const LexOptions& options) { return Lexer(text, range, options).run(); }

StringParts string_parts(std::string_view text, Span token) {
  StringParts p;
  uint32_t i = token.begin;
  for (; i < token.end && text[i] != '"' && text[i] != '\''; ++i) {
    const char c = text[i];
    p.raw |= c == 'r' || c == 'R';
    p.bytes |= c == 'b' || c == 'B';
    p.formatted |= c == 'f' || c == 'F' || c == 't' || c == 'T';
  }
  const uint32_t quotes = token.end - i >= 6 && text[i + 1] == text[i] && text[i + 2] == text[i] ? 3 : 1;
  p.content = {std::min(i + quotes, token.end), token.end >= i + 2 * quotes ? token.end - quotes : token.end};
  return p;
}

}  // namespace pointsman::audit::python
