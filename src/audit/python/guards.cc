// SPDX-License-Identifier: Apache-2.0
//
// Conditions, and what they say about the device; definitions that reach a use.
#include <algorithm>

#include "audit/python/query.h"

namespace pointsman::audit::python {
namespace {

bool is_scope(const Stmt& s) { return s.kind == StmtKind::kFunction || s.kind == StmtKind::kClass; }

// Conditions that hold because of the clause that `s` is.
void clause_guards(const Stmt& s, std::vector<Guard>& out) {
  if ((s.kind == StmtKind::kIf || s.kind == StmtKind::kElif || s.kind == StmtKind::kWhile) && !s.exprs.empty()) out.push_back({s.exprs[0], false});
  if (s.kind != StmtKind::kElif && s.kind != StmtKind::kElse) return;
  for (const Stmt* c = s.previous_clause; c && (c->kind == StmtKind::kIf || c->kind == StmtKind::kElif); c = c->previous_clause) {
    if (!c->exprs.empty()) out.push_back({c->exprs[0], true});
  }
}

void statement_guards(const Stmt* s, std::vector<Guard>& out) {
  for (const Stmt* at = s; at; at = at->parent) {
    if (at != s) clause_guards(*at, out);
    int n = 0;
    for (const Stmt* exit = at->last_exit; exit && n < 16; exit = exit->last_exit, ++n) out.push_back({exit->exprs[0], true});
    if (at != s && is_scope(*at)) return;
  }
}

enum class Device { kNone, kCuda, kNpu };

bool contains(std::string_view s, std::string_view part) { return s.find(part) != s.npos; }

// What a string in a comparison stands for.
Device device_of_text(std::string_view s) {
  if (s == "cuda" || s == "nccl" || s == "gpu" || s.starts_with("cuda:") || s == "CUDA" || s == "GPU" || s == "nvidia" || s == "NVIDIA") return Device::kCuda;
  if (s == "npu" || s == "hccl" || s.starts_with("npu:") || s == "ascend" || s == "Ascend" || s == "NPU" || s == "privateuseone") return Device::kNpu;
  return Device::kNone;
}

// What holds when `e` is true. `inverted` is set when `e` true means "not that device".
Device device_of_condition(const Expr& e, bool& inverted, int depth = 0) {
  if (depth > 6) return Device::kNone;
  if (e.is(ExprKind::kUnary) && e.text == "not" && !e.children.empty()) {
    const Device d = device_of_condition(*e.children[0], inverted, depth + 1);
    inverted = !inverted;
    return d;
  }
  if (e.is(ExprKind::kCompare)) {
    Device d = Device::kNone;
    for (const Expr* c : e.children) {
      const Expr* text = find_within(*c, [](const Expr& x) { return x.is(ExprKind::kString) && device_of_text(x.text) != Device::kNone; });
      if (text) d = device_of_text(text->text);
    }
    inverted = e.text == "!=" || e.text == "not in" || e.text == "is not";
    // x is not None, torch.version.cuda is not None: what x says.
    const bool none = std::any_of(e.children.begin(), e.children.end(), [](const Expr* c) { return c->is(ExprKind::kConstant) && c->text == "None"; });
    if (d == Device::kNone && none) {
      bool inner = false;
      d = device_of_condition(*e.children[0], inner, depth + 1);
      inverted = e.text == "is" || e.text == "==";
    }
    return d;
  }
  if (e.is(ExprKind::kBool) && e.text == "and") {
    for (const Expr* c : e.children) {
      bool inner = false;
      const Device d = device_of_condition(*c, inner, depth + 1);
      if (d != Device::kNone) {
        inverted = inner;
        return d;
      }
    }
    return Device::kNone;
  }
  if (e.is(ExprKind::kCall)) {
    if (e.last_name() == "startswith" && e.positional(0) && e.positional(0)->is(ExprKind::kString)) return device_of_text(e.positional(0)->text);
    if (e.last_name() == "hasattr") {
      const Expr* name = e.positional(1);
      return name && name->is(ExprKind::kString) ? device_of_text(name->text) : Device::kNone;
    }
    return device_of_condition(*e.callee(), inverted, depth + 1);
  }
  if (e.is(ExprKind::kName) || e.is(ExprKind::kAttribute)) {
    const std::string name = e.full_name.empty() ? dotted(e) : std::string(e.full_name);
    if (is_under(name, "torch.cuda") || name == "torch.version.cuda" || contains(name, "is_cuda") || contains(name, "use_cuda") ||
        contains(name, "has_cuda") || contains(name, "cuda_available") || contains(name, "is_nvidia"))
      return Device::kCuda;
    if (is_under(name, "torch.npu") || is_under(name, "torch_npu") || contains(name, "is_npu") || contains(name, "use_npu") ||
        contains(name, "has_npu") || contains(name, "npu_available") || contains(name, "is_ascend") || contains(name, "IS_NPU") ||
        contains(name, "is_torch_npu"))
      return Device::kNpu;
    if (e.is(ExprKind::kAttribute) && name.empty()) return Device::kNone;
  }
  return Device::kNone;
}

bool only_on(const std::vector<Guard>& list, Device wanted) {
  for (const Guard& g : list) {
    bool inverted = false;
    const Device d = device_of_condition(*g.condition, inverted);
    if (d == Device::kNone) continue;
    // Not on an NPU is on CUDA for whom asks; not on CUDA is no proof of an NPU.
    const bool holds = inverted == g.negated;
    if (holds && d == wanted) return true;
    if (!holds && wanted == Device::kCuda && d == Device::kNpu) return true;
  }
  return false;
}

}  // namespace

std::vector<Guard> guards(const Stmt& s) {
  std::vector<Guard> out;
  statement_guards(&s, out);
  return out;
}

std::vector<Guard> guards(const Expr& e) {
  std::vector<Guard> out;
  for (const Expr* c = &e; c->parent; c = c->parent) {
    const Expr& p = *c->parent;
    if (p.is(ExprKind::kConditional) && c != p.children[1]) out.push_back({p.children[1], c == p.children[2]});
    if (p.is(ExprKind::kBool) && c == p.children[1]) out.push_back({p.children[0], p.text == "or"});
  }
  if (e.stmt) {
    statement_guards(e.stmt, out);
    // The condition of an elif is evaluated when those before it failed.
    if (e.stmt->kind == StmtKind::kElif) {
      for (const Stmt* c = e.stmt->previous_clause; c && (c->kind == StmtKind::kIf || c->kind == StmtKind::kElif); c = c->previous_clause) {
        if (!c->exprs.empty()) out.push_back({c->exprs[0], true});
      }
    }
  }
  return out;
}

bool runs_only_on_cuda(const Expr& e) { return only_on(guards(e), Device::kCuda); }
bool runs_only_on_cuda(const Stmt& s) { return only_on(guards(s), Device::kCuda); }
bool runs_only_on_npu(const Expr& e) { return only_on(guards(e), Device::kNpu); }

namespace {

bool is_within(const Stmt* inner, const Stmt* outer) {
  for (const Stmt* p = inner; p; p = p->parent) {
    if (p == outer) return true;
  }
  return false;
}

// Does the definition hold on every way to the use? (Its block encloses the use, and it is no mere change.)
bool replaces(const Definition& d, const Stmt* use) {
  if (d.kind == DefinitionKind::kAugment) return false;
  if (d.kind == DefinitionKind::kParameter) return true;
  const Stmt* block = d.stmt->parent;
  return block == nullptr || is_within(use, block);
}

void collect(const Scope& scope, std::string_view name, const Expr& use, bool ordered, std::vector<const Definition*>& out) {
  const auto it = scope.by_name.find(name);
  if (it == scope.by_name.end()) return;
  const std::vector<uint32_t>& list = it->second;
  constexpr size_t kMax = 24;
  if (!ordered) {
    for (size_t i = list.size(); i-- > 0 && out.size() < kMax;) out.push_back(&scope.definitions[list[i]]);
    return;
  }
  // Sorted by position (resolver.cc).
  const auto after = std::partition_point(list.begin(), list.end(), [&](uint32_t k) { return scope.definitions[k].position <= use.span.begin; });
  for (auto k = after; k != list.begin() && out.size() < kMax;) {
    const Definition& d = scope.definitions[*--k];
    out.push_back(&d);
    if (replaces(d, use.stmt)) break;
  }
  // Round the loops: what follows in their bodies.
  const Stmt* outermost = nullptr;
  for (const Stmt* p = use.stmt; p && p->kind != StmtKind::kFunction && p->kind != StmtKind::kClass; p = p->parent) {
    if (p->kind == StmtKind::kFor || p->kind == StmtKind::kWhile) outermost = p;
  }
  if (!outermost) return;
  for (auto k = after; k != list.end() && scope.definitions[*k].position <= outermost->span.end && out.size() < kMax; ++k) out.push_back(&scope.definitions[*k]);
}

}  // namespace

std::vector<const Definition*> definitions_of(const Expr& e) {
  std::vector<const Definition*> out;
  if (!e.stmt || !e.stmt->scope) return out;
  std::string chain;
  std::string_view name = e.text;
  if (e.is(ExprKind::kAttribute)) {
    chain = dotted(e);
    name = chain;
  } else if (!e.is(ExprKind::kName)) {
    return out;
  }
  if (name.empty()) return out;
  const Scope* scope = e.stmt->scope;
  collect(*scope, name, e, true, out);
  if (!out.empty()) return out;
  if (name.starts_with("self.") || name.starts_with("cls.")) {
    // Any method of the class may have set it.
    const Stmt* owner = enclosing_class(e);
    if (!owner) return out;
    for (const Stmt* method : owner->body) {
      if (method->kind == StmtKind::kFunction && method->inner && method->inner != scope) collect(*method->inner, name, e, false, out);
    }
    const std::string_view member = name.substr(name.find('.') + 1);
    if (out.empty() && member.find('.') == member.npos && owner->inner) collect(*owner->inner, member, e, false, out);
    return out;
  }
  for (const Scope* s = scope->parent; s && out.empty(); s = s->parent) {
    if (s->owner && s->owner->kind == StmtKind::kClass) continue;
    collect(*s, name, e, false, out);
  }
  return out;
}

}  // namespace pointsman::audit::python
