// SPDX-License-Identifier: Apache-2.0
//
// Definitions of every scope, imports and aliases, full names, and the flat lists.
#include <algorithm>
#include <cstring>

#include "audit/python/ast.h"
#include "audit/python/parser.h"
#include "audit/python/query.h"

namespace pointsman::audit::python {

// A name beyond this is nobody's API, and chains of attributes must not cost quadratic memory.
constexpr size_t kMaxFullName = 160;

class Resolver {
 public:
  Resolver(Module& module, const std::vector<ComprehensionClause>& clauses) : m_(module), clauses_(clauses) {}

  void run() {
    for (const Stmt* s : m_.statements_) bind(*s);
    for (const ComprehensionClause& c : clauses_) {
      if (c.target->stmt) bind_target(*c.target->stmt, *c.target->stmt->scope, c.target, c.iterable, DefinitionKind::kFor, c.target->span.begin);
    }
    for (const Expr* e : m_.all_) {
      if (e->is(ExprKind::kNamed) && e->stmt)
        bind_target(*e->stmt, scope_of(*e), e->children[0], e->children[1], DefinitionKind::kNamed, e->span.end);
    }
    for (const auto& scope : m_.scopes_) {
      for (auto& [name, list] : scope->by_name) {
        std::stable_sort(list.begin(), list.end(), [&](uint32_t a, uint32_t b) { return scope->definitions[a].position < scope->definitions[b].position; });
      }
    }
    for (Expr* e : m_.all_) resolve(*e);
    exits(m_.body_);
    for (const Stmt* s : m_.statements_) exits(s->body);
    lists();
  }

 private:
  // Names in the header of a def belong outside; a body's statement has its own scope.
  static Scope& scope_of(const Expr& e) { return *e.stmt->scope; }

  std::string_view join(std::string_view a, std::string_view dot, std::string_view b) {
    const size_t n = a.size() + dot.size() + b.size();
    if (n == 0 || n > kMaxFullName) return {};
    char* data = static_cast<char*>(m_.arena_.allocate(n, 1));
    if (!a.empty()) std::memcpy(data, a.data(), a.size());
    if (!dot.empty()) std::memcpy(data + a.size(), dot.data(), dot.size());
    if (!b.empty()) std::memcpy(data + a.size() + dot.size(), b.data(), b.size());
    return {data, n};
  }

  void define(Scope& scope, Definition d) {
    scope.by_name[d.name].push_back(static_cast<uint32_t>(scope.definitions.size()));
    scope.definitions.push_back(d);
  }

  // A second binding under try, except, if or else is a fall-back of the first; elsewhere it is another thing.
  static bool is_fallback(const Stmt& s) {
    for (const Stmt* p = s.parent; p; p = p->parent) {
      switch (p->kind) {
        case StmtKind::kTry: case StmtKind::kExcept: case StmtKind::kIf: case StmtKind::kElif: case StmtKind::kElse: return true;
        case StmtKind::kFunction: case StmtKind::kClass: return false;
        default: break;
      }
    }
    return false;
  }

  void alias(const Stmt& s, Scope& scope, std::string_view name, std::string_view full, bool is_import) {
    if (full.empty()) return;
    const auto [it, fresh] = scope.aliases.try_emplace(name, Scope::Alias{full, is_import, false});
    if (!fresh && it->second.full_name != full && !(is_import && it->second.is_import) && !is_fallback(s)) it->second.is_spoiled = true;
  }
  void spoil(const Stmt& s, Scope& scope, std::string_view name, const Expr* value) {
    const auto it = scope.aliases.find(name);
    const bool placeholder = value && value->is(ExprKind::kConstant);
    if (it != scope.aliases.end() && !placeholder && !is_fallback(s)) it->second.is_spoiled = true;
  }

  void bind_target(const Stmt& s, Scope& scope, const Expr* target, const Expr* value, DefinitionKind kind, uint32_t position, int index = -1) {
    if (target->is(ExprKind::kTuple) || target->is(ExprKind::kList)) {
      const bool pairwise = value && index < 0 && kind == DefinitionKind::kAssign && value->is(ExprKind::kTuple) && value->children.size() == target->children.size();
      for (size_t i = 0; i < target->children.size(); ++i) {
        const Expr* part = target->children[i];
        if (part->is(ExprKind::kTuple) || part->is(ExprKind::kList)) {
          // (a, (b, c)): one level is enough to follow a value.
          for (const Expr* leaf : part->children) bind_name(s, scope, leaf, value, kind, position, static_cast<int>(i));
        } else {
          bind_name(s, scope, part, pairwise ? value->children[i] : value, kind, position, pairwise ? -1 : static_cast<int>(i));
        }
      }
      return;
    }
    bind_name(s, scope, target, value, kind, position, index);
  }

