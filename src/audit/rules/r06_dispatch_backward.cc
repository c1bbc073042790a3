// SPDX-License-Identifier: Apache-2.0
//
// Row 6: an autograd function whose backward sends gradients back through the all-to-all of its forward.
#include "audit/rule.h"
#include "audit/rules/collectives.h"
#include "audit/rules/moe_words.h"

namespace pointsman::audit::rules {
namespace {

using python::Expr;
using python::ExprKind;
using python::Stmt;
using python::StmtKind;

struct Exchange {
  const Expr* call = nullptr;
  AllToAll a;
};

// The all-to-all of a method, or a call of the class's own apply.
Exchange exchange_in(const python::Module& m, const Stmt& method, std::string_view class_name) {
  Exchange own;
  for (const Expr* c : m.calls()) {
    if (python::enclosing_function(*c) != &method) continue;
    if (const auto a = all_to_all(*c)) return {c, *a};
    if (c->last_name() == "apply" && c->callee()->is(ExprKind::kAttribute) && c->callee()->children[0]->last_name() == class_name) own = {c, {}};
    if (!own.call && contains_any(c->last_name(), {"all_to_all", "alltoall", "a2a"})) own = {c, {}};
  }
  return own;
}

std::string text_of(const python::Module& m, const Expr* e) {
  std::string s(m.unit().slice(e->span));
  // ctx.input_split_sizes and input_split_sizes are one thing.
  const size_t dot = s.rfind('.');
  return dot == s.npos ? s : s.substr(dot + 1);
}

void python_file(const python::Module& m, Report& out) {
  int searches = 0;
  for (const Stmt* c : m.classes()) {
    const Expr* base = nullptr;
    for (const Expr* e : c->exprs) {
      if (e->full_name == "torch.autograd.Function" || e->full_name == "torch.autograd.function.Function" || (e->full_name.empty() && e->last_name() == "Function")) base = e;
    }
    if (!base) continue;
    const Stmt *forward = nullptr, *backward = nullptr;
    for (const Stmt* s : c->body) {
      if (s->kind != StmtKind::kFunction) continue;
      if (s->name == "forward") forward = s;
      if (s->name == "backward") backward = s;
    }
    if (!forward || !backward || python::runs_only_on_cuda(*c)) continue;
    if (++searches > kMaxSearches) break;
    const Exchange there = exchange_in(m, *forward, c->name), back = exchange_in(m, *backward, c->name);
    if (!there.call || !back.call) continue;
    const auto splits = [](std::string_view n) { return contains_any(n, {"split", "send_count", "recv_count", "output_sizes", "input_sizes"}); };
    bool counted = there.a.output_splits || there.a.input_splits || there.a.has_lists;
    for (const auto& p : forward->parameters) counted = counted || splits(p.name);
    if (!counted && !is_expert_name(c->name) && !is_moe_function(*forward)) continue;  // sequence parallelism exchanges heads
    const bool resolved = base->resolution == python::Resolution::kImported && there.a.is_torch && there.call->resolution == python::Resolution::kImported;
    const bool same = there.a.is_torch && back.a.is_torch && there.a.output_splits && there.a.input_splits && back.a.output_splits && back.a.input_splits &&
                      text_of(m, there.a.output_splits) == text_of(m, back.a.output_splits) && text_of(m, there.a.input_splits) == text_of(m, back.a.input_splits) &&
                      text_of(m, there.a.output_splits) != text_of(m, there.a.input_splits);
    const Confidence confidence = resolved ? Confidence::kCertain : Confidence::kLikely;
    if (same) {
      Finding& f = out.add(*back.call, confidence, "backward passes the split sizes in the order of forward; gradients go back with input and output sizes swapped");
      f.severity = Severity::kWrongNumbers;
      f.fix = "Pass the forward's input sizes as output_split_sizes and its output sizes as input_split_sizes.";
      f.related.push_back(out.related(there.call->span, "the exchange of forward"));
      continue;
    }
    Finding& f = out.add(c->header, confidence, "gradients of routed tokens travel through an all-to-all of their own that nothing overlaps");
    f.related.push_back(out.related(back.call->span, "the exchange of backward"));
  }
}

void cpp_file(const cpp::File& f, Report& out) {
  // struct X : public torch::autograd::Function<X> { static forward(...) ...; static backward(...) ... }
  bool derives = false;
  for (uint32_t i = 0; i + 4 < f.tokens().size() && !derives; ++i)
    derives = f.text(i) == "autograd" && f.text(i + 1) == "::" && f.text(i + 2) == "Function" && f.text(i + 3) == "<";
  if (!derives) return;
  const auto exchanges = [&](const cpp::Function& fn) {
    for (const cpp::Call& c : f.calls()) {
      if (c.token >= fn.first && c.token < fn.last && (contains_any(c.last, {"alltoall", "all_to_all"}) || c.last == "ncclSend")) return true;
    }
    return false;
  };
  bool forward = false;
  int searches = 0;
  for (const cpp::Function& fn : f.functions()) {
    const std::string_view name = std::string_view(fn.name).substr(fn.name.rfind(':') == fn.name.npos ? 0 : fn.name.rfind(':') + 1);
    if ((name == "forward" || name == "backward") && ++searches > kMaxSearches) return;
    if (name == "forward") forward = exchanges(fn);
    if (name == "backward" && forward && exchanges(fn)) out.add(fn.head, Confidence::kLikely, "gradients of routed tokens travel through an all-to-all of their own that nothing overlaps");
  }
}

}  // namespace

const Rule& r06_dispatch_backward() {
  static constexpr Rule kRule = {
      .id = "R06",
      .name = "dispatch-backward",
      .title = "Backward of the dispatch by a second all-to-all",
      .severity = Severity::kPerformance,
      .why = "In training the exchange is paid twice. Fused forms exist for training too: the product of the experts and the exchange are one operator in both directions. A backward that does "
             "not swap the split sizes works while the loads are equal and scrambles gradients when they are not.",
      .fix = "MindSpeed's MoE communication features, or torch_npu.npu_alltoallv_gmm in forward with npu_gmm_alltoallv in backward (and the reverse); keep input and output split sizes swapped.",
      .versions = "npu_alltoallv_gmm and npu_gmm_alltoallv: A3 and 950DT, not A2",
      .source = "pitfall table, row 6 (corrected: not only for inference); MindSpeed mc2 feature; CANN operator pages AlltoAllvGroupedMatMul, GroupedMatMulAlltoAllv",
      .python = python_file,
      .cpp = cpp_file,
  };
  return kRule;
}

}  // namespace pointsman::audit::rules
