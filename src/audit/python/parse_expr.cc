// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <new>

#include "audit/python/parser.h"

namespace pointsman::audit::python {
namespace {

struct Operator {
  int precedence = 0;  // 0: none
  int tokens = 1;
  std::string_view text;
};
constexpr int kCompareLevel = 4;

int precedence_of(std::string_view op) {
  if (op == "|") return 5;
  if (op == "^") return 6;
  if (op == "&") return 7;
  if (op == "<<" || op == ">>") return 8;
  if (op == "+" || op == "-") return 9;
  if (op == "*" || op == "/" || op == "//" || op == "%" || op == "@") return 10;
  if (op == "**") return 12;
  if (op == "<" || op == ">" || op == "<=" || op == ">=" || op == "==" || op == "!=" || op == "<>") return kCompareLevel;
  return 0;
}

bool is_reserved(std::string_view w) {
  constexpr std::string_view kWords[] = {"and",   "as",     "assert", "break",  "class", "continue", "def",   "del",  "elif",  "else", "except",
                                         "finally", "for",  "from",   "global", "if",    "import",   "in",    "is",   "nonlocal", "or", "pass",
                                         "raise", "return", "try",    "while",  "with"};
  return std::find(std::begin(kWords), std::end(kWords), w) != std::end(kWords);
}

}  // namespace

Expr* Parser::make(ExprKind kind, Span span, std::string_view text, std::initializer_list<const Expr*> children) {
  const size_t mark = stack_.size();
  stack_.insert(stack_.end(), children);
  return make_from_stack(kind, span, text, mark);
}

Expr* Parser::make_from_stack(ExprKind kind, Span span, std::string_view text, size_t mark) {
  Expr* e = new (module_.arena_.allocate(sizeof(Expr), alignof(Expr))) Expr;
  e->kind = kind;
  e->span = span;
  e->text = text;
  e->children = take_stack(mark);
  for (const Expr* c : e->children) {
    const_cast<Expr*>(c)->parent = e;  // the tree is still being made
    e->depth = static_cast<uint16_t>(std::max<int>(e->depth, std::min(c->depth + 1, 60000)));
  }
  module_.all_.push_back(e);
  return e;
}

std::span<const Expr* const> Parser::take_stack(size_t mark) {
  const size_t n = stack_.size() - mark;
  if (n == 0) return {};
  auto* data = static_cast<const Expr**>(module_.arena_.allocate(n * sizeof(Expr*), alignof(Expr*)));
  std::copy(stack_.begin() + static_cast<long>(mark), stack_.end(), data);
  stack_.resize(mark);
  return {data, n};
}

std::string_view Parser::store(std::string_view s) {
  if (s.empty()) return {};
  char* data = static_cast<char*>(module_.arena_.allocate(s.size(), 1));
  std::memcpy(data, s.data(), s.size());
  return {data, s.size()};
}

// A place where no expression is. Consumes a token unless it closes something.
Expr* Parser::bad() {
  failed_ = true;
  const Span span = token().span;
  const bool stays = at_line_end() || is_op(")") || is_op("]") || is_op("}") || is_op(",") || is_op(":") || is_op("=") || is_op(";");
  if (!stays) advance();
  return make(ExprKind::kBad, stays ? Span{span.begin, span.begin} : span, "", {});
}

Expr* Parser::expression() {
  if (depth_ >= kMaxDepth) {
    failed_ = true;
    const Span from = token().span;
    while (!at_line_end()) advance();  // too deep to be worth reading
    return make(ExprKind::kBad, {from.begin, std::max(from.begin, last_end())}, "", {});
  }
  ++depth_;
  Expr* e;
  if (is_word("lambda")) {
    e = lambda();
  } else if (is_kind(TokenKind::kName) && peek_op(1, ":=")) {
    Expr* target = make(ExprKind::kName, token().span, text(), {});
    advance(), advance();
    Expr* value = expression();
    e = make(ExprKind::kNamed, {target->span.begin, value->span.end}, "", {target, value});
  } else if (is_word("yield")) {
    const Span start = token().span;
    advance();
    accept_word("from");
    const bool nothing = at_line_end() || is_op(")") || is_op("]") || is_op("}") || is_op("=") || is_op(";");
    Expr* value = nothing ? nullptr : expression_list();
    e = value ? make(ExprKind::kUnary, {start.begin, value->span.end}, "yield", {value}) : make(ExprKind::kUnary, start, "yield", {});
  } else {
    e = binary(1);
    if (is_word("if")) {
      advance();
      Expr* condition = binary(1);
      Expr* otherwise = accept_word("else") ? expression() : bad();
      e = make(ExprKind::kConditional, {e->span.begin, otherwise->span.end}, "", {e, condition, otherwise});
    }
  }
  --depth_;
  return e;
}

Expr* Parser::lambda() {
  const Span start = token().span;
  advance();
  std::vector<Parameter> ignored;
  parameters(ignored, false, ":");
  if (!accept_op(":")) failed_ = true;
  Expr* body = expression();
  return make(ExprKind::kLambda, {start.begin, body->span.end}, "", {body});
}

Expr* Parser::binary(int min_precedence) {
  if (depth_ >= kMaxDepth) return expression();
  ++depth_;
  Expr* left;
  if (is_word("not")) {
    const Span start = token().span;
    advance();
    Expr* operand = binary(3);
    left = make(ExprKind::kUnary, {start.begin, operand->span.end}, "not", {operand});
  } else {
    left = unary();
  }
  while (true) {
    Operator op;
    if (is_kind(TokenKind::kOperator)) {
      op = {precedence_of(text()), 1, text()};
    } else if (is_kind(TokenKind::kName)) {
      const std::string_view w = text();
      if (w == "or") op = {1, 1, "or"};
      if (w == "and") op = {2, 1, "and"};
      if (w == "in") op = {kCompareLevel, 1, "in"};
      if (w == "is") op = {kCompareLevel, 1, "is"};
      if (at_ + 1 < tokens_.size() && tokens_[at_ + 1].kind == TokenKind::kName) {
        const std::string_view next = unit_.slice(tokens_[at_ + 1].span);
        if (w == "is" && next == "not") op = {kCompareLevel, 2, "is not"};
        if (w == "not" && next == "in") op = {kCompareLevel, 2, "not in"};
      }
    }
    if (op.precedence == 0 || op.precedence < min_precedence) break;
    for (int i = 0; i < op.tokens; ++i) advance();
    // Power binds to the right; the operand of ** may be unary.
    Expr* right = binary(op.precedence == 12 ? 12 : op.precedence + 1);
    const Span span{left->span.begin, std::max(left->span.end, right->span.end)};
    if (op.precedence == kCompareLevel) {
      const size_t mark = stack_.size();
      stack_.push_back(left);
      stack_.push_back(right);
      while (is_kind(TokenKind::kOperator) && precedence_of(text()) == kCompareLevel) {
        advance();
        const Expr* next = binary(kCompareLevel + 1);
        stack_.push_back(next);
      }
      left = make_from_stack(ExprKind::kCompare, {span.begin, std::max(span.end, stack_.back()->span.end)}, op.text, mark);
    } else {
      left = make(op.precedence <= 2 ? ExprKind::kBool : ExprKind::kBinary, span, op.text, {left, right});
    }
  }
  --depth_;
  return left;
}

Expr* Parser::unary() {
  const Span start = token().span;
  for (const std::string_view op : {"-", "+", "~", "*", "**"}) {
    if (!is_op(op)) continue;
    advance();
    Expr* operand = binary(op.front() == '*' ? 5 : 11);
    return make(ExprKind::kUnary, {start.begin, std::max(start.end, operand->span.end)}, op, {operand});
  }
  if (is_word("await") && at_ + 1 < tokens_.size() &&
      (tokens_[at_ + 1].kind == TokenKind::kName || tokens_[at_ + 1].kind == TokenKind::kString || peek_op(1, "("))) {
    advance();
    Expr* operand = postfix();
    return make(ExprKind::kUnary, {start.begin, operand->span.end}, "await", {operand});
  }
  return postfix();
}

Expr* Parser::postfix() {
  Expr* e = atom();
  while (is_kind(TokenKind::kOperator)) {
    if (is_op(".")) {
      advance();
      if (!is_kind(TokenKind::kName)) {
        failed_ = true;
        break;
      }
      e = make(ExprKind::kAttribute, {e->span.begin, token().span.end}, text(), {e});
      advance();
    } else if (is_op("(")) {
      advance();
      const size_t mark = stack_.size();
      stack_.push_back(e);
      call_arguments();
      e = make_from_stack(ExprKind::kCall, {e->span.begin, std::max(e->span.end, last_end())}, "", mark);
    } else if (is_op("[")) {
      advance();
      Expr* index = nullptr;
      const size_t mark = stack_.size();
      bool comma = false;
      while (!is_op("]") && !at_line_end()) {
        const size_t before = at_;
        Expr* item = subscript_item();
        stack_.push_back(item);
        if (!accept_op(",")) break;
        comma = true;
        if (at_ == before) advance();
      }
      const size_t n = stack_.size() - mark;
      if (n == 1 && !comma) {
        index = const_cast<Expr*>(stack_.back());
        stack_.resize(mark);
      } else {
        const uint32_t from = n > 0 ? stack_[mark]->span.begin : token().span.begin;
        index = make_from_stack(ExprKind::kTuple, {from, std::max(from, last_end())}, "", mark);
      }
      if (!accept_op("]")) failed_ = true;
      e = make(ExprKind::kSubscript, {e->span.begin, std::max(e->span.end, last_end())}, "", {e, index});
    } else {
      break;
    }
  }
  return e;
}

Expr* Parser::subscript_item() {
  const uint32_t begin = token().span.begin;
  const size_t mark = stack_.size();
  bool slice = false;
  if (!is_op(":")) {
    Expr* lower = star_or_expression();
    stack_.push_back(lower);
  }
  while (accept_op(":")) {
    slice = true;
    if (!is_op(":") && !is_op("]") && !is_op(",") && !at_line_end()) {
      Expr* bound = expression();
      stack_.push_back(bound);
    }
  }
  if (slice) return make_from_stack(ExprKind::kSlice, {begin, std::max(begin, last_end())}, "", mark);
  Expr* only = const_cast<Expr*>(stack_.back());
  stack_.resize(mark);
  return only;
}

void Parser::call_arguments() {
  while (!is_op(")") && !at_line_end()) {
    const size_t before = at_;
    const uint32_t begin = token().span.begin;
    Expr* argument = nullptr;
    if (is_kind(TokenKind::kName) && peek_op(1, "=")) {
      const std::string_view name = text();
      advance(), advance();
      Expr* value = expression();
      argument = make(ExprKind::kKeyword, {begin, std::max(begin, value->span.end)}, name, {value});
    } else if (accept_op("**")) {
      Expr* value = expression();
      argument = make(ExprKind::kKeyword, {begin, std::max(begin, value->span.end)}, "**", {value});
    } else {
      argument = star_or_expression();
      if (is_word("for") || is_word("async")) {
        const size_t mark = stack_.size();
        stack_.push_back(argument);
        comprehension_clauses();
        argument = make_from_stack(ExprKind::kComprehension, {begin, std::max(begin, last_end())}, "(", mark);
      }
    }
    stack_.push_back(argument);
    if (!accept_op(",")) {
      if (is_op(")") || at_line_end()) break;
      failed_ = true;  // f(a b): go on with b
      if (at_ == before) advance();
    }
  }
  if (!accept_op(")")) failed_ = true;
}

Expr* Parser::star_or_expression() { return expression(); }  // unary() reads the stars

Expr* Parser::expression_list() {
  const size_t mark = stack_.size();
  Expr* first = star_or_expression();
  if (!is_op(",")) return first;
  stack_.push_back(first);
  while (accept_op(",")) {
    if (at_line_end() || is_op("=") || is_op(")") || is_op("]") || is_op("}") || is_op(":") || is_op(";") || is_word("in")) break;
    Expr* next = star_or_expression();
    stack_.push_back(next);
  }
  return make_from_stack(ExprKind::kTuple, {first->span.begin, std::max(first->span.end, last_end())}, "", mark);
}

bool Parser::comprehension_clauses() {
  bool any = false;
  while (is_word("for") || is_word("async") || is_word("if")) {
    const bool filter = is_word("if");
    if (accept_word("async") && !is_word("for")) break;
    advance();
    any = true;
    if (filter) {
      Expr* condition = is_kind(TokenKind::kName) && peek_op(1, ":=") ? expression() : binary(1);
      stack_.push_back(condition);
      continue;
    }
    // Targets end at "in": they are read above the level of comparisons.
    const size_t mark = stack_.size();
    const uint32_t begin = token().span.begin;
    bool comma = false;
    while (!is_word("in") && !at_line_end()) {
      const size_t before = at_;
      Expr* part = binary(kCompareLevel + 1);
      stack_.push_back(part);
      if (!accept_op(",")) break;
      comma = true;
      if (at_ == before) advance();
    }
    if (stack_.size() - mark != 1 || comma) {
      Expr* tuple = make_from_stack(ExprKind::kTuple, {begin, std::max(begin, last_end())}, "", mark);
      stack_.push_back(tuple);
    }
    const Expr* target = stack_.back();
    if (!accept_word("in")) failed_ = true;
    Expr* iterable = binary(1);
    stack_.push_back(iterable);
    clauses_.push_back({target, iterable});
  }
  return any;
}

Expr* Parser::bracket(char open) {

  const std::string_view open_text = open == '(' ? "(" : open == '[' ? "[" : "{", close_text = open == '(' ? ")" : open == '[' ? "]" : "}";
  const uint32_t begin = token().span.begin;
  advance();
  ExprKind kind = open == '(' ? ExprKind::kTuple : open == '[' ? ExprKind::kList : ExprKind::kDict;
  const size_t mark = stack_.size();
  bool comma = false, comprehension = false, is_set = false;
  while (!is_op(close_text) && !at_line_end()) {
    const size_t before = at_;
    Expr* item = expression();
    stack_.push_back(item);
    if (open == '{') {
      if (accept_op(":")) {
        Expr* value = expression();
        stack_.push_back(value);
      } else if (item->is(ExprKind::kUnary) && item->text == "**") {
        stack_.push_back(item);
      } else {
        is_set = true;
      }
    }
    if (is_word("for") || is_word("async")) comprehension = comprehension_clauses();
    if (accept_op(",")) {
      comma = true;
    } else if (is_op(close_text) || at_line_end()) {
      break;
    } else {
      failed_ = true;
      if (at_ == before || is_op(")") || is_op("]") || is_op("}")) break;
    }
  }
  if (!accept_op(close_text)) failed_ = true;
  const Span span{begin, std::max(begin, last_end())};
  if (open == '(' && !comma && !comprehension && stack_.size() - mark == 1) {
    Expr* only = const_cast<Expr*>(stack_.back());
    stack_.resize(mark);
    return only;
  }
  if (comprehension) return make_from_stack(ExprKind::kComprehension, span, open_text, mark);
  if (is_set) kind = ExprKind::kSet;
  return make_from_stack(kind, span, "", mark);
}

Expr* Parser::atom() {
  const Span span = token().span;
  switch (token().kind) {
    case TokenKind::kName: {
      const std::string_view w = text();
      if (is_reserved(w)) return bad();
      advance();
      const bool constant = w == "True" || w == "False" || w == "None" || w == "Ellipsis";
      return make(constant ? ExprKind::kConstant : ExprKind::kName, span, w, {});
    }
    case TokenKind::kNumber: {
      const std::string_view n = text();
      advance();
      return make(ExprKind::kNumber, span, n, {});
    }
    case TokenKind::kString:
      return string_literal();
    case TokenKind::kOperator:
      if (is_op("(")) return bracket('(');
      if (is_op("[")) return bracket('[');
      if (is_op("{")) return bracket('{');
      if (is_op("...")) {
        advance();
        return make(ExprKind::kConstant, span, "...", {});
      }
      return bad();
    default:
      return bad();
  }
}

}  // namespace pointsman::audit::python
