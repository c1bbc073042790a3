// SPDX-License-Identifier: Apache-2.0
//
// X15. Style: exact operator names, the target SoC, facts of the tree.
#include "audit/rule.h"
#include "audit/rules/collectives.h"
#include "audit/rules/words.h"

namespace pointsman::audit::rules {
namespace {

using python::Expr;
using python::ExprKind;

bool is_dispatch(std::string_view last) { return last.starts_with("npu_moe_distribute_dispatch"); }
bool is_combine(std::string_view last) { return last.starts_with("npu_moe_distribute_combine"); }
bool is_alltoall_matmul(std::string_view last) { return is_one_of(last, {"npu_alltoallv_gmm", "npu_gmm_alltoallv", "npu_alltoallv_quant_gmm", "npu_quant_gmm_alltoallv"}); }

// "" for the first form, "_v2" and so on; setup and teardown pair with themselves.
std::string_view form_of(std::string_view last) {
  const size_t at = last.rfind("_v");
  return at == last.npos ? std::string_view() : last.substr(at);
}

void python_file(const python::Module& m, Report& out) {
  const Expr* dispatch = nullptr;
  const Expr* combine = nullptr;
  for (const Expr* c : m.calls()) {
    const std::string_view last = c->last_name();
    if (is_dispatch(last) || is_combine(last)) {
      out.note("fused", std::string(last), c->span);
      if (out.soc == Soc::k950Pr) out.add(*c, Confidence::kCertain, std::string(last) + " does not exist on 950PR (A2, A3 and 950DT only)").fix = "all_to_all_single with exchanged counts, overlapped with compute.";
      if (is_dispatch(last) && !dispatch) dispatch = c;
      if (is_combine(last) && !combine) combine = c;
    }
    if (is_alltoall_matmul(last)) {
      if (out.soc == Soc::kA2) out.add(*c, Confidence::kCertain, std::string(last) + " does not exist on A2 (A3 and 950DT)").fix = "npu_moe_distribute_dispatch and npu_moe_distribute_combine on A2, or all_to_all_single and npu_grouped_matmul.";
      if (out.soc == Soc::k950Pr) out.add(*c, Confidence::kCertain, std::string(last) + " does not exist on 950PR (A3 and 950DT)").fix = "all_to_all_single and npu_grouped_matmul.";
    }
  }
  if (dispatch && combine) {
    const std::string_view a = form_of(dispatch->last_name()), b = form_of(combine->last_name());
    if (a != b && combine->last_name().find("add_rms_norm") == std::string_view::npos) {
      Finding& f = out.add(*combine, Confidence::kLikely, "dispatch and combine are of different versions; what one leaves for the other (assist info, counts) differs");
      f.severity = Severity::kWrongNumbers;
      f.related.push_back(out.related(dispatch->span, "the dispatch"));
      f.fix = "Pair dispatch vN with combine vN.";
    }
  }
  if (!dispatch) return;
  // The communicator of the fused operators carries anything else?
  const Expr* group = dispatch->keyword("group_ep");
  if (!group) return;
  const Expr* source = python::flows_from(*group, [](const Expr& e) { return e.is(ExprKind::kCall) && e.last_name() == "get_hccl_comm_name"; });
  const Expr* owner = source && source->callee()->is(ExprKind::kAttribute) ? source->callee()->children[0] : nullptr;
  for (const Expr* c : m.calls()) {
    if (!is_collective(*c) || is_one_of(c->last_name(), {"new_group", "barrier"})) continue;
    const Expr* g = c->keyword("group");
    if (!g || python::dotted(*g).empty()) continue;
    const bool same = python::dotted(*g) == python::dotted(*group) ||
                      (owner && (python::find_within(*owner, [&](const Expr& e) { return python::dotted(e) == python::dotted(*g); }) ||
                                 python::flows_from(*owner, [&](const Expr& e) { return !python::dotted(e).empty() && python::dotted(e) == python::dotted(*g); })));
    if (!same) continue;
    Finding& f = out.add(*c, Confidence::kLikely, "this collective uses the communicator of the fused dispatch and combine, whose window no other operator may touch");
    f.related.push_back(out.related(dispatch->span, "the dispatch"));
    f.fix = "A group of its own (dist.new_group with the same ranks) for everything else.";
    break;
  }
}

void cpp_file(const cpp::File& f, Report& out) {
  for (const cpp::Call& c : f.calls()) {
    if (c.is_member || !c.name.ends_with("GetWorkspaceSize")) continue;
    const bool fused = c.name.starts_with("aclnnMoeDistributeDispatch") || c.name.starts_with("aclnnMoeDistributeCombine");
    const bool matmul = c.name.starts_with("aclnnAlltoAllvGroupedMatMul") || c.name.starts_with("aclnnGroupedMatMulAlltoAllv");
    if (fused && out.soc == Soc::k950Pr) out.add(c.name_span, Confidence::kCertain, c.name + ": the operator does not exist on 950PR");
    if (matmul && (out.soc == Soc::kA2 || out.soc == Soc::k950Pr)) out.add(c.name_span, Confidence::kCertain, c.name + ": the operator does not exist on " + soc_name(out.soc));
  }
}

void whole_tree(const Tree& tree, Report& out) {
  const auto fused = tree.notes_of("X15", "fused");
  const Located<config::Environment>* first = nullptr;
  for (const auto& e : tree.environment) {
    if (e.value.name != "HCCL_BUFFSIZE" || e.value.is_unset || e.value.value.empty() || e.value.value[0] == '$') continue;
    if (!first) {
      first = &e;
    } else if (e.value.value != first->value.value) {
      Finding& f = out.add(e, Confidence::kHint, "HCCL_BUFFSIZE is " + e.value.value + " here and " + first->value.value + " elsewhere; all ranks of a job must have the same");
      f.related.push_back({first->location, "the other value"});
    }
  }
  if (!fused.empty() && !first) {
    Finding& f = out.add(*fused.front(), Confidence::kHint, "nothing in this tree sets HCCL_BUFFSIZE; the window of dispatch and combine may not fit the default of 200 MB");
    f.severity = Severity::kInfo;
    f.fix = "Compute it from experts, batch, ranks and hidden size: `pointsman doctor` prints the formula's result.";
  }
}

}  // namespace

const Rule& x15_fused_dispatch() {
  static constexpr Rule kRule = {
      .id = "X15",
      .name = "fused-dispatch",
      .title = "Fused dispatch and combine outside of their conditions",
      .severity = Severity::kBlocks,
      .why = "The operators that join communication and expert compute exist per SoC, come in pairs of one version, own their communicator, and need a window (HCCL_BUFFSIZE) that every "
             "rank sets alike.",
      .fix = "Choose by SoC: A2 dispatch/combine from 16 ranks on (else all-gather), A3 and 950DT dispatch/combine or alltoallv_gmm, 950PR all-to-all with overlap.",
      .versions = "per SoC",
      .source = "CANN operator pages (MoeDistributeDispatch, AlltoAllvGroupedMatMul); vllm-ascend's choice of MoE communication",
      .python = python_file,
      .cpp = cpp_file,
      .tree = whole_tree,
  };
  return kRule;
}

}  // namespace pointsman::audit::rules
