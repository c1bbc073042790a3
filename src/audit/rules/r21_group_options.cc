// SPDX-License-Identifier: Apache-2.0
//
// Row 21. Style: resolved names and keyword arguments.
#include "audit/rule.h"
#include "audit/rules/words.h"

namespace pointsman::audit::rules {
namespace {

using python::Expr;
using python::ExprKind;

constexpr auto is_nccl_options = [](const Expr& e) -> bool {
  return (e.is(ExprKind::kName) || e.is(ExprKind::kAttribute)) && (e.full_name.ends_with("ProcessGroupNCCL.Options") || python::dotted(e).ends_with("ProcessGroupNCCL.Options"));
};

void python_file(const python::Module& m, Report& out) {
  for (const Expr* c : m.calls()) {
    if (python::runs_only_on_cuda(*c)) continue;
    if (is_nccl_options(*c->callee())) {
      const bool resolved = c->resolution == python::Resolution::kImported;
      out.add(*c, resolved ? Confidence::kCertain : Confidence::kLikely, "options of NCCL's process group; HCCL's process group has its own options and does not take these");
      continue;
    }
    const Expr* options = c->keyword("pg_options");
    if (!options || (options->is(ExprKind::kConstant) && options->text == "None") || !is_one_of(c->last_name(), {"init_process_group", "new_group"})) continue;
    if (python::flows_from(*options, [](const Expr& e) { return e.is(ExprKind::kCall) && is_nccl_options(*e.callee()); })) continue;  // said at the options
    if (python::flows_from(*options, [](const Expr& e) { return (e.is(ExprKind::kName) || e.is(ExprKind::kAttribute)) && contains_any(e.text, {"hccl"}); })) continue;
    out.add(*options, Confidence::kLikely, "options are passed to the process group; where they are NCCL's, HCCL's process group rejects or ignores them");
  }
}

void cpp_file(const cpp::File& f, Report& out) {
  for (uint32_t i = 0; i < f.tokens().size(); ++i) {
    if (f.tokens()[i].kind != cpp::TokenKind::kIdentifier || !is_one_of(f.text(i), {"ncclConfig_t", "NCCL_CONFIG_INITIALIZER"})) continue;
    if (f.runs_under(f.tokens()[i].condition, {"USE_CUDA", "USE_NCCL", "__CUDACC__"})) continue;
    out.add(f.tokens()[i].span, Confidence::kCertain, "ncclConfig_t has no counterpart of that name; HCCL takes HcclCommConfig (HcclCommConfigInit)").fix = "HcclCommConfig with HcclCommInitRootInfoConfig: buffer size, determinism, communicator name.";
  }
}

}  // namespace

const Rule& r21_group_options() {
  static constexpr Rule kRule = {
      .id = "R21",
      .name = "group-options",
      .title = "Options of NCCL's process group",
      .severity = Severity::kVersion,
      .why = "is_high_priority_stream and the fields of NCCL's config do not exist for HCCL. Buffer size, quality of service and expansion mode are set per group in hccl_config.",
      .fix = "options = torch_npu._C._distributed_c10d.ProcessGroupHCCL.Options(); options.hccl_config = {\"hccl_buffer_size\": 400}; dist.new_group(ranks, pg_options=options). "
             "Keys: hccl_buffer_size, group_name, qos_*, hccl_op_expansion_mode.",
      .versions = "hccl_config keys depend on torch_npu and CANN",
      .source = "pitfall table, row 21; torch_npu ProcessGroupHCCL",
      .python = python_file,
      .cpp = cpp_file,
  };
  return kRule;
}

}  // namespace pointsman::audit::rules
