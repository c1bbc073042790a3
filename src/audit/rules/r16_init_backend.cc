// SPDX-License-Identifier: Apache-2.0
//
// Row 16. Style: resolved names and literals, exact keys of configuration files, environment of the tree.
#include "audit/rule.h"
#include "audit/rules/words.h"

namespace pointsman::audit::rules {
namespace {

using python::Expr;
using python::ExprKind;

// "nccl", "cpu:gloo,cuda:nccl".
bool names_nccl(std::string_view s) { return s == "nccl" || s == "NCCL" || s == "cuda:nccl" || contains(s, "cuda:nccl"); }

const Expr* nccl_in(const Expr& value) {
  return python::flows_from(value, [](const Expr& e) { return e.is(ExprKind::kString) && names_nccl(e.text) && !python::runs_only_on_cuda(e) && !(e.parent && e.parent->is(ExprKind::kCompare)); });
}

bool is_backend_name(std::string_view name) {
  return is_one_of(lower(name), {"backend", "dist_backend", "dist-backend", "process_group_backend", "ddp_backend", "distributed_backend", "distributed-backend", "distributed_init_backend"});
}

void add(const Expr& at, const Expr& literal, Confidence confidence, std::string message, Report& out) {
  Finding& f = out.add(at, confidence, std::move(message));
  if (&at != &literal) f.related.push_back(out.related(literal.span, "the name comes from here"));
  // Two quotes and the name, nothing else: no prefix, no "nc" "cl".
  if (literal.span.end - literal.span.begin == 6 && literal.text == "nccl") f.edits.push_back(out.edit({literal.span.end - 5, literal.span.end - 1}, "hccl"));
}

void python_call(const Expr& call, Report& out) {
  const bool init = call.full_name == "torch.distributed.init_process_group" || call.full_name == "torch.distributed.distributed_c10d.init_process_group";
  const bool group = call.full_name == "torch.distributed.new_group";
  if (init || group) {
    const Expr* backend = init ? call.argument(0, "backend") : call.argument(2, "backend");
    if (!backend) return;
    const Expr* literal = nccl_in(*backend);
    if (!literal) return;
    const Confidence c = call.resolution == python::Resolution::kImported ? Confidence::kCertain : Confidence::kLikely;
    add(*backend, *literal, c, std::string(init ? "the process group asks" : "the new group asks") + " for NCCL, which torch_npu does not have: the job ends at start", out);
    return;
  }
  if (call.last_name() == "add_argument") {  // argparse
    const Expr *name = call.positional(0), *value = call.keyword("default");
    if (!name || !value || !name->is(ExprKind::kString) || !value->is(ExprKind::kString) || !names_nccl(value->text)) return;
    std::string_view option = name->text;
    while (option.starts_with('-')) option.remove_prefix(1);
    if (is_backend_name(option) || contains_any(option, {"backend"})) add(*value, *value, Confidence::kLikely, "the default of this option is NCCL, which torch_npu does not have", out);
    return;
  }
  for (size_t i = 1; i < call.children.size(); ++i) {
    const Expr& a = *call.children[i];
    if (!a.is(ExprKind::kKeyword) || !is_backend_name(a.text)) continue;
    const Confidence confidence = python::is_under(call, "torch.distributed") && call.resolution == python::Resolution::kImported ? Confidence::kCertain : Confidence::kLikely;
    if (const Expr* literal = nccl_in(*a.children[0])) add(*a.children[0], *literal, confidence, "'" + std::string(a.text) + "' asks for NCCL, which torch_npu does not have", out);
  }
}

void python_file(const python::Module& m, Report& out) {
  for (const Expr* call : m.calls()) python_call(*call, out);
  for (const Expr* r : m.references()) {
    if (r->last_name() != "ProcessGroupNCCL" || python::runs_only_on_cuda(*r)) continue;
    const bool resolved = python::is_under(*r, "torch.distributed") || python::is_under(*r, "torch._C._distributed_c10d");
    if (!resolved && !r->full_name.empty()) continue;
    out.add(*r, "ProcessGroupNCCL is not in torch_npu; its counterpart is torch_npu.distributed.ProcessGroupHCCL");
  }
  // {"backend": "nccl"} and defaults of fields: backend: str = "nccl".
  for (const Expr* s : m.strings()) {
    if (!names_nccl(s->text) || !s->parent || !s->parent->is(ExprKind::kDict)) continue;
    const auto& items = s->parent->children;
    for (size_t i = 0; i + 1 < items.size(); i += 2) {
      if (items[i + 1] == s && items[i]->is(ExprKind::kString) && is_backend_name(items[i]->text) && !python::runs_only_on_cuda(*s))
        add(*s, *s, Confidence::kLikely, "the backend is NCCL, which torch_npu does not have", out);
    }
  }
  for (const python::Stmt* s : m.statements()) {
    if (s->kind != python::StmtKind::kAnnAssign || !s->value || !s->value->is(ExprKind::kString) || !names_nccl(s->value->text)) continue;
    if (s->targets[0]->is(ExprKind::kName) && is_backend_name(s->targets[0]->text)) add(*s->value, *s->value, Confidence::kLikely, "the default backend is NCCL, which torch_npu does not have", out);
  }
}

void cpp_file(const cpp::File& f, Report& out) {
  for (const cpp::Include& i : f.includes()) {
    if ((i.path == "nccl.h" || i.path.ends_with("/nccl.h")) && !f.runs_under(i.condition, {"USE_CUDA", "WITH_CUDA", "USE_NCCL", "__CUDACC__"}))
      out.add(i.span, Confidence::kCertain, "nccl.h belongs to CUDA; CANN has hccl/hccl.h");
  }
  for (const cpp::Call& c : f.calls()) {
    const bool nccl = c.name.starts_with("nccl") && c.name.size() > 4 && c.name[4] >= 'A' && c.name[4] <= 'Z';
    if (nccl && !c.is_member && !f.runs_under(f.tokens()[c.token].condition, {"USE_CUDA", "WITH_CUDA", "USE_NCCL", "__CUDACC__"}))
      out.add(c.name_span, Confidence::kCertain, c.name + " is NCCL; HCCL has other names, orders of arguments and a communicator made from HcclGetRootInfo");
  }
}

void config_file(const config::Document& d, Report& out) {
  for (const config::Entry& e : d.entries) {
    if (names_nccl(e.value) && is_backend_name(e.key)) {
      Finding& f = out.add(e.value_span, Confidence::kCertain, "'" + e.key + "' asks for NCCL, which torch_npu does not have");
      std::string_view text = d.unit->slice(e.value_span);
      if (const size_t at = text.find("nccl"); e.value == "nccl" && at != text.npos) {
        const auto begin = e.value_span.begin + static_cast<uint32_t>(at);
        f.edits.push_back(out.edit({begin, begin + 4}, "hccl"));
      }
    }
  }
  for (const config::Command& c : d.commands) {
    for (size_t i = c.program_index + 1; i < c.words.size(); ++i) {
      const std::string& w = c.words[i].text;
      if (!w.starts_with("--") || !contains(w, "backend")) continue;
      const bool joined = w.ends_with("=nccl"), apart = i + 1 < c.words.size() && c.words[i + 1].text == "nccl";
      if (joined || apart) out.add(c.words[joined ? i : i + 1].span, Confidence::kLikely, "this option asks for NCCL, which torch_npu does not have");
    }
  }
}

struct Variable {
  std::string_view nccl, instead;
};
constexpr Variable kVariables[] = {
    {"NCCL_SOCKET_IFNAME", "HCCL_SOCKET_IFNAME"},
    {"NCCL_BUFFSIZE", "HCCL_BUFFSIZE, which is in MB and per communicator (NCCL counts bytes)"},
    {"NCCL_ALGO", "HCCL_ALGO, with other values"},
    {"NCCL_DEBUG", "HCCL_ENTRY_LOG_ENABLE and ASCEND_GLOBAL_LOG_LEVEL"},
    {"NCCL_IB_TIMEOUT", "HCCL_RDMA_TIMEOUT"},
    {"NCCL_IB_RETRY_CNT", "HCCL_RDMA_RETRY_CNT"},
    {"NCCL_IB_TC", "HCCL_RDMA_TC"},
    {"NCCL_IB_SL", "HCCL_RDMA_SL"},
    {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_HCCL_ASYNC_ERROR_HANDLING"},
    {"NCCL_ASYNC_ERROR_HANDLING", "TORCH_HCCL_ASYNC_ERROR_HANDLING"},
    {"TORCH_NCCL_DESYNC_DEBUG", "TORCH_HCCL_DESYNC_DEBUG"},
};

void whole_tree(const Tree& tree, Report& out) {
  for (const auto& e : tree.environment) {
    const std::string& name = e.value.name;
    if (!name.starts_with("NCCL_") && !name.starts_with("TORCH_NCCL_")) continue;
    std::string instead;
    for (const Variable& v : kVariables) {
      if (v.nccl == name) instead = v.instead;
    }
    Finding& f = out.add(e, Confidence::kCertain, name + " is read by NCCL only; HCCL ignores it" + (instead.empty() ? "" : ", its counterpart is " + instead));
    f.severity = Severity::kInfo;
    if (instead.empty()) f.fix = "Remove it; what it tuned has no HCCL variable of the same meaning.";
    else f.fix = "Set " + instead + ".";
  }
}

}  // namespace

const Rule& r16_init_backend() {
  static constexpr Rule kRule = {
      .id = "R16",
      .name = "init-backend",
      .title = "Communication through NCCL",
      .severity = Severity::kBlocks,
      .why = "Ascend devices communicate through HCCL. torch_npu registers the backend 'hccl'; asking for 'nccl' fails at start, and in a mixed "
             "installation waits until the time limit. The phases and time limits of HCCL differ from NCCL's: link set-up (HCCL_CONNECT_TIMEOUT), "
             "execution (HCCL_EXEC_TIMEOUT), event wait (HCCL_EVENT_TIMEOUT) and the process group's own must rise in this order.",
      .fix = "import torch_npu, then torch.distributed.init_process_group(backend=\"hccl\", ...). Keep HCCL_CONNECT_TIMEOUT < HCCL_EXEC_TIMEOUT < "
             "HCCL_EVENT_TIMEOUT < timeout= of the group; start large jobs with torch_npu_run.",
      .versions = "all",
      .source = "pitfall table, row 16; torch_npu: backend registration and transfer_to_npu (nccl is replaced by hccl in init_process_group and new_group)",
      .python = python_file,
      .cpp = cpp_file,
      .config = config_file,
      .tree = whole_tree,
  };
  return kRule;
}

}  // namespace pointsman::audit::rules
