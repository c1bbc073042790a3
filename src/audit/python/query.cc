// SPDX-License-Identifier: Apache-2.0
#include "audit/python/query.h"

#include <algorithm>
#include <charconv>
#include <unordered_set>

namespace pointsman::audit::python {

const Expr* Expr::positional(size_t index) const {
  if (kind != ExprKind::kCall) return nullptr;
  size_t n = 0;
  for (size_t i = 1; i < children.size(); ++i) {
    const Expr* a = children[i];
    if (a->is(ExprKind::kKeyword)) continue;
    if (a->is(ExprKind::kUnary) && a->text == "*") return nullptr;
    if (n++ == index) return a;
  }
  return nullptr;
}

const Expr* Expr::keyword(std::string_view name) const {
  if (kind != ExprKind::kCall) return nullptr;
  for (size_t i = 1; i < children.size(); ++i) {
    if (children[i]->is(ExprKind::kKeyword) && children[i]->text == name) return children[i]->children[0];
  }
  return nullptr;
}

const Expr* Expr::argument(size_t index, std::string_view name) const {
  const Expr* k = keyword(name);
  return k ? k : positional(index);
}

bool Expr::has_unpacking() const {
  for (size_t i = 1; i < children.size(); ++i) {
    const Expr* a = children[i];
    if ((a->is(ExprKind::kKeyword) && a->text == "**") || (a->is(ExprKind::kUnary) && a->text == "*")) return true;
  }
  return false;
}

std::string_view Expr::last_name() const {
  const Expr* e = kind == ExprKind::kCall ? callee() : this;
  // from torch import topk as best: the API's name, not the local one.
  if (!e->full_name.empty()) return e->full_name.substr(e->full_name.rfind('.') + 1);
  return e->is(ExprKind::kName) || e->is(ExprKind::kAttribute) ? e->text : std::string_view();
}

std::string dotted(const Expr& e) {
  std::vector<std::string_view> parts;
  const Expr* at = &e;
  for (; at->is(ExprKind::kAttribute) && parts.size() < 12; at = at->children[0]) parts.push_back(at->text);
  if (!at->is(ExprKind::kName)) return {};
  std::string s(at->text);
  for (size_t i = parts.size(); i-- > 0;) {
    s += '.';
    s += parts[i];
  }
  return s;
}

bool is_under(std::string_view full_name, std::string_view module) {
  return full_name.starts_with(module) && (full_name.size() == module.size() || full_name[module.size()] == '.');
}

const Stmt* enclosing_function(const Stmt* s) {
  for (const Stmt* p = s ? s->parent : nullptr; p; p = p->parent) {
    if (p->kind == StmtKind::kFunction) return p;
    if (p->kind == StmtKind::kClass) return nullptr;
  }
  return nullptr;
}

const Stmt* enclosing_class(const Stmt* s) {
  for (const Stmt* p = s ? s->parent : nullptr; p; p = p->parent) {
    if (p->kind == StmtKind::kClass) return p;
  }
  return nullptr;
}

namespace {
bool is_loop(const Stmt& s) { return s.kind == StmtKind::kFor || s.kind == StmtKind::kWhile; }
bool is_scope(const Stmt& s) { return s.kind == StmtKind::kFunction || s.kind == StmtKind::kClass; }
}  // namespace

const Stmt* enclosing_loop(const Expr& e) {
  if (!e.stmt) return nullptr;
  if (e.stmt->kind == StmtKind::kWhile) return e.stmt;  // its condition runs every time
  for (const Stmt* p = e.stmt->parent; p && !is_scope(*p); p = p->parent) {
    if (is_loop(*p)) return p;
  }
  return nullptr;
}

bool in_loop(const Expr& e) {
  for (const Expr* p = &e; p->parent; p = p->parent) {
    if (p->parent->is(ExprKind::kComprehension)) return true;
  }
  return enclosing_loop(e) != nullptr;
}

std::vector<const Expr*> with_managers(const Expr& e) {
  std::vector<const Expr*> out;
  for (const Stmt* p = e.stmt ? e.stmt->parent : nullptr; p && !is_scope(*p); p = p->parent) {
    if (p->kind == StmtKind::kWith) out.insert(out.end(), p->exprs.rbegin(), p->exprs.rend());
  }
  return out;
}

bool is_target(const Expr& e) {
  if (!e.stmt) return false;
  const Expr* top = &e;
  while (top->parent && (top->parent->is(ExprKind::kTuple) || top->parent->is(ExprKind::kList))) top = top->parent;
  return std::find(e.stmt->targets.begin(), e.stmt->targets.end(), top) != e.stmt->targets.end();
}

bool failure_is_caught(const Stmt& s) {
  for (const Stmt* p = &s; p && !is_scope(*p); p = p->parent) {
    if (p->kind != StmtKind::kTry) continue;
    for (const Stmt* c = p->next_clause; c; c = c->next_clause) {
      if (c->kind != StmtKind::kExcept) continue;
      if (c->exprs.empty()) return true;
      if (find_within(*c->exprs[0], [](const Expr& x) {
            const std::string_view n2 = x.last_name();
            return n2 == "ImportError" || n2 == "ModuleNotFoundError" || n2 == "Exception" || n2 == "BaseException" || n2 == "AttributeError" || n2 == "RuntimeError";
          }))
        return true;
    }
  }
  return false;
}

std::optional<std::string_view> constant_string(const Expr& e) {
  if (e.is(ExprKind::kString)) return e.is_formatted ? std::nullopt : std::optional(e.text);
  if (!e.is(ExprKind::kName) && !e.is(ExprKind::kAttribute)) return std::nullopt;
  const auto defs = definitions_of(e);
  if (defs.size() != 1 || !defs[0]->value || defs[0]->tuple_index >= 0 || !defs[0]->value->is(ExprKind::kString) || defs[0]->kind == DefinitionKind::kFor)
    return std::nullopt;
  return defs[0]->value->is_formatted ? std::nullopt : std::optional(defs[0]->value->text);
}

std::optional<double> constant_number(const Expr& e) {
  const Expr* at = &e;
  double sign = 1;
  for (int step = 0; step < 3; ++step) {
    if (at->is(ExprKind::kUnary) && at->text == "-" && !at->children.empty()) {
      sign = -sign;
      at = at->children[0];
    } else if (at->is(ExprKind::kName) || at->is(ExprKind::kAttribute)) {
      const auto defs = definitions_of(*at);
      if (defs.size() != 1 || !defs[0]->value || defs[0]->tuple_index >= 0 || defs[0]->kind == DefinitionKind::kFor) return std::nullopt;
      at = defs[0]->value;
    } else {
      break;
    }
  }
  if (!at->is(ExprKind::kNumber)) return std::nullopt;
  std::string digits;
  for (const char c : at->text) {
    if (c != '_') digits += c;
  }
  double value = 0;
  if (digits.starts_with("0x") || digits.starts_with("0X")) {
    uint64_t hex = 0;
    const auto r = std::from_chars(digits.data() + 2, digits.data() + digits.size(), hex, 16);
    if (r.ec != std::errc()) return std::nullopt;
    value = static_cast<double>(hex);
  } else if (const auto r = std::from_chars(digits.data(), digits.data() + digits.size(), value); r.ec != std::errc()) {
    return std::nullopt;
  }
  return sign * value;
}

std::optional<bool> constant_bool(const Expr& e) {
  const Expr* at = &e;
  if (at->is(ExprKind::kName) || at->is(ExprKind::kAttribute)) {
    const auto defs = definitions_of(*at);
    if (defs.size() != 1 || !defs[0]->value) return std::nullopt;
    at = defs[0]->value;
  }
  if (!at->is(ExprKind::kConstant)) return std::nullopt;
  if (at->text == "True") return true;
  if (at->text == "False") return false;
  return std::nullopt;
}

const Expr* find_within(const Expr& e, Predicate predicate) {
  std::vector<const Expr*> stack{&e};
  while (!stack.empty()) {
    const Expr* at = stack.back();
    stack.pop_back();
    if (predicate(*at)) return at;
    for (size_t i = at->children.size(); i-- > 0;) stack.push_back(at->children[i]);
  }
  return nullptr;
}

const Expr* find_within(const Stmt& s, Predicate predicate, bool with_body) {
  std::vector<const Stmt*> stack{&s};
  while (!stack.empty()) {
    const Stmt* at = stack.back();
    stack.pop_back();
    for (const auto list : {at->decorators, at->targets, at->exprs}) {
      for (const Expr* e : list) {
        if (const Expr* hit = find_within(*e, predicate)) return hit;
      }
    }
    if (at->value) {
      if (const Expr* hit = find_within(*at->value, predicate)) return hit;
    }
    if (with_body) {
      for (size_t i = at->body.size(); i-- > 0;) stack.push_back(at->body[i]);
    }
  }
  return nullptr;
}

const Expr* flows_from(const Expr& e, Predicate predicate) {
  constexpr size_t kMaxSteps = 2000;
  std::unordered_set<const Expr*> seen;
  // Breadth first: the nearest source is the one to name.
  std::vector<const Expr*> queue{&e};
  for (size_t i = 0; i < queue.size() && i < kMaxSteps; ++i) {
    const Expr* at = queue[i];
    if (!seen.insert(at).second) continue;
    if (predicate(*at)) return at;
    if (at->is(ExprKind::kName) || at->is(ExprKind::kAttribute)) {
      for (const Definition* d : definitions_of(*at)) {
        if (d->value) queue.push_back(d->value);
      }
    }
    if (at->is(ExprKind::kLambda)) continue;
    for (const Expr* c : at->children) queue.push_back(c);
  }
  return nullptr;
}

}  // namespace pointsman::audit::python
