// SPDX-License-Identifier: Apache-2.0
//
// X8. Style: data flow from a choice to a comparison.
#include "audit/rule.h"
#include "audit/rules/words.h"

namespace pointsman::audit::rules {
namespace {

using python::Expr;
using python::ExprKind;

constexpr auto is_choice = [](const Expr& e) -> bool {
  // torch.sort(x).values: equal whatever the order of ties.
  if (e.parent && e.parent->is(ExprKind::kAttribute) && e.parent->text == "values") return false;
  if (e.parent && e.parent->is(ExprKind::kSubscript) && e.parent->children[0] == &e && e.parent->children[1]->is(ExprKind::kNumber) && e.parent->children[1]->text == "0") return false;
  return e.is(ExprKind::kCall) && is_one_of(e.last_name(), {"topk", "argsort", "sort", "argmax", "npu_moe_gating_top_k", "npu_moe_gating_top_k_softmax", "npu_moe_gating_top_k_softmax_v2"}) &&
         (e.full_name.empty() ? e.callee()->is(ExprKind::kAttribute) : python::is_under(e, "torch") || python::is_under(e, "torch_npu"));
};

// "indices", "topk_ids", "expert_idx": one of the words of a name says index.
bool is_index_name(std::string_view name) {
  return has_word(name, {"ind", "inds", "idx", "idxs", "index", "indices", "ids", "indexes"});
}

bool names_index(const Expr& e) {
  return python::find_within(e, [](const Expr& x) { return (x.is(ExprKind::kName) || x.is(ExprKind::kAttribute)) && is_index_name(x.text); }) != nullptr;
}

bool names_reference(const Expr& e) {
  return python::find_within(e, [](const Expr& x) {
           return (x.is(ExprKind::kName) || x.is(ExprKind::kAttribute)) && contains_any(x.text, {"ref", "golden", "expect", "cuda", "npu", "gpu", "cpu", "torch_"});
         }) != nullptr;
}

// indices[0], of topk(...)[1] or `_, indices = topk(...)`: the value of the choice is compared, not its scores.
bool is_indices(const Expr& e) {
  return names_index(e) || python::find_within(e, [](const Expr& x) { return x.is(ExprKind::kAttribute) && x.text == "indices"; }) ||
         python::find_within(e, [](const Expr& x) { return x.is(ExprKind::kCall) && is_one_of(x.last_name(), {"argsort", "argmax"}); });
}

void check(const Expr& a, const Expr& b, const Expr& where, Report& out) {
  if (!is_indices(a) || !is_indices(b)) return;
  const Expr* ca = python::flows_from(a, is_choice);
  const Expr* cb = python::flows_from(b, is_choice);
  if (!ca && !cb) return;
  if (ca == cb) cb = nullptr;  // reference.to(ids.device)
  // A choice against anything else must at least be called a reference.
  if ((!ca || !cb) && !names_reference(a) && !names_reference(b)) return;
  Finding& f = out.add(where, Confidence::kLikely, "indices of two choices are compared for equality; where scores tie (or differ by rounding) another device may choose in another order");
  for (const Expr* c : {ca, cb}) {
    if (c) f.related.push_back(out.related(c->span, "a choice"));
  }
}

void python_file(const python::Module& m, Report& out) {
  for (const Expr* c : m.calls()) {
    if (is_one_of(c->full_name, {"torch.equal", "torch.allclose", "torch.testing.assert_close", "torch.testing.assert_allclose", "numpy.array_equal", "numpy.allclose",
                                 "numpy.testing.assert_array_equal", "numpy.testing.assert_equal", "numpy.testing.assert_allclose"}) ||
        (c->full_name.empty() && is_one_of(c->last_name(), {"assertTrue", "assertEqual", "assert_verbose_allclose", "assert_close"}))) {
      const Expr* a = c->positional(0);
      const Expr* b = c->positional(1);
      if (a && b) check(*a, *b, *c, out);
    }
  }
  // (a == b).all(), torch.all(a == b), assert a.tolist() == b.tolist()
  for (const Expr* c : m.compares()) {
    if (c->text != "==" || c->children.size() != 2) continue;
    const Expr* p = c->parent;
    while (p && p->is(ExprKind::kUnary)) p = p->parent;
    const bool reduced = p && (p->last_name() == "all" || (p->is(ExprKind::kCall) && p->last_name() == "all"));
    const bool asserted = c->stmt && c->stmt->kind == python::StmtKind::kAssert;
    if (reduced || asserted) check(*c->children[0], *c->children[1], *c, out);
  }
}

}  // namespace

const Rule& x08_tied_choices() {
  static constexpr Rule kRule = {
      .id = "X8",
      .name = "tied-choices",
      .title = "Chosen indices compared for equality",
      .severity = Severity::kWrongNumbers,
      .why = "The order of equal scores in a top-k or sort is not specified, neither by torch nor by the CANN operators, and a last-bit difference of two scores swaps a choice. "
             "A test of equal indices fails without an error in the model, or hides one behind a loosened test.",
      .fix = "Compare the chosen experts as sets, and allow a difference only where the margin between the last chosen and the first rejected score is below a stated tolerance.",
      .versions = "all",
      .source = "torch.topk documentation; tilelang-ascend #1726 (accuracy tests skip indices on ties)",
      .python = python_file,
  };
  return kRule;
}

}  // namespace pointsman::audit::rules
