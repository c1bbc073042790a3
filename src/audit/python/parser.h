// SPDX-License-Identifier: Apache-2.0
//
// Recursive descent over the tokens of lexer.h; see ast.h for what comes out.
#pragma once

#include <string_view>
#include <vector>

#include "audit/python/ast.h"
#include "audit/python/lexer.h"

namespace pointsman::audit::python {

// A clause `for target in iterable` of a comprehension: a binding without a statement of its own.
struct ComprehensionClause {
  const Expr* target;
  const Expr* iterable;
};

class Parser {
 public:
  Parser(Module& module, const Unit& unit);
  void run();
  const std::vector<ComprehensionClause>& clauses() const { return clauses_; }

 private:
  static constexpr int kMaxDepth = 150;

  // Tokens.
  const Token& token() const { return tokens_[at_]; }
  std::string_view text() const { return unit_.slice(token().span); }
  bool is_op(std::string_view op) const { return token().kind == TokenKind::kOperator && text() == op; }
  bool is_word(std::string_view word) const { return token().kind == TokenKind::kName && text() == word; }
  bool is_kind(TokenKind kind) const { return token().kind == kind; }
  bool peek_op(size_t ahead, std::string_view op) const;
  bool at_line_end() const;
  bool accept_op(std::string_view op);
  bool accept_word(std::string_view word);
  void advance() {
    if (at_ + 1 < tokens_.size()) ++at_;
  }
  uint32_t last_end() const { return at_ > 0 ? tokens_[at_ - 1].span.end : 0; }

  // Nodes.
  Expr* make(ExprKind kind, Span span, std::string_view text, std::initializer_list<const Expr*> children);
  Expr* make_from_stack(ExprKind kind, Span span, std::string_view text, size_t mark);
  Expr* bad();
  template <class T>
  std::span<const T> copy(const std::vector<T>& items);
  std::span<const Expr* const> take_stack(size_t mark);
  std::string_view store(std::string_view s);

  // Expressions (parse_expr.cc).
  Expr* expression();  // with conditional, lambda, walrus
  Expr* binary(int min_precedence);
  Expr* unary();
  Expr* postfix();
  Expr* atom();
  Expr* string_literal();
  void string_piece(Span token, std::string& value, Expr& properties);
  void fields(Span content, bool raw, std::string& value);
  Expr* bracket(char open);
  bool comprehension_clauses();
  void call_arguments();
  Expr* subscript_item();
  Expr* expression_list();  // a tuple when there is a comma
  Expr* star_or_expression();
  Expr* lambda();

  // Statements (parser.cc).
  void statements(const Stmt* parent, Scope* scope, std::vector<const Stmt*>& out, bool until_dedent);
  void statement(const Stmt* parent, Scope* scope, std::vector<const Stmt*>& out);
  void simple_line(const Stmt* parent, Scope* scope, std::vector<const Stmt*>& out);
  void simple(Stmt& s);
  void assignment(Stmt& s);
  void import(Stmt& s);
  void import_from(Stmt& s);
  void compound(Stmt& s, const std::vector<const Stmt*>& siblings);
  void function(Stmt& s);
  void class_(Stmt& s);
  void parameters(std::vector<Parameter>& out, bool annotated, std::string_view close);
  void with_items(std::vector<const Expr*>& managers, std::vector<const Expr*>& targets);
  bool with_items_are_in_parentheses() const;
  bool starts_match(std::string_view word) const;
  void block(Stmt& s, Scope* scope);
  void skip_type_parameters();
  Stmt* make_stmt(StmtKind kind, const Stmt* parent, Scope* scope);
  void attach(const Stmt& s, size_t mark);
  std::string_view dotted_name();

  Module& module_;
  const Unit& unit_;
  std::vector<Token> tokens_;
  size_t at_ = 0;
  int depth_ = 0;
  bool failed_ = false;  // in the current statement
  std::vector<const Expr*> stack_;
  std::vector<ComprehensionClause> clauses_;
};

}  // namespace pointsman::audit::python
