// SPDX-License-Identifier: Apache-2.0
//
// Row 22. Style: names; options of a launcher. Variables of NCCL are row 16.
#include "audit/rule.h"
#include "audit/rules/words.h"

namespace pointsman::audit::rules {
namespace {

using python::Expr;

void python_file(const python::Module& m, Report& out) {
  for (const Expr* c : m.calls()) {
    if (python::is_under(*c, "torch.distributed.elastic") || python::is_under(*c, "torch.distributed.launcher")) {
      if (!is_one_of(c->last_name(), {"elastic_launch", "LaunchConfig", "launch_agent"})) continue;
      out.add(*c, "elastic restarts end and start all processes; on Ascend recovery is arranged by MindCluster and HCCL's own retry, and a restart must wait until the devices are released");
    }
  }
}

void cpp_file(const cpp::File& f, Report& out) {
  for (const cpp::Call& c : f.calls()) {
    if (c.is_member || !is_one_of(c.name, {"ncclCommAbort", "ncclCommGetAsyncError", "ncclCommRevoke", "ncclCommShrink"})) continue;
    const char* instead = c.name == "ncclCommGetAsyncError" ? "HcclGetCommAsyncError" : c.name == "ncclCommAbort" ? "HcclCommDestroy after HcclCommSuspend" : "HcclCommSuspend and HcclCommResume";
    Finding& finding = out.add(c.name_span, Confidence::kCertain, c.name + " is part of NCCL's fault handling; HCCL's is another: heartbeat, asynchronous error, suspend and resume");
    finding.fix = std::string(instead) + "; time limits in the order HCCL_CONNECT_TIMEOUT < HCCL_EXEC_TIMEOUT < HCCL_EVENT_TIMEOUT < the group's.";
  }
}

void config_file(const config::Document& d, Report& out) {
  for (const config::Command& c : d.commands) {
    const bool launcher = c.program() == "torchrun" || c.program().ends_with("/torchrun") || c.has_argument("torch.distributed.run");
    if (!launcher) continue;
    std::string_view restarts = c.option("--max-restarts");
    if (restarts.empty()) restarts = c.option("--max_restarts");
    if (restarts.empty() || restarts == "0") continue;
    out.add(c.span, Confidence::kLikely, "restarts of torchrun do not know whether the NPUs are free again; a worker that starts too early finds its device or port taken");
  }
}

}  // namespace

const Rule& r22_fault_handling() {
  static constexpr Rule kRule = {
      .id = "R22",
      .name = "fault-handling",
      .title = "Fault handling built on NCCL",
      .severity = Severity::kInfo,
      .why = "Aborting a communicator, asynchronous errors and elastic restarts work differently: HCCL has a heartbeat, operator retry, suspend and resume; process-level recovery is "
             "MindCluster's.",
      .fix = "HcclGetCommAsyncError, HcclCommSuspend and HcclCommResume, HCCL_OP_RETRY_ENABLE (A3); for jobs MindCluster's recovery, or restart all ranks once the devices are free.",
      .versions = "operator retry on A3",
      .source = "pitfall table, row 22; HCCL reference",
      .python = python_file,
      .cpp = cpp_file,
      .config = config_file,
  };
  return kRule;
}

}  // namespace pointsman::audit::rules
