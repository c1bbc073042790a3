// SPDX-License-Identifier: Apache-2.0
#include "audit/python/parser.h"

#include <algorithm>
#include <new>

namespace pointsman::audit::python {

Parser::Parser(Module& module, const Unit& unit) : module_(module), unit_(unit) {
  Lexed lexed = lex(unit.text, {0, static_cast<uint32_t>(unit.text.size())});
  tokens_ = std::move(lexed.tokens);
  module.comments_ = std::move(lexed.comments);
  module.truncated_ = lexed.truncated;
}

bool Parser::peek_op(size_t ahead, std::string_view op) const {
  const size_t i = at_ + ahead;
  return i < tokens_.size() && tokens_[i].kind == TokenKind::kOperator && unit_.slice(tokens_[i].span) == op;
}

bool Parser::at_line_end() const {
  const TokenKind k = token().kind;
  return k == TokenKind::kNewline || k == TokenKind::kIndent || k == TokenKind::kDedent || k == TokenKind::kEnd;
}

bool Parser::accept_op(std::string_view op) {
  if (!is_op(op)) return false;
  advance();
  return true;
}

bool Parser::accept_word(std::string_view word) {
  if (!is_word(word)) return false;
  advance();
  return true;
}

template <class T>
std::span<const T> Parser::copy(const std::vector<T>& items) {
  if (items.empty()) return {};
  T* data = static_cast<T*>(module_.arena_.allocate(items.size() * sizeof(T), alignof(T)));
  std::uninitialized_copy(items.begin(), items.end(), data);
  return {data, items.size()};
}

Stmt* Parser::make_stmt(StmtKind kind, const Stmt* parent, Scope* scope) {
  Stmt* s = new (module_.arena_.allocate(sizeof(Stmt), alignof(Stmt))) Stmt;
  s->kind = kind;
  s->parent = parent;
  s->scope = scope;
  s->span = s->header = token().span;
  module_.statements_.push_back(s);
  return s;
}

// Expressions made since `mark` belong to `s`.
void Parser::attach(const Stmt& s, size_t mark) {
  for (size_t i = mark; i < module_.all_.size(); ++i) module_.all_[i]->stmt = &s;
}

void Parser::run() {
  module_.scopes_.push_back(std::make_unique<Scope>());
  std::vector<const Stmt*> body;
  statements(nullptr, module_.scopes_.front().get(), body, false);
  module_.body_ = copy(body);
}

void Parser::statements(const Stmt* parent, Scope* scope, std::vector<const Stmt*>& out, bool until_dedent) {
  while (!is_kind(TokenKind::kEnd)) {
    if (is_kind(TokenKind::kDedent)) {
      advance();
      if (until_dedent) return;
    } else if (is_kind(TokenKind::kIndent)) {  // deeper without a reason: the same block
      advance();
      statements(parent, scope, out, true);
    } else if (is_kind(TokenKind::kNewline)) {
      advance();
    } else {
      const size_t before = at_;
      statement(parent, scope, out);
      if (at_ == before) advance();
    }
  }
}

bool Parser::starts_match(std::string_view word) const {
  if (!is_word(word) || at_ + 1 >= tokens_.size()) return false;
  const Token& next = tokens_[at_ + 1];
  if (next.kind == TokenKind::kOperator) {
    const std::string_view op = unit_.slice(next.span);
    if (op != "(" && op != "[" && op != "{" && op != "-" && op != "*") return false;
  } else if (next.kind != TokenKind::kName && next.kind != TokenKind::kString && next.kind != TokenKind::kNumber) {
    return false;
  }
  // A block follows: the line ends with ':'.
  size_t i = at_;
  while (i < tokens_.size() && tokens_[i].kind != TokenKind::kNewline && tokens_[i].kind != TokenKind::kEnd) ++i;
  const bool colon = i > at_ && unit_.slice(tokens_[i - 1].span) == ":";
  return colon && i + 1 < tokens_.size() && tokens_[i].kind == TokenKind::kNewline && tokens_[i + 1].kind == TokenKind::kIndent;
}

void Parser::statement(const Stmt* parent, Scope* scope, std::vector<const Stmt*>& out) {
  failed_ = false;
  constexpr std::pair<std::string_view, StmtKind> kCompound[] = {
      {"if", StmtKind::kIf},       {"elif", StmtKind::kElif},       {"else", StmtKind::kElse}, {"for", StmtKind::kFor},
      {"while", StmtKind::kWhile}, {"try", StmtKind::kTry},         {"except", StmtKind::kExcept},
      {"finally", StmtKind::kFinally}, {"with", StmtKind::kWith},   {"def", StmtKind::kFunction}, {"class", StmtKind::kClass},
  };
  const size_t mark = module_.all_.size();
  const uint32_t begin = token().span.begin;
  std::vector<const Expr*> decorators;
  while (is_op("@")) {
    advance();
    decorators.push_back(expression());
    while (!at_line_end()) advance();
    while (is_kind(TokenKind::kNewline)) advance();
  }
  bool is_async = false;
  if (is_word("async") && at_ + 1 < tokens_.size() && tokens_[at_ + 1].kind == TokenKind::kName) {
    is_async = true;
    advance();
  }
  if (is_kind(TokenKind::kName)) {
    for (const auto& [word, kind] : kCompound) {
      if (!is_word(word)) continue;
      Stmt* s = make_stmt(kind, parent, scope);
      s->is_async = is_async;
      s->span.begin = s->header.begin = begin;
      s->decorators = copy(decorators);
      attach(*s, mark);
      const std::vector<const Stmt*> siblings = out.empty() ? std::vector<const Stmt*>{} : std::vector<const Stmt*>{out.back()};
      out.push_back(s);
      compound(*s, siblings);
      return;
    }
  }
  if (!decorators.empty()) {  // of nothing
    Stmt* s = make_stmt(StmtKind::kBad, parent, scope);
    s->span.begin = s->header.begin = begin;
    s->exprs = copy(decorators);
    attach(*s, mark);
    out.push_back(s);
  }
  if (is_kind(TokenKind::kName)) {
    for (const auto& [word, kind] : {std::pair<std::string_view, StmtKind>{"match", StmtKind::kMatch}, {"case", StmtKind::kCase}}) {
      if (!starts_match(word)) continue;
      Stmt* s = make_stmt(kind, parent, scope);
      out.push_back(s);
      compound(*s, {});
      return;
    }
  }
  simple_line(parent, scope, out);
}

void Parser::simple_line(const Stmt* parent, Scope* scope, std::vector<const Stmt*>& out) {
  do {
    if (at_line_end()) break;
    failed_ = false;
    const size_t mark = module_.all_.size();
    Stmt* s = make_stmt(StmtKind::kExpr, parent, scope);
    simple(*s);
    if (!at_line_end() && !is_op(";")) failed_ = true;
    if (failed_ && s->kind != StmtKind::kImport && s->kind != StmtKind::kImportFrom) {
      // Not Python, or not of any version: keep what can be read of the line.
      std::vector<const Expr*> pieces(s->exprs.begin(), s->exprs.end());
      pieces.insert(pieces.end(), s->targets.begin(), s->targets.end());
      if (s->value) pieces.push_back(s->value);
      while (!at_line_end() && !is_op(";")) {
        const size_t before = at_;
        pieces.push_back(expression());
        if (at_ == before) advance();
      }
      if (s->kind == StmtKind::kExpr) {
        s->kind = StmtKind::kBad;
        s->exprs = copy(pieces);
      }
    }
    while (!at_line_end() && !is_op(";")) advance();
    s->span.end = s->header.end = std::max(s->span.begin, last_end());
    attach(*s, mark);
    out.push_back(s);
  } while (accept_op(";"));
  if (is_kind(TokenKind::kNewline)) advance();
}

void Parser::simple(Stmt& s) {
  if (is_kind(TokenKind::kName)) {
    const std::string_view w = text();
    const auto one_of = [&](std::initializer_list<std::string_view> words) { return std::find(words.begin(), words.end(), w) != words.end(); };
    if (w == "import") return import(s);
    if (w == "from") return import_from(s);
    if (one_of({"pass", "break", "continue", "global", "nonlocal"})) {
      s.kind = StmtKind::kSimple;
      s.text = w;
      while (!at_line_end() && !is_op(";")) advance();
      return;
    }
    if (one_of({"return", "raise", "assert", "del"})) {
      s.kind = w == "return" ? StmtKind::kReturn : w == "raise" ? StmtKind::kRaise : w == "assert" ? StmtKind::kAssert : StmtKind::kDelete;
      advance();
      std::vector<const Expr*> parts;
      while (!at_line_end() && !is_op(";")) {
        const size_t before = at_;
        parts.push_back(s.kind == StmtKind::kReturn ? expression_list() : expression());
        if (!accept_op(",") && !accept_word("from")) break;
        if (at_ == before) break;
      }
      s.exprs = copy(parts);
      return;
    }
    // Python 2.
    const TokenKind next = at_ + 1 < tokens_.size() ? tokens_[at_ + 1].kind : TokenKind::kEnd;
    if (one_of({"print", "exec"}) && (next == TokenKind::kString || next == TokenKind::kNumber || next == TokenKind::kName || peek_op(1, ">>"))) {
      const std::string_view after = unit_.slice(tokens_[at_ + 1].span);
      if (after != "in" && after != "is" && after != "and" && after != "or" && after != "if" && after != "not") {
        advance();
        accept_op(">>");
        s.text = w;
        s.exprs = copy(std::vector<const Expr*>{expression_list()});
        return;
      }
    }
  }
  assignment(s);
}

void Parser::assignment(Stmt& s) {
  const Expr* first = expression_list();
  constexpr std::string_view kAugmented[] = {"+=", "-=", "*=", "/=", "//=", "%=", "@=", "&=", "|=", "^=", ">>=", "<<=", "**="};
  if (is_op("=")) {
    std::vector<const Expr*> targets{first};
    const Expr* value = nullptr;
    while (accept_op("=")) {
      value = expression_list();
      if (is_op("=")) targets.push_back(value);
    }
    s.kind = StmtKind::kAssign;
    s.targets = copy(targets);
    s.value = value;
  } else if (is_op(":")) {
    advance();
    s.kind = StmtKind::kAnnAssign;
    s.targets = copy(std::vector<const Expr*>{first});
    s.exprs = copy(std::vector<const Expr*>{expression()});
    if (accept_op("=")) s.value = expression_list();
  } else if (is_kind(TokenKind::kOperator) && std::find(std::begin(kAugmented), std::end(kAugmented), text()) != std::end(kAugmented)) {
    s.text = text();
    advance();
    s.kind = StmtKind::kAugAssign;
    s.targets = copy(std::vector<const Expr*>{first});
    s.value = expression_list();
  } else {
    s.exprs = copy(std::vector<const Expr*>{first});
  }
}

// a.b.c as it stands in the text when there is no white space in it.
std::string_view Parser::dotted_name() {
  if (!is_kind(TokenKind::kName)) return {};
  const uint32_t begin = token().span.begin;
  std::string joined(text());
  advance();
  bool plain = true;
  while (is_op(".") && at_ + 1 < tokens_.size() && tokens_[at_ + 1].kind == TokenKind::kName) {
    plain &= token().span.begin == last_end() && tokens_[at_ + 1].span.begin == token().span.end;
    advance();
    joined += '.';
    joined += text();
    advance();
  }
  return plain ? unit_.slice({begin, last_end()}) : store(joined);
}

void Parser::import(Stmt& s) {
  s.kind = StmtKind::kImport;
  advance();
  std::vector<ImportedName> names;
  while (is_kind(TokenKind::kName)) {
    const uint32_t begin = token().span.begin;
    ImportedName n;
    n.name = dotted_name();
    n.span = {begin, last_end()};
    n.alias = n.name.substr(0, n.name.find('.'));
    if (accept_word("as") && is_kind(TokenKind::kName)) {
      n.alias = text();
      advance();
    }
    names.push_back(n);
    if (!accept_op(",")) break;
  }
  s.imports = copy(names);
  module_.imports_.push_back(&s);
}

void Parser::import_from(Stmt& s) {
  s.kind = StmtKind::kImportFrom;
  advance();
  std::string module;
  while (is_op(".") || is_op("...")) {
    module += text();
    advance();
  }
  if (!is_word("import")) module += dotted_name();
  s.name = store(module);
  std::vector<ImportedName> names;
  if (accept_word("import")) {
    accept_op("(");
    while (is_kind(TokenKind::kName) || is_op("*")) {
      ImportedName n;
      n.name = n.alias = text();
      n.span = token().span;
      advance();
      if (accept_word("as") && is_kind(TokenKind::kName)) {
        n.alias = text();
        advance();
      }
      names.push_back(n);
      if (!accept_op(",")) break;
    }
    accept_op(")");
  }
  s.imports = copy(names);
  module_.imports_.push_back(&s);
}

}  // namespace pointsman::audit::python
