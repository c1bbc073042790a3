// SPDX-License-Identifier: Apache-2.0
//
// Row 18. Style: arguments of calls, and where they come from.
#include "audit/rule.h"
#include "audit/rules/words.h"

namespace pointsman::audit::rules {
namespace {

using python::Expr;
using python::ExprKind;

// [torch.empty(n, d) for n in sizes]: tensors whose shapes follow the loop variable.
const Expr* shapes_that_vary(const Expr& list) {
  return python::flows_from(list, [](const Expr& e) {
    if (!e.is(ExprKind::kComprehension) || e.children.size() < 3) return false;
    const Expr* element = e.children[0];
    if (!element->is(ExprKind::kCall) || !is_one_of(element->last_name(), {"empty", "zeros", "new_empty", "new_zeros"})) return false;
    const Expr* target = e.children[1];
    for (size_t i = 1; i < element->children.size(); ++i) {
      const Expr& a = *element->children[i];
      if (a.is(ExprKind::kKeyword)) continue;
      if (python::find_within(a, [&](const Expr& x) {
            return x.is(ExprKind::kName) && x.text != "_" && python::find_within(*target, [&](const Expr& t) { return t.is(ExprKind::kName) && t.text == x.text; });
          })) {
        return true;
      }
    }
    return false;
  });
}

bool says_uneven(const Expr& e) {
  return python::find_within(e, [](const Expr& x) { return (x.is(ExprKind::kName) || x.is(ExprKind::kAttribute)) && contains_any(x.text, {"uneven", "unequal", "variable", "ragged"}); }) != nullptr;
}

// Padding to the longest, gathering, cutting: a sign that sizes differ.
const Expr* pads_to_longest(const Expr& input) {
  return python::flows_from(input, [](const Expr& e) {
    return e.is(ExprKind::kCall) && (e.full_name == "torch.nn.functional.pad" || is_one_of(e.last_name(), {"new_zeros", "new_empty"})) &&
           python::find_within(e, [](const Expr& x) { return (x.is(ExprKind::kName) || x.is(ExprKind::kAttribute)) && contains_any(x.text, {"max_size", "max_len", "max_tokens", "max_n", "longest", "maxlen"}); });
  });
}

void python_file(const python::Module& m, Report& out) {
  for (const Expr* c : m.calls()) {
    if (!python::is_under(*c, "torch.distributed")) continue;
    const std::string_view last = c->last_name();
    if (last == "all_gather" || last == "reduce_scatter") {
      const Expr* list = c->positional(last == "all_gather" ? 0 : 1);
      if (!list) list = c->keyword(last == "all_gather" ? "tensor_list" : "input_list");
      if (!list) continue;
      if (const Expr* v = shapes_that_vary(*list)) {
        Finding& f = out.add(*c, "tensors of different shapes in one " + std::string(last) + "; HCCL wants equal ones");
        f.related.push_back(out.related(v->span, "the shapes follow the sizes of the ranks"));
        f.severity = Severity::kBlocks;
      } else if (says_uneven(*list)) {
        out.add(*c, Confidence::kLikely, "the names say that the tensors of this " + std::string(last) + " differ in size; HCCL wants equal ones").severity = Severity::kBlocks;
      }
    }
    if (is_one_of(last, {"all_gather", "all_gather_into_tensor"})) {
      const Expr* input = c->argument(1, last == "all_gather" ? "tensor" : "input_tensor");
      if (!input) continue;
      if (const Expr* p = pads_to_longest(*input)) {
        Finding& f = out.add(*c, Confidence::kLikely, "padded to the longest before the gather: it runs, and sends the padding");
        f.severity = Severity::kVersion;
        f.related.push_back(out.related(p->span, "padded here"));
      }
    }
  }
}

void cpp_file(const cpp::File& f, Report& out) {
  for (const cpp::Call& c : f.calls()) {
    if (c.is_member || !is_one_of(c.name, {"ncclBroadcast", "ncclBcast"}) || f.tokens()[c.token].loop < 0) continue;
    Finding& finding = out.add(c.name_span, Confidence::kLikely, "broadcasts in a loop stand for a gather of uneven parts; HCCL has HcclAllGatherV for it, on some SoCs only");
    finding.severity = Severity::kVersion;
    finding.fix = "HcclAllGatherV where the SoC has it, or padding with HcclAllGather.";
  }
}

}  // namespace

const Rule& r18_uneven_gather() {
  static constexpr Rule kRule = {
      .id = "R18",
      .name = "uneven-gather",
      .title = "Gather or scatter of unequal parts",
      .severity = Severity::kBlocks,
      .why = "all_gather and reduce_scatter of HCCL take equal parts. NCCL's process group falls back to broadcasts when shapes differ; HCCL's does not.",
      .fix = "torch_npu.distributed.all_gather_into_tensor_uneven and reduce_scatter_tensor_uneven where the SoC supports them; else pad to the longest and cut.",
      .versions = "uneven forms depend on the SoC",
      .source = "pitfall table, row 18; torch_npu.distributed; HCCL reference (AllGatherV)",
      .python = python_file,
      .cpp = cpp_file,
  };
  return kRule;
}

}  // namespace pointsman::audit::rules
