// SPDX-License-Identifier: Apache-2.0
#include "audit/tree.h"

#include <algorithm>

#include "audit/python/query.h"

namespace pointsman::audit {
namespace {

using python::Expr;
using python::ExprKind;
using python::Stmt;
using python::StmtKind;

// The value of a variable as far as it is known: a literal, or the text of the expression.
std::string value_text(const Unit& unit, const Expr& value) {
  if (const auto s = python::constant_string(value)) return std::string(*s);
  if (value.is(ExprKind::kCall) && value.full_name.empty() && value.last_name() == "str" && value.positional(0)) return value_text(unit, *value.positional(0));
  return std::string(unit.slice(value.span).substr(0, 200));
}

void add_environment(const Unit& unit, std::string_view name, const Expr* value, Span span, Tree& tree) {
  config::Environment e{std::string(name), value ? value_text(unit, *value) : std::string(), value == nullptr, span};
  tree.environment.push_back(locate(unit, span, std::move(e)));
}

bool is_environ(const Expr& e) { return e.full_name == "os.environ"; }

void environment_of_call(const Unit& unit, const Expr& call, Tree& tree) {
  const Expr& callee = *call.callee();
  const bool method = callee.is(ExprKind::kAttribute) && is_environ(*callee.children[0]);
  const std::string_view last = call.last_name();
  if ((method && last == "setdefault") || call.full_name == "os.putenv") {
    const Expr *name = call.positional(0), *value = call.positional(1);
    if (name && value && name->is(ExprKind::kString)) add_environment(unit, name->text, value, call.span, tree);
  } else if (method && last == "update") {
    for (size_t i = 1; i < call.children.size(); ++i) {
      const Expr& a = *call.children[i];
      if (a.is(ExprKind::kKeyword) && a.text != "**") add_environment(unit, a.text, a.children[0], a.span, tree);
      if (!a.is(ExprKind::kDict)) continue;
      for (size_t k = 0; k + 1 < a.children.size(); k += 2) {
        if (a.children[k]->is(ExprKind::kString)) add_environment(unit, a.children[k]->text, a.children[k + 1], {a.children[k]->span.begin, a.children[k + 1]->span.end}, tree);
      }
    }
  } else if (method && last == "pop" && call.positional(0) && call.positional(0)->is(ExprKind::kString)) {
    add_environment(unit, call.positional(0)->text, nullptr, call.span, tree);
  }
}

void pins_of_call(const Unit& unit, const Expr& call, Tree& tree) {
  if (call.last_name() != "setup") return;
  for (const std::string_view key : {"install_requires", "setup_requires", "extras_require"}) {
    const Expr* list = call.keyword(key);
    if (!list) continue;
    // A name stands for the list it was given.
    if (list->is(ExprKind::kName)) {
      const auto definitions = python::definitions_of(*list);
      if (definitions.size() == 1 && definitions[0]->value) list = definitions[0]->value;
    }
    python::find_within(*list, [&](const Expr& e) {
      config::Pin pin;
      if (e.is(ExprKind::kString) && !e.is_formatted && config::parse_requirement(e.text, pin)) {
        pin.source = "setup";
        pin.span = e.span;
        tree.pins.push_back(locate(unit, e.span, std::move(pin)));
      }
      return false;
    });
  }
}

}  // namespace

bool Tree::imports_module(std::string_view module) const {
  return std::any_of(imports.begin(), imports.end(), [&](const Located<Import>& i) { return python::is_under(i.value.module, module); });
}

std::vector<const Located<Note>*> Tree::notes_of(std::string_view rule, std::string_view key) const {
  std::vector<const Located<Note>*> out;
  for (const Located<Note>& n : notes) {
    if (n.value.rule == rule && n.value.key == key) out.push_back(&n);
  }
  return out;
}

void collect_facts(const python::Module& module, Tree& tree) {
  const Unit& unit = module.unit();
  for (const Stmt* s : module.imports()) {
    if (s->kind == StmtKind::kImportFrom) {
      tree.imports.push_back(locate(unit, s->span, Import{std::string(s->name)}));
    } else {
      for (const python::ImportedName& n : s->imports) tree.imports.push_back(locate(unit, n.span, Import{std::string(n.name)}));
    }
  }
  for (const Stmt* s : module.statements()) {
    if (s->kind == StmtKind::kAssign) {
      for (const Expr* t : s->targets) {
        if (t->is(ExprKind::kSubscript) && is_environ(*t->children[0]) && t->children[1]->is(ExprKind::kString))
          add_environment(unit, t->children[1]->text, s->value, s->span, tree);
      }
    } else if (s->kind == StmtKind::kDelete) {
      for (const Expr* t : s->exprs) {
        if (t->is(ExprKind::kSubscript) && is_environ(*t->children[0]) && t->children[1]->is(ExprKind::kString)) add_environment(unit, t->children[1]->text, nullptr, s->span, tree);
      }
    }
  }
  for (const Expr* call : module.calls()) {
    environment_of_call(unit, *call, tree);
    pins_of_call(unit, *call, tree);
  }
}

void collect_facts(const config::Document& document, Tree& tree) {
  for (const config::Environment& e : document.environment) tree.environment.push_back(locate(*document.unit, e.span, e));
  for (const config::Pin& p : document.pins) tree.pins.push_back(locate(*document.unit, p.span, p));
  for (const config::Image& i : document.images) tree.images.push_back(locate(*document.unit, i.span, i));
}

}  // namespace pointsman::audit
