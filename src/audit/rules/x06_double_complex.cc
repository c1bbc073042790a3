// SPDX-License-Identifier: Apache-2.0
//
// X6. Style: resolved names, with the places where naming a dtype does nothing left out.
#include "audit/rule.h"
#include "audit/rules/words.h"

namespace pointsman::audit::rules {
namespace {

using python::Expr;
using python::ExprKind;

bool is_double(std::string_view n) { return is_one_of(n, {"torch.float64", "torch.double", "torch.DoubleTensor", "torch.cuda.DoubleTensor"}); }
bool is_complex(std::string_view n) { return is_one_of(n, {"torch.complex64", "torch.complex128", "torch.cfloat", "torch.cdouble"}); }

// if x.dtype == torch.float64, {"fp64": torch.float64}, isinstance(x, torch.DoubleTensor): a name, not a tensor.
bool only_named(const Expr& e) {
  for (const Expr* p = e.parent; p; p = p->parent) {
    if (p->is(ExprKind::kCompare) || p->is(ExprKind::kDict) || p->is(ExprKind::kSubscript)) return true;
    if (p->is(ExprKind::kCall)) return is_one_of(p->last_name(), {"isinstance", "finfo", "iinfo", "parametrize"});
  }
  return python::is_target(e);
}

// The tensor lives on the host: device="cpu", x.cpu().double().
bool on_host(const Expr& e) {
  for (const Expr* p = &e; p; p = p->parent) {
    if (!p->is(ExprKind::kCall)) continue;
    if (const Expr* d = p->keyword("device")) {
      auto s = python::constant_string(*d);
      return s && *s == "cpu";
    }
    if (python::find_within(*p->callee(), [](const Expr& x) { return x.is(ExprKind::kCall) && is_one_of(x.last_name(), {"cpu", "from_numpy"}); })) return true;
  }
  return false;
}

void python_file(const python::Module& m, Report& out) {
  for (const Expr* r : m.references()) {
    const bool real = is_double(r->full_name), complex = is_complex(r->full_name);
    if ((!real && !complex) || only_named(*r) || on_host(*r)) continue;
    out.add(*r, real ? "64-bit floats: few NPU operators take them (the others fall back to the CPU), and transfer_to_npu turns DoubleTensor into FloatTensor without a word"
                     : "complex numbers: few NPU operators take them");
  }
  for (const Expr* c : m.calls()) {
    if (c->full_name.empty() && c->last_name() == "double" && c->callee()->is(ExprKind::kAttribute) && c->children.size() == 1 && !on_host(*c)) {
      out.add(*c, Confidence::kLikely, "64-bit floats: few NPU operators take them, the others fall back to the CPU");
    }
    if (is_one_of(c->full_name, {"torch.view_as_complex", "torch.polar", "torch.complex"})) {
      Finding& f = out.add(*c, "complex numbers: few NPU operators take them");
      f.fix = "For rotary embeddings use cosine and sine with real arithmetic, or torch_npu.npu_rotary_mul (which checkpoints interleave halves: check the layout).";
    }
  }
}

}  // namespace

const Rule& x06_double_complex() {
  static constexpr Rule kRule = {
      .id = "X6",
      .name = "double-complex",
      .title = "64-bit floats and complex numbers",
      .severity = Severity::kWrongNumbers,
      .why = "NPU cores compute in fp16, bf16 and fp32. A 64-bit or complex tensor makes an operator fall back to the CPU, fail, or (under transfer_to_npu) silently become 32-bit.",
      .fix = "fp32 on the device, with compensated sums where needed; 64-bit work on the CPU (tensor.cpu().double()).",
      .versions = "all",
      .source = "torch_npu transfer_to_npu (DoubleTensor); CANN operator dtype tables",
      .python = python_file,
  };
  return kRule;
}

}  // namespace pointsman::audit::rules
