// SPDX-License-Identifier: Apache-2.0
//
// Row 9: a hand-written RMSNorm that takes the mean of squares in the type of its input.
#include <set>

#include "audit/rule.h"
#include "audit/rules/moe_words.h"
#include "audit/rules/precision.h"

namespace pointsman::audit::rules {
namespace {

using python::Expr;
using python::ExprKind;
using python::Stmt;

bool is_norm_name(std::string_view name) {
  return contains_any(name, {"rmsnorm", "rms_norm", "t5layernorm", "root_mean_square"});
}

// x.pow(2), torch.square(x), x * x, x ** 2
bool is_square(const Expr& e) {
  if (e.is(ExprKind::kBinary)) {
    if (e.text == "**") return e.children[1]->is(ExprKind::kNumber) && (e.children[1]->text == "2" || e.children[1]->text == "2.0");
    return e.text == "*" && e.children[0]->is(ExprKind::kName) && e.children[1]->is(ExprKind::kName) && e.children[0]->text == e.children[1]->text;
  }
  if (!e.is(ExprKind::kCall)) return false;
  if (e.last_name() == "square") return true;
  if (e.last_name() != "pow") return false;
  const Expr* power = e.full_name.empty() ? e.positional(0) : e.positional(1);
  return power && power->is(ExprKind::kNumber) && (power->text == "2" || power->text == "2.0");
}

void python_file(const python::Module& m, Report& out) {
  int searches = 0;
  for (const Expr* call : m.calls()) {
    if (call->last_name() != "mean") continue;
    const Stmt* f = python::enclosing_function(*call);
    const Stmt* c = python::enclosing_class(*call);
    if (!f || !((c && is_norm_name(c->name)) || is_norm_name(f->name)) || python::runs_only_on_cuda(*call)) continue;
    const bool function = python::is_under(*call, "torch");
    if (!function && (!call->full_name.empty() || !call->callee()->is(ExprKind::kAttribute))) continue;
    const Expr* x = function ? call->argument(0, "input") : call->callee()->children[0];
    const Expr* square = x ? python::flows_from(*x, [](const Expr& e) { return is_square(e); }) : nullptr;
    if (!square) continue;
    if (const Expr* dtype = call->keyword("dtype"); dtype && !is_narrow(float_type(*dtype))) continue;
    const Float f32 = nearest_cast(*x);
    if (f32 == Float::kFloat32) continue;
    if (++searches > kMaxSearches) break;
    // The caller casts, or only this method does not: self._norm(x.float()).
    bool cast_by_caller = false;
    for (const Expr* other : m.calls()) {
      if (other == call || python::enclosing_class(*other) != c || other->last_name() != f->name || other->children.size() < 2) continue;
      const Expr* a = other->positional(0);
      if (a && nearest_cast(*a) == Float::kFloat32) cast_by_caller = true;
    }
    if (cast_by_caller) continue;
    // x.to(self.compute_dtype), autocast(enabled=False): decided elsewhere.
    const bool unknown_cast = python::flows_from(*x, [](const Expr& e) {
      return e.is(ExprKind::kCall) && (e.last_name() == "to" || e.last_name() == "type" || e.last_name() == "astype") && e.children.size() > 1 && cast_of(e) == Float::kUnknown;
    }) != nullptr;
    if (unknown_cast || python::is_under(*call, "numpy")) continue;
    Finding& finding = out.add(*call, c && is_norm_name(c->name) ? Confidence::kCertain : Confidence::kLikely,
                               is_narrow(f32) ? std::string("the mean of squares is taken in ") + float_name(f32) : std::string("the mean of squares is taken in the type of the input, float16 or bfloat16 in a half model"));
    finding.related.push_back(out.related(square->span, "squared here"));
  }
}

void cpp_file(const cpp::File& f, Report& out) {
  std::set<int> seen;
  for (const cpp::Call& c : f.calls()) {
    const bool fma = is_one_of(c.last, {"__hfma", "__hfma2"}), product = is_one_of(c.last, {"__hmul", "__hmul2"});
    if ((!fma && !product) || c.arguments.size() < 2 || f.text(c.arguments[0]) != f.text(c.arguments[1])) continue;
    const cpp::Function* fn = f.function_of(c.token);
    const int id = f.tokens()[c.token].function;
    if (!fn || seen.count(id) != 0 || !contains_any(fn->name, {"norm"})) continue;
    seen.insert(id);
    out.add(c.name_span, Confidence::kCertain, "squares of a norm are taken in float16, whose range ends at 65504");
  }
}

}  // namespace

const Rule& r09_norm_dtype() {
  static constexpr Rule kRule = {
      .id = "R09",
      .name = "norm-dtype",
      .title = "Hand-written RMSNorm without float32",
      .severity = Severity::kWrongNumbers,
      .why = "Squares of float16 values overflow above 255, and a mean of thousands of bfloat16 squares loses most of its bits. CUDA builds often replace the class by a fused kernel that computes in "
             "float32; without that kernel, on an NPU, this code is what runs.",
      .fix = "torch_npu.npu_rms_norm(x, weight, epsilon)[0], or torch.nn.RMSNorm (PyTorch 2.4 and newer); in hand-written code x = x.float() before the square. Mind whether the weight is applied "
             "before or after the cast back: implementations differ.",
      .versions = "npu_rms_norm: A2, A3, 950 and 310P",
      .source = "pitfall table, row 9 (corrected: PyTorch has RMSNorm); op-plugin signature of npu_rms_norm; CANN operator page RmsNorm",
      .python = python_file,
      .cpp = cpp_file,
  };
  return kRule;
}

}  // namespace pointsman::audit::rules
