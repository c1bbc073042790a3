// SPDX-License-Identifier: Apache-2.0
//
// Statements with a block.
#include <algorithm>

#include "audit/python/parser.h"

namespace pointsman::audit::python {
namespace {

bool continues(StmtKind kind, StmtKind before) {
  switch (kind) {
    case StmtKind::kElif: return before == StmtKind::kIf || before == StmtKind::kElif;
    case StmtKind::kElse:
      return before == StmtKind::kIf || before == StmtKind::kElif || before == StmtKind::kFor || before == StmtKind::kWhile ||
             before == StmtKind::kExcept || before == StmtKind::kTry;
    case StmtKind::kExcept: return before == StmtKind::kTry || before == StmtKind::kExcept;
    case StmtKind::kFinally: return before == StmtKind::kTry || before == StmtKind::kExcept || before == StmtKind::kElse;
    default: return false;
  }
}

template <class T>
std::span<const T> keep(std::pmr::memory_resource& arena, const std::vector<T>& items) {
  if (items.empty()) return {};
  T* data = static_cast<T*>(arena.allocate(items.size() * sizeof(T), alignof(T)));
  std::uninitialized_copy(items.begin(), items.end(), data);
  return {data, items.size()};
}

}  // namespace

void Parser::compound(Stmt& s, const std::vector<const Stmt*>& siblings) {
  if (!siblings.empty() && continues(s.kind, siblings.back()->kind)) {
    s.previous_clause = siblings.back();
    const_cast<Stmt*>(siblings.back())->next_clause = &s;  // the tree is still being made
  }
  const size_t mark = module_.all_.size();
  Scope* scope = s.scope;
  std::vector<const Expr*> exprs, targets;
  advance();
  switch (s.kind) {
    case StmtKind::kIf:
    case StmtKind::kElif:
    case StmtKind::kWhile:
      exprs.push_back(expression());
      break;
    case StmtKind::kFor: {
      // Targets are read above comparisons, so that "in" ends them.
      const uint32_t begin = token().span.begin;
      const size_t stack_mark = stack_.size();
      bool comma = false;
      while (!is_word("in") && !at_line_end()) {
        const size_t before = at_;
        const Expr* part = binary(5);
        stack_.push_back(part);
        if (!accept_op(",")) break;
        comma = true;
        if (at_ == before) break;
      }
      if (stack_.size() - stack_mark == 1 && !comma) {
        targets.push_back(stack_.back());
        stack_.resize(stack_mark);
      } else {
        targets.push_back(make_from_stack(ExprKind::kTuple, {begin, std::max(begin, last_end())}, "", stack_mark));
      }
      if (accept_word("in")) exprs.push_back(expression_list());
      break;
    }
    case StmtKind::kExcept:
      accept_op("*");
      if (!is_op(":")) exprs.push_back(expression_list());  // Python 2: except E, name
      if (accept_word("as") && is_kind(TokenKind::kName)) {
        s.name = text();
        advance();
      }
      break;
    case StmtKind::kWith:
      with_items(exprs, targets);
      break;
    case StmtKind::kFunction:
      function(s);
      scope = s.inner;
      break;
    case StmtKind::kClass:
      class_(s);
      scope = s.inner;
      break;
    case StmtKind::kMatch:
      exprs.push_back(expression_list());
      break;
    case StmtKind::kCase:
      while (!at_line_end() && !(is_op(":") && peek_op(0, ":") && tokens_[std::min(at_ + 1, tokens_.size() - 1)].kind == TokenKind::kNewline)) {
        const size_t before = at_;
        exprs.push_back(expression());
        if (!accept_op(",") && !accept_op("|") && !accept_word("as") && at_ == before) advance();
        if (accept_op(":")) break;
      }
      break;
    default:  // else, try, finally
      break;
  }
  if (s.kind != StmtKind::kFunction && s.kind != StmtKind::kClass) {
    s.exprs = keep(module_.arena_, exprs);
    s.targets = keep(module_.arena_, targets);
  }
  attach(s, mark);
  s.header.end = std::max(s.header.begin, last_end());
  block(s, scope);
  s.span.end = std::max(s.header.end, s.body.empty() ? last_end() : s.body.back()->span.end);
}

void Parser::block(Stmt& s, Scope* scope) {
  // Whatever stands between the header and ':' was not understood.
  const size_t mark = module_.all_.size();
  while (!at_line_end() && !is_op(":")) {
    const size_t before = at_;
    expression();
    if (at_ == before) advance();
  }
  attach(s, mark);
  accept_op(":");
  std::vector<const Stmt*> body;
  if (is_kind(TokenKind::kNewline)) {
    advance();
    if (is_kind(TokenKind::kIndent)) {
      advance();
      statements(&s, scope, body, true);
    }
  } else if (!at_line_end()) {
    simple_line(&s, scope, body);
  }
  s.body = keep(module_.arena_, body);
}

bool Parser::with_items_are_in_parentheses() const {
  if (!peek_op(0, "(")) return false;
  int depth = 0;
  bool as = false;
  for (size_t i = at_; i < tokens_.size() && tokens_[i].kind != TokenKind::kNewline && tokens_[i].kind != TokenKind::kEnd; ++i) {
    const std::string_view t = unit_.slice(tokens_[i].span);
    if (t == "(" || t == "[" || t == "{") ++depth;
    if (t == ")" || t == "]" || t == "}") {
      if (--depth == 0) return as && i + 1 < tokens_.size() && unit_.slice(tokens_[i + 1].span) == ":";
    }
    as |= depth == 1 && tokens_[i].kind == TokenKind::kName && t == "as";
  }
  return false;
}

void Parser::with_items(std::vector<const Expr*>& managers, std::vector<const Expr*>& targets) {
  const bool parenthesised = with_items_are_in_parentheses();
  if (parenthesised) advance();
  while (!at_line_end() && !is_op(":") && !is_op(")")) {
    const size_t before = at_;
    managers.push_back(expression());
    // One target per manager keeps them paired; none is a name of no width.
    targets.push_back(accept_word("as") ? binary(5) : make(ExprKind::kBad, {last_end(), last_end()}, "", {}));
    if (!accept_op(",")) break;
    if (at_ == before) break;
  }
  if (parenthesised) accept_op(")");
}

void Parser::skip_type_parameters() {
  if (!is_op("[")) return;
  int depth = 0;
  do {
    if (is_op("[")) ++depth;
    if (is_op("]")) --depth;
    advance();
  } while (depth > 0 && !at_line_end());
}

void Parser::parameters(std::vector<Parameter>& out, bool annotated, std::string_view close) {
  while (!is_op(close) && !at_line_end()) {
    const size_t before = at_;
    Parameter p;
    const uint32_t begin = token().span.begin;
    const bool star = accept_op("*") || accept_op("**");
    accept_op("/");
    if (is_kind(TokenKind::kName)) {
      const uint32_t end = token().span.end;
      p.span = {begin, end};
      p.name = star ? unit_.slice({begin, end}) : text();
      advance();
      if (annotated && accept_op(":")) p.annotation = expression();
      if (accept_op("=")) p.default_value = expression();
      out.push_back(p);
    } else if (is_op("(")) {  // Python 2: def f((a, b))
      expression();
    }
    if (!accept_op(",")) {
      if (is_op(close)) break;
      failed_ = true;
      if (at_ == before) advance();
    }
  }
}

void Parser::function(Stmt& s) {
  if (is_kind(TokenKind::kName)) {
    s.name = text();
    advance();
  }
  module_.functions_.push_back(&s);
  module_.scopes_.push_back(std::make_unique<Scope>());
  s.inner = module_.scopes_.back().get();
  s.inner->parent = s.scope;
  s.inner->owner = &s;
  skip_type_parameters();
  std::vector<Parameter> list;
  if (accept_op("(")) {
    parameters(list, true, ")");
    accept_op(")");
  }
  s.parameters = keep(module_.arena_, list);
  std::vector<const Expr*> parts;
  for (const Parameter& p : list) {
    if (p.annotation) parts.push_back(p.annotation);
    if (p.default_value) parts.push_back(p.default_value);
  }
  if (accept_op("->")) parts.push_back(expression());
  s.exprs = keep(module_.arena_, parts);
}

void Parser::class_(Stmt& s) {
  if (is_kind(TokenKind::kName)) {
    s.name = text();
    advance();
  }
  module_.classes_.push_back(&s);
  module_.scopes_.push_back(std::make_unique<Scope>());
  s.inner = module_.scopes_.back().get();
  s.inner->parent = s.scope;
  s.inner->owner = &s;
  skip_type_parameters();
  if (accept_op("(")) {
    const size_t mark = stack_.size();
    call_arguments();
    s.exprs = take_stack(mark);
  }
}

}  // namespace pointsman::audit::python
