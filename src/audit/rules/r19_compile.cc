// SPDX-License-Identifier: Apache-2.0
//
// Row 19. Style: a resolved name with its arguments; environment of the tree.
#include <algorithm>

#include "audit/rule.h"
#include "audit/rules/words.h"

namespace pointsman::audit::rules {
namespace {

using python::Expr;
using python::ExprKind;

bool is_compile(std::string_view full_name) { return full_name == "torch.compile"; }

void check_call(const Expr& call, Report& out) {
  if (const Expr* d = call.keyword("disable"); d && d->is(ExprKind::kConstant) && d->text == "True") return;
  const Expr* backend = call.argument(4, "backend");
  const Expr* mode = call.keyword("mode");
  std::optional<std::string_view> name;
  if (backend) {
    name = python::constant_string(*backend);
    if (!name || (*name != "inductor" && *name != "cudagraphs")) return;  // chosen elsewhere, or another backend
  }
  if (call.has_unpacking() && !backend) return;
  if (mode) {
    if (auto s = python::constant_string(*mode); s && (*s == "reduce-overhead" || *s == "max-autotune")) {
      Finding& f = out.add(call, "mode \"" + std::string(*s) + "\" means CUDA graphs and Triton autotuning; on an NPU the mode falls back or fails, and token times vary with it");
      f.severity = Severity::kPerformance;
      f.fix = "backend=\"npugraph_ex\" or torchair's backend for graphs, with bucketed shapes.";
      return;
    }
  }
  if (name && *name == "cudagraphs") {
    out.add(call, "backend \"cudagraphs\" is CUDA's").severity = Severity::kBlocks;
    return;
  }
  out.add(call, name ? "backend \"inductor\" generates Triton for CUDA; on an NPU torch_npu's Inductor backends must be installed and chosen"
                     : "torch.compile without a backend means Inductor; on an NPU torch_npu's Inductor backends must be installed and chosen");
}

void python_file(const python::Module& m, Report& out) {
  for (const Expr* c : m.calls()) {
    if (is_compile(c->full_name) && !python::runs_only_on_cuda(*c)) check_call(*c, out);
    // functools.partial(torch.compile, ...)
    if (c->full_name == "functools.partial" && c->positional(0) && is_compile(c->positional(0)->full_name)) check_call(*c, out);
  }
  for (const std::vector<const python::Stmt*>* list : {&m.functions(), &m.classes()}) {
    for (const python::Stmt* s : *list) {
      for (const Expr* d : s->decorators) {
        if (!d->is(ExprKind::kCall) && is_compile(d->full_name)) out.add(*d, "torch.compile without a backend means Inductor; on an NPU torch_npu's Inductor backends must be installed and chosen");
      }
    }
  }
}

void whole_tree(const Tree& tree, Report& out) {
  for (const auto& e : tree.environment) {
    if (!e.value.is_unset && e.value.name.starts_with("TORCHINDUCTOR_") && !e.value.name.starts_with("TORCHINDUCTOR_NPU"))
      out.add(e, Confidence::kLikely, e.value.name + " sets CUDA's Inductor; torch_npu has TORCHINDUCTOR_NPU_BACKEND and reads few of the others");
  }
}

// A document that recommends a mode of CUDA's, or Inductor, in a sentence about torch.compile: once.
void prose(const Unit& d, Report& out) {
  constexpr std::string_view kName = "torch.compile";
  const std::string_view text = d.text;
  for (size_t from = 0; from < text.size();) {
    const size_t found = find_name(text.substr(from), kName);
    if (found == text.npos) return;
    const size_t at = from + found, line_end = std::min(text.find('\n', at), text.size());
    const std::string_view rest = text.substr(at, std::min<size_t>(line_end - at, 200));
    from = at + kName.size();
    if (!contains(rest, "reduce-overhead") && !contains(rest, "max-autotune") && !contains(rest, "inductor")) continue;
    const auto begin = static_cast<uint32_t>(at);
    out.add({begin, begin + static_cast<uint32_t>(kName.size())}, Confidence::kHint, "the text speaks of torch.compile with Inductor or a mode of CUDA graphs").severity = Severity::kInfo;
    return;
  }
}

}  // namespace

const Rule& r19_compile() {
  static constexpr Rule kRule = {
      .id = "R19",
      .name = "compile",
      .title = "torch.compile with CUDA's Inductor",
      .severity = Severity::kVersion,
      .why = "Inductor's default code generator is Triton for CUDA. torch_npu brings Inductor backends of its own (from 2.7 on), npugraph_ex and torchair; mode names such as "
             "reduce-overhead imply CUDA graphs.",
      .fix = "torch.compile(model, backend=\"npugraph_ex\") or torchair.get_npu_backend(); for Inductor install triton-ascend and set TORCHINDUCTOR_NPU_BACKEND. Bucket dynamic shapes.",
      .versions = "depends on torch_npu; check against its table",
      .source = "pitfall table, row 19, corrected (2.6.0 is a torch version, not a CANN version); torch_npu Inductor backends",
      .python = python_file,
      .prose = prose,
      .tree = whole_tree,
  };
  return kRule;
}

}  // namespace pointsman::audit::rules
