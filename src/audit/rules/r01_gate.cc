// SPDX-License-Identifier: Apache-2.0
//
// Row 1. Style: data flow inside one function.
#include "audit/rule.h"
#include "audit/rules/words.h"

namespace pointsman::audit::rules {
namespace {

using python::Expr;
using python::ExprKind;
using python::Stmt;

bool is_function_of_torch(const Expr& call, std::string_view name) {
  if (!call.is(ExprKind::kCall) || call.last_name() != name) return false;
  if (!call.full_name.empty()) return python::is_under(call, "torch");
  return call.callee()->is(ExprKind::kAttribute);  // logits.softmax(...)
}
bool is_top_k(const Expr& e) { return is_function_of_torch(e, "topk"); }
// Also modules and functions called through a name: self.softmax(x), scoring_func(x) say nothing and are left out.
constexpr auto is_softmax = [](const Expr& e) {
  return is_function_of_torch(e, "softmax") || (e.is(ExprKind::kCall) && python::is_under(e, "torch") && e.last_name().ends_with("softmax") && !e.last_name().ends_with("log_softmax"));
};
constexpr auto is_other_score = [](const Expr& e) { return is_function_of_torch(e, "sigmoid") || is_function_of_torch(e, "softplus"); };

const Expr* tensor_of(const Expr& call) {
  if (!call.full_name.empty()) return call.argument(0, "input");
  return call.callee()->children.empty() ? nullptr : call.callee()->children[0];
}

// What speaks for experts: names of the function, its class, k, the tensors, and what becomes of the indices.
int evidence(const Expr& top_k, const Stmt* function, const python::Module& m) {
  int n = 0;
  const Stmt* owner = python::enclosing_class(top_k);
  n += (function && is_moe_name(function->name)) || (owner && is_moe_name(owner->name));
  const Expr* k = top_k.argument(top_k.full_name.empty() ? 0 : 1, "k");
  n += k && python::find_within(*k, [](const Expr& e) { return (e.is(ExprKind::kName) || e.is(ExprKind::kAttribute)) && is_top_k_name(e.text); });
  const auto moe_reference = [](const Expr& e) { return (e.is(ExprKind::kName) || e.is(ExprKind::kAttribute)) && is_moe_name(e.text); };
  const Expr* x = tensor_of(top_k);
  n += x && python::flows_from(*x, moe_reference);
  if (top_k.stmt) {
    for (const Expr* t : top_k.stmt->targets) n += python::find_within(*t, moe_reference) != nullptr;
  }
  for (const Expr* c : m.calls()) {
    if (python::enclosing_function(*c) != function || !is_one_of(c->last_name(), {"one_hot", "bincount", "histc"})) continue;
    const Expr* a = c->full_name.empty() ? c->callee() : c->positional(0);
    if (a && python::flows_from(*a, [&](const Expr& e) { return &e == &top_k; })) {
      ++n;
      break;
    }
  }
  return n;
}

bool is_sampling(const Expr& top_k, const Stmt* function, const python::Module& m) {
  if (function && is_sampling_name(function->name)) return true;
  const Expr* x = tensor_of(top_k);
  if (x && python::find_within(*x, [](const Expr& e) { return (e.is(ExprKind::kName) || e.is(ExprKind::kAttribute)) && is_sampling_name(e.text); })) return true;
  for (const Expr* c : m.calls()) {
    if (python::enclosing_function(*c) == function && c->last_name() == "multinomial") return true;
  }
  return false;
}

void python_file(const python::Module& m, Report& out) {
  for (const Expr* call : m.calls()) {
    if (!is_top_k(*call)) continue;
    const Stmt* function = python::enclosing_function(*call);
    const Expr* x = tensor_of(*call);
    if (!x) continue;
    const Expr* softmax = python::flows_from(*x, is_softmax);
    const Expr* other = softmax ? nullptr : python::flows_from(*x, is_other_score);
    const Expr* after = nullptr;
    for (const Expr* c : m.calls()) {
      if (softmax || other || after) break;
      if (!is_softmax(*c) && !is_other_score(*c)) continue;
      if (python::enclosing_function(*c) != function) continue;
      const Expr* a = tensor_of(*c);
      if (a && python::flows_from(*a, [&](const Expr& e) { return &e == call; })) after = c;
    }
    const Expr* score = softmax ? softmax : other ? other : after;
    if (!score || is_sampling(*call, function, m)) continue;
    const int n = evidence(*call, function, m);
    if (n == 0) continue;
    const bool resolved = call->resolution == python::Resolution::kImported && score->resolution == python::Resolution::kImported;
    const Confidence confidence = n >= 2 ? (resolved ? Confidence::kCertain : Confidence::kLikely) : Confidence::kHint;
    Finding& f = out.add(*call, confidence, "the gate is made of separate kernels (score, top-k, normalisation); CANN has it as one operator");
    f.related.push_back(out.related(score->span, score == after ? "scores after the choice" : "scores before the choice"));
    if (other || (after && is_other_score(*after))) {
      f.fix = "torch_npu.npu_moe_gating_top_k(x, k, bias=..., norm_type=1 for sigmoid, 2 for sqrt(softplus), ...): its bias selects only, the weights come from the unbiased scores and are always renormalised.";
    } else {
      f.fix = std::string("torch_npu.npu_moe_gating_top_k_softmax_v2(x, k=..., renorm=") + (after ? "1" : "0") + ") for this order (" + (after ? "top-k, then softmax" : "softmax, then top-k; renormalise the weights yourself where the model does") +
              "); grouped or biased gates: npu_moe_gating_top_k. Compare chosen experts as sets: the order of ties is not specified.";
    }
  }
}

void cpp_file(const cpp::File& f, Report& out) {
  for (const cpp::Function& fn : f.functions()) {
    if (!fn.is_kernel) continue;
    const std::string name = lower(fn.name);
    const bool gate = (contains(name, "topk") && (contains(name, "softmax") || contains(name, "gat") || contains(name, "sigmoid"))) || contains(name, "moe_fused_gate") || contains(name, "grouped_topk");
    if (gate) out.add(fn.name_span, Confidence::kLikely, "this kernel is a gate of experts; CANN has aclnnMoeGatingTopKSoftmaxV2 and aclnnMoeGatingTopK").fix = "aclnnMoeGatingTopKSoftmaxV2 (softmax) or aclnnMoeGatingTopK (sigmoid, groups, bias).";
  }
}

}  // namespace

const Rule& r01_gate() {
  static constexpr Rule kRule = {
      .id = "R01",
      .name = "gate",
      .title = "Gate of experts from separate operators",
      .severity = Severity::kPerformance,
      .why = "Score, top-k and normalisation of a gate are several launches over tiny tensors; on an NPU the launches cost more than the arithmetic. Fused operators exist for "
             "softmax gates (either order of softmax and top-k) and for sigmoid or grouped gates with a selection bias.",
      .fix = "torch_npu.npu_moe_gating_top_k_softmax_v2 or torch_npu.npu_moe_gating_top_k, chosen by score function and order.",
      .versions = "operators on A2, A3 and 950; norm_type 2 in newer versions only",
      .source = "pitfall table, row 1; op-plugin signatures; vllm-ascend #1355 and #1902 (local gain seen, about one percent end to end)",
      .python = python_file,
      .cpp = cpp_file,
  };
  return kRule;
}

}  // namespace pointsman::audit::rules
