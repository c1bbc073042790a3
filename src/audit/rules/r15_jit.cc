// SPDX-License-Identifier: Apache-2.0
//
// Row 15: TorchScript, by tracing or by scripting.
#include "audit/rule.h"
#include "audit/rules/words.h"
#include "audit/rules/moe_words.h"

namespace pointsman::audit::rules {
namespace {

using python::Expr;
using python::ExprKind;
using python::Stmt;

bool is_trace(std::string_view full) { return is_one_of(full, {"torch.jit.trace", "torch.jit.trace_module", "torch.jit._trace.trace"}); }
bool is_script(std::string_view full) { return is_one_of(full, {"torch.jit.script", "torch.jit.script_method", "torch.jit._script.script", "torch.jit.script_if_tracing"}); }

// Export for another runtime, not the way the model runs here.
bool is_export(const Expr& e) {
  for (const Stmt* f = python::enclosing_function(e); f; f = python::enclosing_function(f)) {
    if (contains_any(f->name, {"export", "onnx", "torchscript", "coreml", "to_mobile", "test_"})) return true;
  }
  const Stmt* c = python::enclosing_class(e);
  return c && contains_any(c->name, {"export", "onnx"});
}

void python_file(const python::Module& m, Report& out) {
  if (is_test_path(m.unit().path) || contains_any(m.unit().path, {"export", "onnx"})) return;
  for (const Expr* r : m.references()) {
    const bool trace = is_trace(r->full_name), script = is_script(r->full_name);
    if ((!trace && !script) || python::is_target(*r) || is_export(*r) || python::runs_only_on_cuda(*r)) continue;
    if (r->parent && r->parent->is(ExprKind::kCompare)) continue;
    // An alias of it is reported where it is made, not at every use.
    if (r->is(ExprKind::kName)) {
      const auto defs = python::definitions_of(*r);
      if (!defs.empty() && defs[0]->kind == python::DefinitionKind::kAssign) continue;
    }
    Finding& f = out.add(*r, trace ? "tracing keeps one way through the code: branches and loops that depend on values (the routing of experts) are frozen as the example took them"
                                   : "torch_npu's transfer_to_npu turns scripting into a no-op with one warning, and no fused NPU kernels come from it");
    if (script) f.severity = Severity::kVersion;
  }
}

// A document that speaks of tracing: once.
void prose(const Unit& d, Report& out) {
  const size_t at = find_name(d.text, "torch.jit.trace");
  if (at == std::string_view::npos) return;
  const auto begin = static_cast<uint32_t>(at);
  out.add({begin, begin + 15}, Confidence::kHint, "the text speaks of torch.jit.trace, which freezes branches that depend on values").severity = Severity::kInfo;
}

}  // namespace

const Rule& r15_jit() {
  static constexpr Rule kRule = {
      .id = "R15",
      .name = "torchscript",
      .title = "TorchScript tracing or scripting",
      .severity = Severity::kWrongNumbers,
      .why = "A trace holds the path of its example, so routing that changes with the input is silently wrong. Scripted functions rely on a fuser that has no NPU backend; with transfer_to_npu, "
             "torch.jit.script and script_method are disabled and the plain Python runs, with one warning.",
      .fix = "torch.compile with a backend of torch_npu (npugraph_ex or torchair; inductor by TORCHINDUCTOR_NPU_BACKEND), or eager code. Where scripting only fused pointwise code, drop it.",
      .versions = "all; transfer_to_npu disables scripting in every version",
      .source = "pitfall table, row 15; torch_npu contrib transfer_to_npu",
      .python = python_file,
      .prose = prose,
  };
  return kRule;
}

}  // namespace pointsman::audit::rules
