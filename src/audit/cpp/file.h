// SPDX-License-Identifier: Apache-2.0
//
// C, C++ and CUDA at the level of tokens, with what rules need on top: includes, calls with their arguments, kernel launches,
// function definitions, loops, and the preprocessor conditions around every token. No preprocessing is done: all branches are
// read, macros stay names.
//
// parse() never fails and is bounded. A File is immutable: any number of threads may read it.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "audit/source.h"

namespace pointsman::audit::cpp {

enum class TokenKind : uint8_t { kIdentifier, kNumber, kString, kCharacter, kPunctuation };

struct Token {
  TokenKind kind = TokenKind::kPunctuation;
  Span span;
  int condition = -1;  // index into File::conditions() of the innermost #if around it
  int function = -1;   // index into File::functions()
  int loop = -1;       // index into File::loops()
};

struct Include {
  std::string_view path;  // between the quotes or angle brackets
  bool is_angled = false;
  Span span;
  int condition = -1;
};

// One branch of an #if.
struct Condition {
  std::string text;  // "defined(USE_ROCM)", "USE_ROCM" of #ifdef; of #else: the negation of what precedes, "!(...)"
  int parent = -1;
};

// Any other directive: name "define", "pragma", ...; the rest of the line, continuations joined.
struct Directive {
  std::string_view name;
  std::string text;
  Span span;
  int condition = -1;
};

struct Function {
  std::string name;  // qualified as written: "Gate::forward"
  Span name_span;
  Span head;         // from its return type (with __global__) to before the brace
  uint32_t first = 0, last = 0;  // tokens of the body, braces included: [first, last)
  bool is_kernel = false;        // __global__
  bool is_device = false;        // __device__
};

struct Loop {
  Span head;
  int parent = -1;
};

// A range of tokens [first, last).
struct TokenRange {
  uint32_t first = 0, last = 0;
  bool empty() const { return first == last; }
};

struct Call {
  std::string name;        // "cub::DeviceRadixSort::SortPairs": qualified, without template arguments
  std::string_view last;   // "SortPairs"
  bool is_member = false;  // after '.' or '->'
  Span name_span;
  uint32_t token = 0;      // of the last part of the name
  std::vector<TokenRange> arguments;
};

// kernel<<<grid, block, shared, stream>>>(arguments)
struct Launch {
  std::string name;
  Span span;  // of name<<<...>>>
  uint32_t token = 0;
  std::vector<TokenRange> configuration;
  std::vector<TokenRange> arguments;
};

class File {
 public:
  const Unit& unit() const { return *unit_; }
  bool truncated() const { return truncated_; }
  const std::vector<Token>& tokens() const { return tokens_; }
  std::string_view text(uint32_t token) const { return unit_->slice(tokens_[token].span); }
  // The text of a string literal between its quotes, escapes as written; of raw strings too.
  std::string_view string_value(uint32_t token) const;
  const std::vector<Include>& includes() const { return includes_; }
  const std::vector<Directive>& directives() const { return directives_; }
  const std::vector<Condition>& conditions() const { return conditions_; }
  const std::vector<Function>& functions() const { return functions_; }
  const std::vector<Loop>& loops() const { return loops_; }
  const std::vector<Call>& calls() const { return calls_; }
  const std::vector<Launch>& launches() const { return launches_; }
  const std::vector<Span>& comments() const { return comments_; }

  // Tokens of a range joined with single spaces where the text has white space: for messages and comparisons.
  std::string text(TokenRange range) const;
  // Conditions around it, innermost first.
  std::vector<std::string_view> conditions_of(int condition) const;
  // Does a condition around it name one of these macros without a negation in front: runs_under(c, {"USE_ROCM", "__HIP__"})?
  bool runs_under(int condition, std::initializer_list<std::string_view> macros) const;
  // The function around a token, or null.
  const Function* function_of(uint32_t token) const {
    const int f = tokens_[token].function;
    return f < 0 ? nullptr : &functions_[static_cast<size_t>(f)];
  }
  // Is there an identifier `name` among the tokens of the range?
  bool mentions(TokenRange range, std::string_view name) const;

 private:
  friend std::unique_ptr<File> parse(const Unit& unit);
  friend class Lexer;
  friend class Structure;
  const Unit* unit_ = nullptr;
  std::vector<Token> tokens_;
  std::vector<Include> includes_;
  std::vector<Directive> directives_;
  std::vector<Condition> conditions_;
  std::vector<Function> functions_;
  std::vector<Loop> loops_;
  std::vector<Call> calls_;
  std::vector<Launch> launches_;
  std::vector<Span> comments_;
  bool truncated_ = false;
};

// `unit` must outlive the file.
std::unique_ptr<File> parse(const Unit& unit);

}  // namespace pointsman::audit::cpp
