// SPDX-License-Identifier: Apache-2.0
//
// X5. Style: environment of the tree, imports, and what silences a warning.
#include "audit/rule.h"
#include "audit/rules/words.h"

namespace pointsman::audit::rules {
namespace {

using python::Expr;
using python::ExprKind;

void python_file(const python::Module& m, Report& out) {
  if (!m.imports_module("torch_npu")) return;
  for (const Expr* c : m.calls()) {
    if (c->full_name != "warnings.filterwarnings" && c->full_name != "warnings.simplefilter") continue;
    const Expr* action = c->positional(0);
    if (!action || !action->is(ExprKind::kString) || action->text != "ignore") continue;
    // Narrow filters (a message, a category, a module) are about something else.
    if (c->children.size() > 2) continue;
    out.add(*c, Confidence::kLikely, "all warnings are silenced; torch_npu says only by a warning that an operator fell back to the CPU");
  }
}

bool is_ci(std::string_view path) {
  return path.starts_with(".github/workflows/") || path.find("/.github/workflows/") != path.npos || path.ends_with(".gitlab-ci.yml") || path.ends_with("Jenkinsfile") || path.starts_with(".circleci/") ||
         path.ends_with("azure-pipelines.yml");
}

void whole_tree(const Tree& tree, Report& out) {
  bool set = false;
  for (const auto& e : tree.environment) {
    if (e.value.name != "TORCH_NPU_FALLBACK_CPU_DISABLE" || e.value.is_unset) continue;
    set = true;
    if (e.value.value == "0") out.add(e, Confidence::kLikely, "fallback to the CPU is allowed: an operator without a kernel runs on the host, with two copies, and only a warning says so");
  }
  if (set || !tree.imports_module("torch_npu")) return;
  const bool ci = std::any_of(tree.files.begin(), tree.files.end(), [](const std::string& f) { return is_ci(f); });
  if (!ci) return;
  for (const auto& i : tree.imports) {
    if (!python::is_under(i.value.module, "torch_npu")) continue;
    Finding& f = out.add(i, Confidence::kHint, "this project tests torch_npu code, and no test environment forbids the fallback to the CPU");
    f.severity = Severity::kInfo;
    break;
  }
}

}  // namespace

const Rule& x05_cpu_fallback() {
  static constexpr Rule kRule = {
      .id = "X5",
      .name = "cpu-fallback",
      .title = "Operators that may run on the CPU unnoticed",
      .severity = Severity::kPerformance,
      .why = "torch_npu runs an operator that it lacks on the host: input and output are copied, the stream waits, and a step may be a hundred times slower with correct results.",
      .fix = "TORCH_NPU_FALLBACK_CPU_DISABLE=1 in tests and CI makes such a call an error; look for the warning in production logs.",
      .versions = "torch_npu with the variable TORCH_NPU_FALLBACK_CPU_DISABLE",
      .source = "torch_npu environment reference",
      .python = python_file,
      .tree = whole_tree,
  };
  return kRule;
}

}  // namespace pointsman::audit::rules
