// SPDX-License-Identifier: Apache-2.0
//
// Row 4: tokens go to the ranks of their experts by an all-to-all that nothing overlaps.
#include <set>

#include "audit/rule.h"
#include "audit/rules/collectives.h"
#include "audit/rules/moe_words.h"
#include "base/log.h"

namespace pointsman::audit::rules {
namespace {

using python::Expr;
using python::ExprKind;

const char* fix_for(Soc soc) {
  switch (soc) {
    case Soc::kA2:
      return "On A2: torch_npu.npu_moe_distribute_dispatch_v2 / npu_moe_distribute_combine_v2 when each rank has at most 24 experts, the expert group has 16 ranks or more and the tokens fit its "
             "buffer; else all-gather the tokens and let each rank take its own.";
    case Soc::kA3:
      return "On A3: torch_npu.npu_moe_distribute_dispatch_v2 / npu_moe_distribute_combine_v2 while the tokens fit their buffer, else this all-to-all, overlapped, or "
             "torch_npu.npu_alltoallv_gmm / npu_gmm_alltoallv, which run it together with the experts.";
    case Soc::k950Pr:
      return "950PR has no dispatch and combine operators: keep the all-to-all, on a stream of its own, overlapped with the shared expert or the other half of the batch.";
    case Soc::k950Dt:
      return "On 950DT: torch_npu.npu_moe_distribute_dispatch_v2 / npu_moe_distribute_combine_v2 while the tokens fit, or torch_npu.npu_alltoallv_gmm / npu_gmm_alltoallv.";
    case Soc::kUnknown: break;
  }
  return "By SoC: A2 all-gather, or npu_moe_distribute_dispatch_v2 / npu_moe_distribute_combine_v2 from 16 ranks; A3 and 950DT the same two operators while the tokens fit their buffer, or "
         "npu_alltoallv_gmm / npu_gmm_alltoallv; 950PR this all-to-all on a stream of its own. Name the target with --soc.";
}

// Ids of experts are not one to a rank: equal slices of them go to the wrong ranks.
const Expr* routed_values(const Expr& input) {
  return python::flows_from(input, [](const Expr& e) {
    if (e.is(ExprKind::kCall)) return is_one_of(e.last_name(), {"topk", "nonzero", "argsort", "masked_select"});
    return (e.is(ExprKind::kName) || e.is(ExprKind::kAttribute)) && is_expert_ids(e.text);
  });
}

void python_file(const python::Module& m, Report& out) {
  for (const Expr* call : m.calls()) {
    const std::optional<AllToAll> a = all_to_all(*call);
    if (!a || python::runs_only_on_cuda(*call)) continue;
    const Expr* what = a->input ? a->input : call->positional(0);
    const bool counted = a->output_splits || a->input_splits || a->has_lists;
    const bool experts = in_moe_code(*call) || (what && python::flows_from(*what, [](const Expr& e) {
                                                                       return (e.is(ExprKind::kName) || e.is(ExprKind::kAttribute)) && is_expert_name(e.text);
                                                                     }));
    if (!experts) continue;
    // The exchange of the counts that precedes the tokens is small and needed.
    if (!counted && what && mentions(*what, is_count_word)) continue;
    if (!a->is_torch && !counted && python::enclosing_class(*call) == nullptr && !mentions(*call, is_expert_name)) continue;
    const Confidence confidence = a->is_torch && call->resolution == python::Resolution::kImported ? Confidence::kCertain : Confidence::kLikely;
    const Expr* routed = !counted && a->is_torch && a->input ? routed_values(*a->input) : nullptr;
    if (routed) {
      Finding& f = out.add(*call, confidence, "routed values are cut into equal slices, but how many go to each rank depends on the routing: without split sizes they reach the wrong ranks");
      f.severity = Severity::kWrongNumbers;
      f.fix = format("Exchange the counts first (one all_to_all_single of tokens per rank), then pass input_split_sizes and output_split_sizes. {}", fix_for(out.soc));
      f.related.push_back(out.related(routed->span, "what is sent comes from here"));
      continue;
    }
    if (is_overlapped(*call, *a)) continue;
    Finding& f = out.add(*call, confidence, "the exchange of tokens between ranks is waited for before the experts start, so its time is added to every layer");
    f.fix = fix_for(out.soc);
  }
}

void cpp_file(const cpp::File& f, Report& out) {
  std::set<int> seen;
  int searches = 0;
  for (const cpp::Call& c : f.calls()) {
    const bool pair = c.last == "ncclSend", whole = c.last == "ncclAlltoAll" || c.last == "ncclAllToAll" || c.last == "ncclAllToAllv";
    if ((!pair && !whole) || f.runs_under(f.tokens()[c.token].condition, {"USE_ROCM", "__HIP__", "USE_NPU", "USE_ASCEND"})) continue;
    const cpp::Function* fn = f.function_of(c.token);
    const int id = f.tokens()[c.token].function;
    // The counts themselves are sent first.
    if (pair && !c.arguments.empty() && !c.arguments[0].empty() && is_count_word(f.text(c.arguments[0].first))) continue;
    if (!fn || seen.count(id) != 0) continue;
    if (++searches > kMaxSearches) break;
    bool experts = is_moe_function(f, *fn), receives = false;
    for (const cpp::TokenRange& a : c.arguments) experts = experts || mentions(f, a, is_expert_name);
    for (const cpp::Call& other : f.calls()) {
      if (f.tokens()[other.token].function != id) continue;
      receives = receives || other.last == "ncclRecv";
      for (const cpp::TokenRange& a : other.arguments) experts = experts || (other.last == "ncclRecv" && mentions(f, a, is_expert_name));
    }
    if (!experts) experts = mentions(f, {fn->first, fn->last}, is_expert_name);
    if (!experts || (pair && !receives)) continue;
    seen.insert(id);
    out.add(c.name_span, Confidence::kCertain, pair ? "pairs of ncclSend and ncclRecv exchange the tokens of experts; HCCL has a variable all-to-all" : "an NCCL all-to-all exchanges the tokens of experts").fix =
        "HcclAlltoAllV(send, sendCounts, sdispls, type, recv, recvCounts, rdispls, type, comm, stream), with counts and displacements as uint64 arrays of the host, in elements; decode on A2, A3 "
        "and 950DT: aclnnMoeDistributeDispatch / aclnnMoeDistributeCombine.";
  }
}

}  // namespace

const Rule& r04_all_to_all() {
  static constexpr Rule kRule = {
      .id = "R04",
      .name = "all-to-all-dispatch",
      .title = "Tokens sent to experts by an all-to-all that nothing overlaps",
      .severity = Severity::kPerformance,
      .why = "The exchange of tokens stands between the gate and the experts. Done one after the other, its time is added to every layer. Which form is best on an NPU depends on the SoC, "
             "the size of the expert group and the number of tokens. Slices of equal size are right only when every rank gets the same number of tokens.",
      .fix = "By SoC: A2 all-gather or dispatch/combine from 16 ranks; A3 and 950DT dispatch/combine or npu_alltoallv_gmm; 950PR all-to-all overlapped on its own stream.",
      .versions = "dispatch/combine: A2, A3, 950DT, not 950PR; npu_alltoallv_gmm: A3 and 950DT",
      .source = "pitfall table, row 4; vllm-ascend's choice of MoE communication; CANN operator pages MoeDistributeDispatch, AlltoAllvGroupedMatMul",
      .python = python_file,
      .cpp = cpp_file,
  };
  return kRule;
}

}  // namespace pointsman::audit::rules