  void bind_name(const Stmt& s, Scope& scope, const Expr* target, const Expr* value, DefinitionKind kind, uint32_t position, int index) {
    if (target->is(ExprKind::kUnary) && !target->children.empty()) target = target->children[0];  // *rest
    // x[...] = value changes what x is: a definition that does not replace the earlier ones.
    if (target->is(ExprKind::kSubscript)) {
      target = target->children[0];
      kind = DefinitionKind::kAugment;
    }
    std::string_view name;
    if (target->is(ExprKind::kName)) {
      name = target->text;
    } else if (target->is(ExprKind::kAttribute)) {
      name = join(dotted(*target), "", "");
    }
    if (name.empty()) return;
    if (target->is(ExprKind::kName) && kind == DefinitionKind::kAssign && index < 0 && value &&
        (value->is(ExprKind::kAttribute) || value->is(ExprKind::kName))) {
      const std::string_view full = full_name_now(*value, scope);
      if (!full.empty()) {
        alias(s, scope, name, full, false);
      } else {
        spoil(s, scope, name, value);
      }
    } else if (target->is(ExprKind::kName) && kind != DefinitionKind::kAugment) {
      spoil(s, scope, name, value);
    }
    define(scope, {kind, index, name, target, value, &s, position});
  }

  // Before names are resolved: a chain whose root is an alias by now.
  std::string_view full_name_now(const Expr& e, const Scope& scope) {
    const Expr* root = &e;
    int n = 0;
    while (root->is(ExprKind::kAttribute) && ++n < 12) root = root->children[0];
    if (!root->is(ExprKind::kName)) return {};
    const auto [base, how] = look_up(root->text, &scope);
    if (how == Resolution::kNone || base.empty()) return {};
    if (root == &e) return base;
    const std::string_view tail = m_.unit().slice({root->span.end, e.span.end});
    // The text between may hold white space only in odd layouts; those are left unresolved.
    if (tail.find_first_of(" \t\n\\#()") != tail.npos) return {};
    return join(base, "", tail);
  }

  void bind(const Stmt& s) {
    Scope& scope = *s.scope;
    switch (s.kind) {
      case StmtKind::kImport:
        for (const ImportedName& n : s.imports) {
          const bool as = n.alias != n.name.substr(0, n.name.find('.'));
          alias(s, scope, n.alias, as ? n.name : n.alias, true);
          define(scope, {DefinitionKind::kImport, -1, n.alias, nullptr, nullptr, &s, s.span.end});
        }
        break;
      case StmtKind::kImportFrom:
        for (const ImportedName& n : s.imports) {
          if (n.name == "*") {
            scope.star_imports.push_back(s.name);
            continue;
          }
          alias(s, scope, n.alias, join(s.name, s.name.ends_with('.') ? "" : ".", n.name), true);
          define(scope, {DefinitionKind::kImport, -1, n.alias, nullptr, nullptr, &s, s.span.end});
        }
        break;
      case StmtKind::kAssign:
        for (const Expr* t : s.targets) bind_target(s, scope, t, s.value, DefinitionKind::kAssign, s.span.end);
        break;
      case StmtKind::kAnnAssign:
        if (s.value) bind_target(s, scope, s.targets[0], s.value, DefinitionKind::kAssign, s.span.end);
        break;
      case StmtKind::kAugAssign:
        bind_target(s, scope, s.targets[0], s.value, DefinitionKind::kAugment, s.span.end);
        break;
      case StmtKind::kFor:
        for (const Expr* t : s.targets) bind_target(s, scope, t, s.exprs.empty() ? nullptr : s.exprs[0], DefinitionKind::kFor, s.header.end);
        break;
      case StmtKind::kWith:
        for (size_t i = 0; i < s.targets.size(); ++i) bind_target(s, scope, s.targets[i], s.exprs[i], DefinitionKind::kWith, s.header.end);
        break;
      case StmtKind::kExcept:
        if (!s.name.empty()) define(scope, {DefinitionKind::kExcept, -1, s.name, nullptr, nullptr, &s, s.header.end});
        break;
      case StmtKind::kFunction:
      case StmtKind::kClass:
        spoil(s, scope, s.name, nullptr);
        define(scope, {s.kind == StmtKind::kClass ? DefinitionKind::kClass : DefinitionKind::kFunction, -1, s.name, nullptr, nullptr, &s, s.header.end});
        for (const Parameter& p : s.parameters) {
          std::string_view name = p.name;
          while (name.starts_with('*')) name.remove_prefix(1);
          define(*s.inner, {DefinitionKind::kParameter, -1, name, nullptr, p.default_value, &s, s.header.end});
        }
        break;
      default:
        break;
    }
  }

