// SPDX-License-Identifier: Apache-2.0
//
// Row 17. Style: calls in loops.
#include "audit/rule.h"
#include "audit/rules/collectives.h"
#include "audit/rules/words.h"

namespace pointsman::audit::rules {
namespace {

using python::Expr;
using python::ExprKind;

constexpr auto allocates = [](const Expr& e) -> bool {
  return e.is(ExprKind::kCall) && is_one_of(e.full_name, {"torch.empty", "torch.empty_like", "torch.zeros", "torch.zeros_like"});
};

// The output buffer of a collective is made anew in every round.
void check_buffer(const Expr& call, Report& out) {
  const python::Stmt* loop = python::enclosing_loop(call);
  const Expr* output = call.positional(0);
  if (!loop || !output) return;
  const Expr* made = python::flows_from(*output, allocates);
  if (!made || python::enclosing_loop(*made) != loop) return;
  Finding& f = out.add(call, Confidence::kLikely, "every round allocates a new buffer for this exchange; with sizes that vary the caching allocator keeps one block for each");
  f.related.push_back(out.related(made->span, "allocated here"));
}

void python_file(const python::Module& m, Report& out) {
  std::vector<const Expr*> groups;
  for (const Expr* c : m.calls()) {
    if (python::is_under(*c, "torch.distributed") && is_one_of(c->last_name(), {"all_to_all_single", "all_to_all"})) check_buffer(*c, out);
    if (c->full_name == "torch.distributed.new_group") {
      groups.push_back(c);
      if (python::in_loop(*c)) {
        Finding& f = out.add(*c, Confidence::kLikely, "a loop makes process groups; each HCCL communicator takes twice HCCL_BUFFSIZE (200 MB unless set) of device memory on first use");
        f.fix = "Make each distinct group once and keep it; set hccl_buffer_size per group (ProcessGroupHCCL.Options().hccl_config) or HCCL_BUFFSIZE; count groups x 2 x size.";
      }
    }
  }
  size_t outside = 0;
  for (const Expr* g : groups) outside += !python::in_loop(*g);
  if (outside >= 6) {
    out.add(*groups.front(), Confidence::kHint, std::to_string(outside) + " process groups are made in this file; each HCCL communicator takes twice HCCL_BUFFSIZE (200 MB unless set)")
        .fix = "Share groups with equal members; set hccl_buffer_size per group.";
  }
}

void cpp_file(const cpp::File& f, Report& out) {
  for (const cpp::Call& c : f.calls()) {
    if (c.name != "cudaMalloc" || c.is_member) continue;
    const cpp::Function* function = f.function_of(c.token);
    if (!function) continue;
    for (const cpp::Call& n : f.calls()) {
      if (f.function_of(n.token) != function || !is_one_of(n.last, {"ncclSend", "ncclRecv", "ncclAllToAll", "ncclAllGather", "ncclReduceScatter", "ncclAllReduce"})) continue;
      Finding& finding = out.add(c.name_span, Confidence::kLikely, "device memory is allocated in the function that communicates; done per call it synchronises and fragments");
      finding.related.push_back(out.related(n.name_span, "the exchange"));
      break;
    }
  }
}

}  // namespace

const Rule& r17_all_to_all_memory() {
  static constexpr Rule kRule = {
      .id = "R17",
      .name = "all-to-all-memory",
      .title = "Exchange buffers and groups that eat device memory",
      .severity = Severity::kPerformance,
      .why = "What looks like a leak of all_to_all on NPU is mostly memory of communicators (send and receive buffers per group) and new exchange buffers of ever different sizes.",
      .fix = "Reuse one buffer of the largest size and slice it; make each group once; set HCCL_BUFFSIZE or hccl_buffer_size to what the exchange needs.",
      .versions = "all; the CANN 7.0 of the pitfall table is long outdated",
      .source = "pitfall table, row 17, corrected; HCCL environment reference (HCCL_BUFFSIZE)",
      .python = python_file,
      .cpp = cpp_file,
  };
  return kRule;
}

}  // namespace pointsman::audit::rules
