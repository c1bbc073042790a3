// SPDX-License-Identifier: Apache-2.0
//
// Row 3: results of experts are added back to their tokens by scatter or index additions, or put back by the inverse of a sort.
#include <set>

#include "audit/rule.h"
#include "audit/rules/moe_words.h"

namespace pointsman::audit::rules {
namespace {

using python::Expr;
using python::ExprKind;
using python::Stmt;
using python::StmtKind;

constexpr const char* kFix =
    "torch_npu.npu_moe_token_unpermute(permuted, sorted_indices, probs=...) after npu_moe_token_permute, or torch_npu.npu_moe_finalize_routing after npu_moe_init_routing; "
    "its drop_pad_mode says whether the order counts by column (0, 1) or by row (2, 3) and must match the operator that made it.";

Confidence confidence_of(const Expr& call) { return call.resolution == python::Resolution::kImported ? Confidence::kCertain : Confidence::kLikely; }

// Counting (adding ones) is not putting rows back.
bool adds_ones(const Expr& source) {
  return python::flows_from(source, [](const Expr& e) { return e.is(ExprKind::kCall) && is_one_of(e.last_name(), {"ones", "ones_like", "bincount", "new_ones"}); }) != nullptr ||
         source.is(ExprKind::kNumber);
}

// Names of arrays of numbers per expert, not of rows: counts, masks, losses.
bool is_statistic(const Expr& target) {
  return python::find_within(target, [](const Expr& e) {
           return (e.is(ExprKind::kName) || e.is(ExprKind::kAttribute)) &&
                  (contains_any(e.text, {"count", "load", "fraction", "freq", "hist", "mask", "prob", "logit", "score", "loss", "usage", "num_", "bias", "key"}) || e.text == "ce" || e.text == "c_e");
         }) != nullptr;
}

void additions(const python::Module& m, Report& out) {
  for (const Expr* call : m.calls()) {
    if (!is_one_of(call->last_name(), {"index_add_", "index_add", "scatter_add_", "scatter_add", "scatter_reduce_", "scatter_reduce"}) || python::runs_only_on_cuda(*call)) continue;
    const bool function = python::is_under(*call, "torch");
    if (!function && (!call->full_name.empty() || !call->callee()->is(ExprKind::kAttribute))) continue;
    const Expr* target = function ? call->argument(0, "input") : call->callee()->children[0];
    const Expr* index = call->argument(function ? 2 : 1, "index");
    const bool is_index_add = call->last_name().starts_with("index");
    const Expr* source = call->argument(function ? 3 : 2, is_index_add ? "source" : "src");
    if (!target || !index || !source || is_statistic(*target) || adds_ones(*source)) continue;
    const bool experts = in_moe_code(*call) || python::flows_from(*index, [](const Expr& e) { return e.is(ExprKind::kName) && is_expert_ids(e.text); });
    if (!experts) continue;
    Finding& f = out.add(*call, confidence_of(*call), "results of experts are added to their tokens by index: many small scattered writes, and the order of the additions, so the last bits, may differ from run to run");
    f.fix = kFix;
    if (const Stmt* loop = python::enclosing_loop(*call)) f.related.push_back(out.related(loop->header, "once for every turn of this loop"));
  }
}

// y[idx] += expert(x[idx]) * w[idx] in a loop over experts.
void element_additions(const python::Module& m, Report& out) {
  for (const Stmt* s : m.statements()) {
    if (s->kind != StmtKind::kAugAssign || s->text != "+=" || s->targets.empty() || !s->targets[0]->is(ExprKind::kSubscript) || !s->value || python::runs_only_on_cuda(*s)) continue;
    const Expr& target = *s->targets[0];
    if (!python::enclosing_loop(target) || is_statistic(*target.children[0]) || !in_moe_code(target)) continue;
    const Expr& index = *target.children[1];
    const Expr* search = python::flows_from(index, [](const Expr& e) {
      return (e.is(ExprKind::kCall) && is_one_of(e.last_name(), {"where", "nonzero", "argsort", "sort"})) || (e.is(ExprKind::kCompare) && e.text == "==");
    });
    if (!search || adds_ones(*s->value)) continue;
    Finding& f = out.add(target, Confidence::kLikely, "results of an expert are added to the rows of its tokens by index, expert by expert");
    f.fix = kFix;
    f.related.push_back(out.related(search->span, "the rows are found here"));
  }
}

// out[order] = results, x[order.argsort()]: the inverse of a sort of expert ids.
void inverses(const python::Module& m, Report& out) {
  const auto sorts_experts = [](const Expr& e) {
    if (!e.is(ExprKind::kCall) || (e.last_name() != "argsort" && e.last_name() != "sort") || e.keyword("key")) return false;
    const Expr* x = e.full_name.empty() && e.callee()->is(ExprKind::kAttribute) ? e.callee()->children[0] : e.argument(0, "input");
    return x && expert_ids_of(*x);
  };
  for (const Stmt* s : m.statements()) {
    if (s->kind != StmtKind::kAssign || s->targets.size() != 1 || !s->targets[0]->is(ExprKind::kSubscript) || !s->value || python::runs_only_on_cuda(*s)) continue;
    const Expr& target = *s->targets[0];
    if (is_statistic(*target.children[0]) || s->value->is(ExprKind::kNumber)) continue;
    // inverse[order] = arange(n) makes an order; it moves no rows.
    if (python::find_within(*s->value, [](const Expr& e) { return e.is(ExprKind::kCall) && e.last_name() == "arange"; })) continue;
    const Expr* sort = same_values(*target.children[1], sorts_experts);
    if (!sort) continue;
    Finding& f = out.add(target, Confidence::kLikely, "results of experts are put back to the order of the tokens by a scattered assignment");
    f.fix = kFix;
    f.related.push_back(out.related(sort->span, "the order is made here"));
  }
  for (const Expr* x : m.subscripts()) {
    if (x->children.size() < 2 || python::is_target(*x)) continue;
    const Expr* inverse = same_values(*x->children[1], [&](const Expr& e) {
      if (!e.is(ExprKind::kCall) || e.last_name() != "argsort") return false;
      const Expr* order = e.full_name.empty() && e.callee()->is(ExprKind::kAttribute) ? e.callee()->children[0] : e.argument(0, "input");
      return order && same_values(*order, [&](const Expr& y) { return &y != &e && sorts_experts(y); });
    });
    if (!inverse || python::runs_only_on_cuda(*x)) continue;
    Finding& f = out.add(*x, Confidence::kLikely, "results of experts are put back to the order of the tokens by a second sort and a gather");
    f.fix = kFix;
    f.related.push_back(out.related(inverse->span, "the inverse order is made here"));
  }
}

void python_file(const python::Module& m, Report& out) {
  additions(m, out);
  element_additions(m, out);
  inverses(m, out);
}

void add_kernel(Span span, const char* how, Report& out) {
  out.add(span, Confidence::kLikely, std::string("this kernel adds results of experts into rows of tokens ") + how + "; CANN has operators that combine").fix =
      "aclnnMoeTokenUnpermute, or aclnnMoeFinalizeRoutingV2 with the dropPadMode of the order at hand; both add in a fixed order.";
}

void cpp_file(const cpp::File& f, Report& out) {
  std::set<int> seen;
  for (const cpp::Call& c : f.calls()) {
    if (!is_one_of(c.last, {"atomicAdd", "unsafeAtomicAdd", "gpuAtomicAdd", "atomic_add", "red_add"}) || c.arguments.size() < 2) continue;
    const cpp::Function* fn = f.function_of(c.token);
    const int id = f.tokens()[c.token].function;
    if (!fn || !(fn->is_kernel || fn->is_device) || seen.count(id) != 0) continue;
    if (!contains_any(fn->name, {"unpermute", "combine_token", "finalize_routing"}) && !is_moe_function(f, *fn)) continue;
    // Counters: atomicAdd(&count[e], 1), atomicAdd(slots + i, n).
    const std::string target = lower(f.text(c.arguments[0]));
    const std::string value = lower(f.text(c.arguments[1]));
    if (!contains_any(target, {"out", "result", "token", "hidden", "dst", "output"}) || contains_any(target, {"count", "num_", "offset", "cumsum", "total", "sum_"})) continue;
    if (value.size() <= 2 && value.find_first_not_of("0123456789u") == value.npos) continue;
    seen.insert(id);
    add_kernel(c.name_span, "with atomic operations, in no fixed order", out);
  }
  for (size_t i = 0; i < f.functions().size(); ++i) {
    const cpp::Function& fn = f.functions()[i];
    if (fn.is_kernel && seen.count(static_cast<int>(i)) == 0 && is_expert_name(fn.name) && contains_any(fn.name, {"unpermute", "combine", "reduce", "finalize"}))
      add_kernel(name_span(f.unit(), fn.head, fn.name), "by their weights", out);
  }
}

}  // namespace

const Rule& r03_unpermute() {
  static constexpr Rule kRule = {
      .id = "R03",
      .name = "unpermute",
      .title = "Results of experts put back by scatter or index additions",
      .severity = Severity::kPerformance,
      .why = "index_add_ and scatter_add_ over the rows of tokens are scattered writes with atomic additions; they are not deterministic on an NPU unless asked to be, and an index operator "
             "that the NPU does not have falls back to the CPU without an error.",
      .fix = kFix,
      .versions = "A2, A3 and 950; npu_moe_token_unpermute takes top-k up to 512 on A2 and A3",
      .source = "pitfall table, row 3; CANN operator pages MoeTokenUnpermute, MoeFinalizeRoutingV2; set TORCH_NPU_FALLBACK_CPU_DISABLE=1 to see fall-backs",
      .python = python_file,
      .cpp = cpp_file,
  };
  return kRule;
}

}  // namespace pointsman::audit::rules
