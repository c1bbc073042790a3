// SPDX-License-Identifier: Apache-2.0
//
// Python tokens with indentation, for Python 2.7 to 3.14. Never fails: what cannot be a token is one token kBad, an unclosed
// bracket or triple quote ends where a new statement plainly begins.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "audit/source.h"

namespace pointsman::audit::python {

enum class TokenKind : uint8_t { kName, kNumber, kString, kOperator, kNewline, kIndent, kDedent, kBad, kEnd };

struct Token {
  TokenKind kind = TokenKind::kEnd;
  Span span;
};

struct Lexed {
  std::vector<Token> tokens;  // ends with kEnd
  std::vector<Span> comments;  // from '#' to the end of the line
  bool truncated = false;      // more than max_tokens
};

struct LexOptions {
  size_t max_tokens = 1'000'000;
  bool in_expression = false;  // inside a replacement field of an f-string: no lines, no indentation
};

// Tokens of text[range], with spans in `text`.
Lexed lex(std::string_view text, Span range, const LexOptions& options = {});

// The parts of a string token: r"..." -> prefix "r", the content between the quotes.
struct StringParts {
  bool raw = false, bytes = false, formatted = false;
  Span content;
};
StringParts string_parts(std::string_view text, Span token);

}  // namespace pointsman::audit::python
