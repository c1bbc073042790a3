// SPDX-License-Identifier: Apache-2.0
//
// Row 2: tokens are brought into the order of their experts by a sort and a gather, or by masks expert by expert.
#include <set>

#include "audit/rule.h"
#include "audit/rules/moe_words.h"

namespace pointsman::audit::rules {
namespace {

using python::Expr;
using python::ExprKind;
using python::Stmt;
using python::StmtKind;

bool is_sort(const Expr& call) {
  const std::string_view name = call.last_name();
  if (name != "argsort" && name != "sort" && name != "msort") return false;
  if (!call.full_name.empty()) return python::is_under(call, "torch");
  // list.sort(key=...) returns nothing.
  return call.callee()->is(ExprKind::kAttribute) && !call.keyword("key") && !call.keyword("reverse");
}

// What is sorted, masked or turned into one-hot rows.
const Expr* tensor_of(const Expr& call) {
  if (!call.full_name.empty()) return call.argument(0, "input");
  return call.callee()->is(ExprKind::kAttribute) ? call.callee()->children[0] : call.positional(0);
}

// sort(x)[0] and sort(x).values keep the values, not the order.
bool keeps_values(const Expr& call) {
  const Expr* p = call.parent;
  if (call.last_name() != "sort" || !p) return false;
  if (p->is(ExprKind::kAttribute)) return p->text == "values";
  return p->is(ExprKind::kSubscript) && p->children[0] == &call && p->children[1]->is(ExprKind::kNumber) && p->children[1]->text == "0";
}

Confidence confidence_of(const Expr& call) { return call.resolution == python::Resolution::kImported ? Confidence::kCertain : Confidence::kLikely; }

void sorts(const python::Module& m, Report& out) {
  int searches = 0;
  for (const Expr* call : m.calls()) {
    if (!is_sort(*call) || python::runs_only_on_cuda(*call)) continue;
    const Expr* x = tensor_of(*call);
    if (!x || keeps_values(*call) || !expert_ids_of(*x)) continue;
    if (++searches > kMaxSearches) break;
    const Expr* use = index_use(m, *call);
    if (!use && !is_returned(m, *call)) continue;
    Finding& f = out.add(*call, use ? confidence_of(*call) : Confidence::kLikely, "tokens are ordered by expert with a sort and a gather; CANN has one operator that does both and counts the tokens");
    if (use) f.related.push_back(out.related(use->span, "the order is applied here"));
  }
}

// for i in range(num_experts): ... nonzero(mask[i]) or where(ids == i)
void masks(const python::Module& m, Report& out) {
  int searches = 0;
  for (const Expr* call : m.calls()) {
    const std::string_view name = call->last_name();
    if ((name != "where" && name != "nonzero") || python::runs_only_on_cuda(*call)) continue;
    const bool function = python::is_under(*call, "torch");
    if (!function && (!call->full_name.empty() || !call->callee()->is(ExprKind::kAttribute) || name == "where")) continue;
    if (name == "where" && call->positional(1)) continue;  // chooses between two tensors
    const Expr* x = tensor_of(*call);
    const Stmt* loop = python::enclosing_loop(*call);
    if (!x || !loop) continue;
    if (++searches > kMaxFlows) break;
    const Expr* one_hot = python::flows_from(*x, [](const Expr& e) { return e.is(ExprKind::kCall) && e.last_name() == "one_hot"; });
    if (one_hot && in_moe_code(*one_hot)) {
      Finding& f = out.add(*call, confidence_of(*call), "the tokens of each expert are searched for in a one-hot mask, expert by expert; every search waits for the device to say how many there are");
      f.related.push_back(out.related(one_hot->span, "the mask"));
      continue;
    }
    const Expr* equal = python::find_within(*x, [](const Expr& e) { return e.is(ExprKind::kCompare) && e.text == "=="; });
    const bool by_loop = equal && python::find_within(*equal, [&](const Expr& e) {
      if (!e.is(ExprKind::kName)) return false;
      for (const auto* d : python::definitions_of(e)) {
        if (d->kind == python::DefinitionKind::kFor && d->stmt == loop) return true;
      }
      return false;
    });
    if (by_loop && in_moe_code(*call)) out.add(*call, confidence_of(*call), "the tokens of each expert are searched for expert by expert; every search waits for the device to say how many there are");
  }
}

// Megatron's form: token indices chosen by a [experts, tokens] map.
void routing_maps(const python::Module& m, Report& out) {
  for (const Expr* call : m.calls()) {
    if (call->last_name() != "masked_select" || python::runs_only_on_cuda(*call)) continue;
    const Expr* mask = call->argument(call->full_name.empty() ? 0 : 1, "mask");
    const Expr* x = tensor_of(*call);
    if (!mask || !x || !python::flows_from(*mask, [](const Expr& e) { return e.is(ExprKind::kName) && contains(lower(e.text), "routing_map"); })) continue;
    // Probabilities chosen by the map follow the tokens; one finding is enough.
    if (contains_any(m.unit().slice(x->span), {"prob", "weight", "score"})) continue;
    out.add(*call, confidence_of(*call), "tokens are ordered by expert with a mask over the routing map; CANN has one operator for this layout");
  }
}

void python_file(const python::Module& m, Report& out) {
  sorts(m, out);
  masks(m, out);
  routing_maps(m, out);
}

bool is_permute_kernel(std::string_view name) {
  const std::string s = lower(name);
  if (contains(s, "unpermute")) return false;
  return contains(s, "moe_align_block_size") || contains(s, "expandinputrows") || contains(s, "expand_input_rows") || contains(s, "shuffle_rows") ||
         (contains(s, "permute") && is_expert_name(name)) || contains(s, "permute_token") || contains(s, "moe_sort") || contains(s, "sort_tokens") || contains(s, "get_scatter_indices");
}

void cpp_file(const cpp::File& f, Report& out) {
  std::set<std::string> seen;
  for (const cpp::Function& fn : f.functions()) {
    if (fn.is_kernel && is_permute_kernel(fn.name) && seen.insert(fn.name).second)
      out.add(name_span(f.unit(), fn.head, fn.name), Confidence::kLikely, "this kernel brings tokens into the order of their experts; CANN has operators for that");
  }
  for (const cpp::Call& c : f.calls()) {
    if ((c.last != "SortPairs" && c.last != "sort_by_key" && c.last != "stable_sort_by_key") || f.runs_under(f.tokens()[c.token].condition, {"USE_ROCM", "__HIP__", "USE_NPU"})) continue;
    bool experts = false;
    for (const cpp::TokenRange& a : c.arguments) experts = experts || mentions(f, a, is_expert_name);
    const cpp::Function* fn = f.function_of(c.token);
    if (experts || (fn && is_moe_function(f, *fn))) {
      if (!seen.insert(std::string(c.last) + (fn ? fn->name : "")).second) continue;
      out.add(c.name_span, experts ? Confidence::kCertain : Confidence::kLikely, "a radix sort of expert ids orders the tokens; CUB and Thrust are not there on an NPU");
    }
  }
}

}  // namespace

const Rule& r02_permute() {
  static constexpr Rule kRule = {
      .id = "R02",
      .name = "permute",
      .title = "Tokens brought into expert order by sort, gather or masks",
      .severity = Severity::kPerformance,
      .why = "A sort, a gather and a count each read and write all tokens, and on an NPU the separate launches and the scattered reads cost more than the expert's own arithmetic at small "
             "batches. Searches by mask have results whose size the host must know, so every expert is a synchronisation.",
      .fix = "Inference: torch_npu.npu_moe_init_routing_v2 (rows, order and counts in one call). Training: torch_npu.npu_moe_token_permute, or npu_moe_token_permute_with_routing_map for a "
             "[tokens, experts] map. The order that they return is int32; whether it counts by row or by column must agree with the operator that undoes it. The forms WithEp are CANN kernels "
             "of A2 and A3 that torch_npu does not expose.",
      .versions = "A2, A3 and 950; fused training forms from CANN 8.3.RC1",
      .source = "pitfall table, row 2; op-plugin signatures; CANN operator pages MoeInitRoutingV2, MoeTokenPermute",
      .python = python_file,
      .cpp = cpp_file,
  };
  return kRule;
}

}  // namespace pointsman::audit::rules
