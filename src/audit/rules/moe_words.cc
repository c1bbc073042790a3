// SPDX-License-Identifier: Apache-2.0
#include "audit/rules/moe_words.h"

#include <algorithm>
#include <cctype>

namespace pointsman::audit::rules {

using python::Expr;
using python::ExprKind;
using python::Module;
using python::Stmt;
using python::StmtKind;

bool is_expert_ids(std::string_view name) {
  return contains_any(name, {"topk_id", "top_k_id", "topk_ind", "top_k_ind", "topk_expert", "top_k_expert", "topk_idx", "selected_expert", "expert_id", "expert_ind",
                        "experts_id", "experts_ind", "routing_map", "routing_ind", "expert_assign", "top_expert", "chosen_expert", "gate_idx", "route_ind", "expert_choice"});
}

bool is_expert_name(std::string_view name) {
  const std::string s = lower(name);
  if ((contains(s, "expert") && !contains(s, "expertise")) || is_expert_ids(name)) return true;
  // "moe" as a word of its own: MoE, FusedMoE, moe_layer, DeepseekV3MoE, SparseMoeBlock, fmoe.
  for (size_t at = s.find("moe"); at != s.npos; at = s.find("moe", at + 1)) {
    const bool starts = at == 0 || name[at] == 'M' || s[at - 1] == '_' || s[at - 1] == '.' || (at == 1 && s[0] == 'f');
    const bool ends = at + 3 == s.size() || !(s[at + 3] >= 'a' && s[at + 3] <= 'z') || (name[at + 3] >= 'A' && name[at + 3] <= 'Z');
    if (starts && ends) return true;
  }
  return false;
}

bool is_count_word(std::string_view name) {
  return contains_any(name, {"count", "split", "per_expert", "num_tokens", "tokens_per", "sizes", "num_recv", "num_send", "n_tokens"});
}

bool mentions(const Expr& e, bool (*word)(std::string_view)) {
  return python::find_within(e, [word](const Expr& x) {
           return (x.is(ExprKind::kName) || x.is(ExprKind::kAttribute) || x.is(ExprKind::kKeyword)) && word(x.text);
         }) != nullptr;
}

bool is_moe_function(const Stmt& function) {
  if (is_expert_name(function.name)) return true;
  return std::any_of(function.parameters.begin(), function.parameters.end(), [](const auto& p) { return is_expert_name(p.name); });
}

bool in_moe_code(const Expr& e) {
  if (mentions(e, is_expert_name)) return true;
  for (const Stmt* p = e.stmt; p; p = p->parent) {
    if (p->kind == StmtKind::kFunction && is_moe_function(*p)) return true;
    if (p->kind == StmtKind::kClass && is_expert_name(p->name)) return true;
    if (p->kind == StmtKind::kFor && std::any_of(p->exprs.begin(), p->exprs.end(), [](const Expr* x) { return mentions(*x, is_expert_name); })) return true;
  }
  return false;
}

const Expr* same_values(const Expr& tensor, python::Predicate predicate) {
  std::vector<const Expr*> queue{&tensor};
  for (size_t i = 0; i < queue.size() && i < 64; ++i) {
    const Expr* at = queue[i];
    if (predicate(*at)) return at;
    if (at->is(ExprKind::kCall)) {
      if (at->callee()->is(ExprKind::kAttribute) && at->full_name.empty()) {
        // x.view(-1), x.to(...): the values of x.
        if (is_one_of(at->last_name(), {"view", "reshape", "flatten", "contiguous", "to", "int", "long", "bool", "t", "transpose", "permute", "clone", "detach", "cpu", "squeeze", "unsqueeze",
                                        "ravel", "numpy", "type", "expand", "topk", "sort", "argsort", "view_as", "cuda", "npu"}))
          queue.push_back(at->callee()->children[0]);
      } else if (is_one_of(at->full_name, {"torch.flatten", "torch.reshape", "torch.cat", "torch.concat", "torch.squeeze", "torch.clone"}) && at->positional(0)) {
        queue.push_back(at->positional(0));
      }
    } else if (at->is(ExprKind::kSubscript)) {
      queue.push_back(at->children[0]);
    } else if (at->is(ExprKind::kBinary) || at->is(ExprKind::kTuple) || at->is(ExprKind::kList)) {
      for (const Expr* c : at->children) queue.push_back(c);
    } else if (at->is(ExprKind::kName) || at->is(ExprKind::kAttribute)) {
      for (const auto* d : python::definitions_of(*at)) {
        if (d->value && d->kind == python::DefinitionKind::kAssign) queue.push_back(d->value);
      }
      // x.T, result.indices
      if (at->is(ExprKind::kAttribute)) queue.push_back(at->children[0]);
    }
  }
  return nullptr;
}

namespace {
// The choice of keys by sparse attention, of tokens by sampling.
bool chooses_something_else(const Expr& e) {
  const auto other = [](std::string_view name) {
    const std::string s = lower(name);
    return contains(s, "attention") || contains(s, "attn") || contains(s, "indexer") || contains(s, "dsa") || contains(s, "sampl") || contains(s, "sparse_mla");
  };
  for (const Stmt* p = e.stmt; p; p = p->parent) {
    if ((p->kind == StmtKind::kFunction || p->kind == StmtKind::kClass) && other(p->name)) return true;
  }
  return false;
}
}  // namespace

const Expr* expert_ids_of(const Expr& tensor) {
  const Expr* found = same_values(tensor, [](const Expr& e) {
    if (e.is(ExprKind::kName) || e.is(ExprKind::kAttribute)) return is_expert_ids(e.text);
    return e.is(ExprKind::kCall) && e.last_name() == "topk";
  });
  if (!found) return nullptr;
  if (found->is(ExprKind::kCall)) return in_moe_code(tensor) ? found : nullptr;
  const std::string name = lower(found->text);
  if (contains(name, "expert") || contains(name, "routing") || contains(name, "route")) return found;
  return chooses_something_else(tensor) ? nullptr : found;
}

const Expr* index_use(const Module& m, const Expr& source) {
  const Stmt* f = python::enclosing_function(source);
  const auto is_source = [&](const Expr& x) { return &x == &source; };
  int searches = 0;
  for (const Expr* s : m.subscripts()) {
    // Not before it, but for the loop around it.
    if (s->span.end < source.span.begin && !python::in_loop(source)) continue;
    if (python::enclosing_function(*s) != f || s->children.size() < 2) continue;
    if (++searches > kMaxSearches) break;
    // sort(x)[1] takes the indices out of the result; it does not index with them.
    if (python::flows_from(*s->children[1], is_source)) return s;
  }
  searches = 0;
  for (const Expr* c : m.calls()) {
    if (python::enclosing_function(*c) != f || c == &source) continue;
    const std::string_view name = c->last_name();
    if (name != "index_select" && name != "gather" && name != "take" && name != "take_along_dim" && name != "index_copy_" && name != "index_add_" && name != "index_add" &&
        name != "scatter_" && name != "permute_tokens")
      continue;
    if (++searches > kMaxSearches) break;
    for (size_t i = 1; i < c->children.size(); ++i) {
      // The source of the values is no index: gather(x, 0, index).
      if (i == 1 && c->full_name.starts_with("torch.")) continue;
      if (python::flows_from(*c->children[i], is_source)) return c;
    }
  }
  return nullptr;
}

bool is_returned(const Module& m, const Expr& source) {
  const Stmt* f = python::enclosing_function(source);
  if (!f) return false;
  for (const Stmt* s : m.statements()) {
    if (s->kind != StmtKind::kReturn || python::enclosing_function(s) != f) continue;
    for (const Expr* e : s->exprs) {
      const auto reaches = [&](const Expr& x) { return python::flows_from(x, [&](const Expr& y) { return &y == &source; }) != nullptr; };
      if (e->is(ExprKind::kTuple) ? std::any_of(e->children.begin(), e->children.end(), [&](const Expr* c) { return reaches(*c); }) : reaches(*e)) return true;
    }
  }
  return false;
}

bool mentions(const cpp::File& file, cpp::TokenRange range, bool (*word)(std::string_view)) {
  for (uint32_t i = range.first; i < range.last; ++i) {
    if (file.tokens()[i].kind == cpp::TokenKind::kIdentifier && word(file.text(i))) return true;
  }
  return false;
}

bool is_moe_function(const cpp::File& file, const cpp::Function& f) {
  if (is_expert_name(f.name)) return true;
  // Parameters: words of the head.
  const std::string_view head = file.unit().slice(f.head);
  size_t begin = head.npos;
  for (size_t i = 0; i <= head.size(); ++i) {
    const char c = i < head.size() ? head[i] : ' ';
    const bool word = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
    if (word && begin == head.npos) begin = i;
    if (!word && begin != head.npos) {
      if (is_expert_name(head.substr(begin, i - begin))) return true;
      begin = head.npos;
    }
  }
  return false;
}

Span name_span(const Unit& unit, Span head, std::string_view name) {
  const std::string_view text = unit.slice(head);
  const size_t colon = name.rfind(':');
  if (colon != name.npos) name.remove_prefix(colon + 1);
  // The name before its parameters, not the same word in a template or a decorator.
  for (size_t at = name.empty() ? text.npos : text.find(name); at != text.npos; at = text.find(name, at + 1)) {
    const size_t end = at + name.size();
    const bool starts = at == 0 || !(std::isalnum(static_cast<unsigned char>(text[at - 1])) || text[at - 1] == '_' || text[at - 1] == '@' || text[at - 1] == '.');
    if (starts && end < text.size() && (text[end] == '(' || text[end] == ' '))
      return {head.begin + static_cast<uint32_t>(at), head.begin + static_cast<uint32_t>(end)};
  }
  return head;
}

bool is_test_path(std::string_view path) {
  const size_t slash = path.rfind('/');
  const std::string_view name = slash == path.npos ? path : path.substr(slash + 1);
  if (name.starts_with("test_") || contains(name, "_test.") || name == "conftest.py") return true;
  const auto folder = [&](std::string_view f) { return path.starts_with(f.substr(1)) || contains(path, f); };
  return folder("/tests/") || folder("/test/") || folder("/testing/") || folder("/unit_tests/");
}

}  // namespace pointsman::audit::rules