  std::pair<std::string_view, Resolution> look_up(std::string_view name, const Scope* scope) const {
    for (const Scope* s = scope; s; s = s->parent) {
      // A class's own names are not seen from its methods.
      if (s != scope && s->owner && s->owner->kind == StmtKind::kClass) continue;
      if (const auto a = s->aliases.find(name); a != s->aliases.end())
        return a->second.is_spoiled ? std::pair(std::string_view(), Resolution::kNone) : std::pair(a->second.full_name, Resolution::kImported);
      if (s->by_name.count(name) != 0) return {{}, Resolution::kNone};
    }
    constexpr std::pair<std::string_view, std::string_view> kCustomary[] = {
        {"torch", "torch"}, {"torch_npu", "torch_npu"}, {"dist", "torch.distributed"}, {"F", "torch.nn.functional"}, {"nn", "torch.nn"},
        {"np", "numpy"},    {"os", "os"},               {"torchvision", "torchvision"}, {"ctypes", "ctypes"}, {"deepspeed", "deepspeed"},
        {"init_process_group", "torch.distributed.init_process_group"}, {"subprocess", "subprocess"},
    };
    for (const auto& [n, full] : kCustomary) {
      if (n == name) return {full, Resolution::kAssumed};
    }
    return {{}, Resolution::kNone};
  }

  void resolve(Expr& e) {
    if (e.is(ExprKind::kName)) {
      if (!e.stmt) return;
      std::tie(e.full_name, e.resolution) = look_up(e.text, &scope_of(e));
    } else if (e.is(ExprKind::kAttribute)) {
      const Expr& base = *e.children[0];
      if (!base.full_name.empty() && !base.is(ExprKind::kCall)) {
        e.full_name = join(base.full_name, ".", e.text);
        if (!e.full_name.empty()) e.resolution = base.resolution;
      }
    } else if (e.is(ExprKind::kCall)) {
      e.full_name = e.children[0]->is(ExprKind::kCall) ? std::string_view() : e.children[0]->full_name;
      e.resolution = e.full_name.empty() ? Resolution::kNone : e.children[0]->resolution;
    }
  }

  static void exits(std::span<const Stmt* const> body) {
    const Stmt* exit = nullptr;
    for (const Stmt* s : body) {
      const_cast<Stmt*>(s)->last_exit = exit;  // the tree is still being made
      if (s->kind != StmtKind::kIf || s->exprs.empty() || s->body.empty()) continue;
      const Stmt& last = *s->body.back();
      if (last.kind == StmtKind::kReturn || last.kind == StmtKind::kRaise || (last.kind == StmtKind::kSimple && (last.text == "break" || last.text == "continue")))
        exit = s;
    }
  }

  void lists() {
    const auto docstring = [](const Expr& e) { return e.parent == nullptr && e.stmt && e.stmt->kind == StmtKind::kExpr; };
    for (const Expr* e : m_.all_) {
      switch (e->kind) {
        case ExprKind::kCall: m_.calls_.push_back(e); break;
        case ExprKind::kString: if (!docstring(*e)) m_.strings_.push_back(e); break;
        case ExprKind::kCompare: m_.compares_.push_back(e); break;
        case ExprKind::kSubscript: m_.subscripts_.push_back(e); break;
        case ExprKind::kName:
        case ExprKind::kAttribute:
          if (!(e->parent && e->parent->is(ExprKind::kAttribute))) m_.references_.push_back(e);
          break;
        default: break;
      }
    }
    for (auto* list : {&m_.calls_, &m_.strings_, &m_.compares_, &m_.subscripts_, &m_.references_})
      std::stable_sort(list->begin(), list->end(), [](const Expr* a, const Expr* b) { return a->span.begin < b->span.begin; });
  }

  Module& m_;
  const std::vector<ComprehensionClause>& clauses_;
};

std::unique_ptr<Module> parse(const Unit& unit) {
  std::unique_ptr<Module> m(new Module);
  m->unit_ = &unit;
  Parser parser(*m, unit);
  parser.run();
  Resolver(*m, parser.clauses()).run();
  return m;
}

bool Module::imports_module(std::string_view module) const {
  const auto covers = [&](std::string_view name) { return name == module || (name.starts_with(module) && name[module.size()] == '.'); };
  for (const Stmt* s : imports_) {
    if (s->kind == StmtKind::kImportFrom) {
      if (covers(s->name)) return true;
      for (const ImportedName& n : s->imports) {
        if (covers(std::string(s->name) + "." + std::string(n.name))) return true;
      }
    } else {
      for (const ImportedName& n : s->imports) {
        if (covers(n.name)) return true;
      }
    }
  }
  return false;
}

}  // namespace pointsman::audit::python
