// SPDX-License-Identifier: Apache-2.0
#include "audit/cpp/lexer.h"

#include <algorithm>

namespace pointsman::audit::cpp {
namespace {

bool is_name_start(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '$' || static_cast<uint8_t>(c) >= 0x80; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name_part(char c) { return is_name_start(c) || is_digit(c); }
bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\f' || c == '\v'; }

std::string_view trim(std::string_view s) {
  while (!s.empty() && (is_blank(s.front()) || s.front() == '\n')) s.remove_prefix(1);
  while (!s.empty() && (is_blank(s.back()) || s.back() == '\n')) s.remove_suffix(1);
  return s;
}

}  // namespace

Lexer::Lexer(File& file) : file_(file), text_(file.unit().text) {}

void Lexer::emit(TokenKind kind, size_t begin, size_t end) {
  file_.tokens_.push_back({kind, {static_cast<uint32_t>(begin), static_cast<uint32_t>(end)}, condition_, -1, -1});
}

void Lexer::run() {
  constexpr std::string_view kThree[] = {"<<<", ">>>", "...", "<<=", ">>=", "->*"};
  constexpr std::string_view kTwo[] = {"::", "->", "++", "--", "<<", "<=", ">=", "==", "!=", "&&", "||", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "##"};
  while (pos_ < text_.size()) {
    if (file_.tokens_.size() >= kMaxTokens) {
      file_.truncated_ = true;
      return;
    }
    const char c = text_[pos_];
    if (c == '\n') {
      line_start_ = true;
      ++pos_;
    } else if (is_blank(c) || (c == '\\' && at(pos_ + 1) == '\n')) {
      pos_ += c == '\\' ? 2 : 1;
    } else if (c == '/' && at(pos_ + 1) == '/') {
      line_comment();
    } else if (c == '/' && at(pos_ + 1) == '*') {
      block_comment();
    } else if (c == '#' && line_start_) {
      directive();
    } else {
      line_start_ = false;
      if (literal()) continue;
      const size_t begin = pos_;
      if (is_name_start(c)) {
        while (pos_ < text_.size() && is_name_part(text_[pos_])) ++pos_;
        emit(TokenKind::kIdentifier, begin, pos_);
      } else if (is_digit(c) || (c == '.' && is_digit(at(pos_ + 1)))) {
        while (pos_ < text_.size() && (is_name_part(text_[pos_]) || text_[pos_] == '.' || (text_[pos_] == '\'' && is_name_part(at(pos_ + 1))) ||
                                       ((text_[pos_] == '+' || text_[pos_] == '-') && (text_[pos_ - 1] == 'e' || text_[pos_ - 1] == 'E'))))
          ++pos_;
        emit(TokenKind::kNumber, begin, pos_);
      } else {
        size_t n = 1;
        for (const std::string_view s : kTwo) n = text_.substr(pos_, 2) == s ? 2 : n;
        for (const std::string_view s : kThree) n = text_.substr(pos_, 3) == s ? 3 : n;
        pos_ += n;
        emit(TokenKind::kPunctuation, begin, pos_);
      }
    }
  }
}

void Lexer::line_comment() {
  const size_t begin = pos_;
  while (pos_ < text_.size() && text_[pos_] != '\n') pos_ += text_[pos_] == '\\' && at(pos_ + 1) == '\n' ? 2 : 1;
  pos_ = std::min(pos_, text_.size());
  file_.comments_.push_back({static_cast<uint32_t>(begin), static_cast<uint32_t>(pos_)});
}

void Lexer::block_comment() {
  const size_t begin = pos_, end = text_.find("*/", pos_ + 2);
  pos_ = end == text_.npos ? text_.size() : end + 2;
  file_.comments_.push_back({static_cast<uint32_t>(begin), static_cast<uint32_t>(pos_)});
}

// One past the closing quote; an unclosed literal ends with its line.
size_t Lexer::quoted_end(size_t quote) const {
  const char q = text_[quote];
  for (size_t i = quote + 1; i < text_.size(); ++i) {
    if (text_[i] == '\\') {
      ++i;
    } else if (text_[i] == q) {
      return i + 1;
    } else if (text_[i] == '\n') {
      return i;
    }
  }
  return text_.size();
}

bool Lexer::literal() {
  size_t i = pos_;
  for (const std::string_view prefix : {"u8", "u", "U", "L", ""}) {
    if (text_.substr(pos_, prefix.size()) == prefix) {
      i = pos_ + prefix.size();
      if (at(i) == '"' || at(i) == '\'' || (at(i) == 'R' && at(i + 1) == '"')) break;
    }
    i = pos_;
  }
  const size_t begin = pos_;
  if (at(i) == 'R' && at(i + 1) == '"') {
    const size_t open = text_.find('(', i + 2);
    if (open != text_.npos && open - (i + 2) <= 16 && text_.substr(i + 2, open - i - 2).find_first_of(" \n\"\\)") == text_.npos) {
      const std::string close = ")" + std::string(text_.substr(i + 2, open - i - 2)) + "\"";
      const size_t end = text_.find(close, open + 1);
      pos_ = end == text_.npos ? text_.size() : end + close.size();
      emit(TokenKind::kString, begin, pos_);
      return true;
    }
    return false;
  }
  if (at(i) != '"' && at(i) != '\'') return false;
  pos_ = quoted_end(i);
  emit(at(i) == '"' ? TokenKind::kString : TokenKind::kCharacter, begin, pos_);
  return true;
}

size_t Lexer::directive_end(size_t i) const {
  while (i < text_.size() && text_[i] != '\n') {
    if (text_[i] == '\\' && at(i + 1) == '\n') {
      i += 2;
    } else if (text_[i] == '/' && (at(i + 1) == '*' || at(i + 1) == '/')) {
      return i;
    } else if (text_[i] == '"') {
      i = quoted_end(i);
    } else {
      ++i;
    }
  }
  return std::min(i, text_.size());
}

void Lexer::directive() {
  const size_t begin = pos_++;
  while (is_blank(at(pos_))) ++pos_;
  const size_t name_begin = pos_;
  while (is_name_part(at(pos_))) ++pos_;
  const std::string_view name = text_.substr(name_begin, pos_ - name_begin);
  const size_t end = std::max(directive_end(pos_), pos_);
  const Span span{static_cast<uint32_t>(begin), static_cast<uint32_t>(end)};
  std::string rest;
  for (size_t i = pos_; i < end; ++i) {
    if (text_[i] == '\\' && at(i + 1) == '\n') {
      ++i;
      rest += ' ';
    } else {
      rest += text_[i];
    }
  }
  rest = std::string(trim(rest));
  const std::string_view raw = trim(text_.substr(pos_, end - pos_));
  pos_ = end;
  if (name == "include" || name == "include_next" || name == "import") {
    if (raw.size() > 2 && (raw.front() == '"' || raw.front() == '<')) {
      const size_t close = raw.find(raw.front() == '<' ? '>' : '"', 1);
      file_.includes_.push_back({raw.substr(1, close == raw.npos ? raw.npos : close - 1), raw.front() == '<', span, condition_});
    }
  } else if (name == "if" || name == "ifdef" || name == "ifndef" || name == "elif" || name == "else" || name == "endif") {
    conditional(name, std::move(rest));
  } else {
    file_.directives_.push_back({name, std::move(rest), span, condition_});
  }
}

void Lexer::conditional(std::string_view name, std::string text) {
  constexpr size_t kMaxOpen = 256, kMaxText = 400;
  if (text.size() > kMaxText) text.resize(kMaxText);
  const auto enter = [&](std::string condition, int parent) {
    file_.conditions_.push_back({std::move(condition), parent});
    condition_ = static_cast<int>(file_.conditions_.size()) - 1;
  };
  if (name == "if" || name == "ifdef" || name == "ifndef") {
    if (name == "ifndef") text = "!" + text;
    open_.push_back(text);
    // Beyond the limit the nesting is counted and nothing else.
    if (open_.size() <= kMaxOpen) enter(std::move(text), condition_);
    return;
  }
  if (open_.empty()) return;  // stray
  const bool counted = open_.size() <= kMaxOpen;
  const int parent = condition_ >= 0 ? file_.conditions_[static_cast<size_t>(condition_)].parent : -1;
  if (name == "endif") {
    open_.pop_back();
    if (counted) condition_ = parent;
    return;
  }
  if (!counted) return;
  std::string& so_far = open_.back();
  const std::string negation = so_far.size() <= kMaxText ? "!(" + so_far + ")" : "!(...)";
  enter(name == "else" ? negation : text, parent);
  if (name == "elif" && so_far.size() <= kMaxText) so_far += " || " + text;
}

}  // namespace pointsman::audit::cpp
