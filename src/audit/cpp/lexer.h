// SPDX-License-Identifier: Apache-2.0
//
// Tokens, comments and preprocessor lines of one C++ text.
#pragma once

#include "audit/cpp/file.h"

namespace pointsman::audit::cpp {

class Lexer {
 public:
  explicit Lexer(File& file);
  void run();

 private:
  static constexpr size_t kMaxTokens = 1'000'000;

  char at(size_t i) const { return i < text_.size() ? text_[i] : '\0'; }
  void emit(TokenKind kind, size_t begin, size_t end);
  void line_comment();
  void block_comment();
  bool literal();  // a string or character with its prefix
  size_t quoted_end(size_t quote) const;
  void directive();
  size_t directive_end(size_t i) const;
  void conditional(std::string_view name, std::string text);

  File& file_;
  std::string_view text_;
  size_t pos_ = 0;
  bool line_start_ = true;
  int condition_ = -1;
  std::vector<std::string> open_;  // per open #if: what its branches so far asked for
};

}  // namespace pointsman::audit::cpp
