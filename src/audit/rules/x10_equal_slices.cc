// SPDX-License-Identifier: Apache-2.0
//
// X10. Style: names and data flow into one argument.
#include "audit/rule.h"
#include "audit/rules/collectives.h"
#include "audit/rules/words.h"

namespace pointsman::audit::rules {
namespace {

using python::Expr;
using python::ExprKind;

constexpr auto is_choice = [](const Expr& e) -> bool {
  return e.is(ExprKind::kCall) && is_one_of(e.last_name(), {"topk", "npu_moe_gating_top_k", "npu_moe_gating_top_k_softmax", "npu_moe_gating_top_k_softmax_v2"});
};

// "flat_indices", "topk_ids", "routing": ids of experts, not counts or sizes of them, not their data.
bool is_route_name(std::string_view name) {
  return !contains_any(name, {"count", "num", "split", "size", "cap", "pad", "per_"}) && has_word(name, {"idx", "idxs", "index", "indices", "ids", "topk", "routing", "routes"});
}

void python_file(const python::Module& m, Report& out) {
  for (const Expr* c : m.calls()) {
    const auto exchange = all_to_all(*c);
    if (!exchange || exchange->has_lists || !exchange->input || c->has_unpacking()) continue;
    const Expr* splits = exchange->input_splits ? exchange->input_splits : exchange->output_splits;
    if (splits && !(splits->is(ExprKind::kConstant) && splits->text == "None")) continue;
    const Expr* input = exchange->input;
    const Expr* choice = python::flows_from(*input, is_choice);
    const Expr* named = python::flows_from(*input, [](const Expr& e) { return (e.is(ExprKind::kName) || e.is(ExprKind::kAttribute)) && is_route_name(e.text); });
    // Counts of ids are a number per rank: equal slices are right for them. Rows ordered by ids are not ids (row 4 sees to them).
    const Expr* derived = python::flows_from(*input, [](const Expr& e) { return e.is(ExprKind::kCall) && is_one_of(e.last_name(), {"bincount", "histc", "sum", "count_nonzero", "scatter_add", "scatter_add_", "unique", "argsort", "sort", "index_select", "gather"}); });
    // "tokens_per_expert", "send_counts".
    const std::string_view own = input->last_name();
    if (!named || derived || contains_any(own, {"per_", "count", "num_", "sizes", "splits"})) continue;
    Finding& f = out.add(*c, choice && c->resolution == python::Resolution::kImported ? Confidence::kCertain : Confidence::kLikely,
                         "ids of chosen experts are sent in equal slices; a slice by position is not the slice for that rank's experts, so tokens reach the wrong expert whenever loads differ");
    f.related.push_back(out.related((choice ? choice : named)->span, "the ids"));
  }
}

}  // namespace

const Rule& x10_equal_slices() {
  static constexpr Rule kRule = {
      .id = "X10",
      .name = "equal-slices",
      .title = "Expert ids exchanged in equal slices",
      .severity = Severity::kWrongNumbers,
      .why = "all_to_all_single without split sizes cuts its input into equal parts by position. Routed tokens are uneven: the ids must be grouped by the rank that owns the expert, "
             "and the sizes are known only after the counts have been exchanged.",
      .fix = "Sort by owner rank, exchange the counts (all_to_all_single of one integer per rank), then all_to_all_single with input_split_sizes and output_split_sizes. "
             "Fused: npu_moe_distribute_dispatch and npu_moe_distribute_combine where the SoC has them.",
      .versions = "all",
      .source = "torch.distributed documentation of all_to_all_single; practitioner's guide §3.4, corrected",
      .python = python_file,
  };
  return kRule;
}

}  // namespace pointsman::audit::rules
