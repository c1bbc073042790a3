// SPDX-License-Identifier: Apache-2.0
//
// Row 8: softmax and cross-entropy of values that were rounded to 16 bits.
#include <set>

#include "audit/rule.h"
#include "audit/rules/moe_words.h"
#include "audit/rules/precision.h"

namespace pointsman::audit::rules {
namespace {

using python::Expr;
using python::ExprKind;
using python::Stmt;
using python::StmtKind;

bool is_softmax(const Expr& call) { return is_one_of(call.last_name(), {"softmax", "log_softmax", "logsumexp"}); }
bool is_loss(const Expr& call) { return is_one_of(call.last_name(), {"cross_entropy", "nll_loss", "binary_cross_entropy_with_logits", "kl_div"}); }

// Modules that became half by a statement of their own: `model.half()`.
std::vector<std::pair<std::string, const Expr*>> halved_in_place(const python::Module& m) {
  std::vector<std::pair<std::string, const Expr*>> out;
  for (const Stmt* s : m.statements()) {
    if (s->kind != StmtKind::kExpr || s->exprs.empty() || !is_narrow(cast_of(*s->exprs[0]))) continue;
    std::string name = python::dotted(*s->exprs[0]->callee()->children[0]);
    if (out.size() < 32 && !name.empty()) out.emplace_back(std::move(name), s->exprs[0]);
  }
  return out;
}

void python_file(const python::Module& m, Report& out) {
  const auto halved = halved_in_place(m);
  // CrossEntropyLoss objects by name: criterion = nn.CrossEntropyLoss().
  const auto is_loss_object = [](const Expr& call) {
    if (!call.full_name.empty() || call.children.size() < 3 || !(call.callee()->is(ExprKind::kName) || call.callee()->is(ExprKind::kAttribute))) return false;
    const auto defs = python::definitions_of(*call.callee());
    return defs.size() == 1 && defs[0]->value && defs[0]->value->is(ExprKind::kCall) && defs[0]->value->full_name == "torch.nn.CrossEntropyLoss";
  };
  int searches = 0;
  for (const Expr* call : m.calls()) {
    const bool object = is_loss_object(*call);
    const bool softmax = is_softmax(*call), loss = object || is_loss(*call);
    if ((!softmax && !loss) || python::runs_only_on_cuda(*call)) continue;
    const bool function = python::is_under(*call, "torch");
    if (!object && !function && (!call->full_name.empty() || !softmax || !call->callee()->is(ExprKind::kAttribute))) continue;
    const Expr* x = object || function ? call->argument(0, "input") : call->callee()->children[0];
    if (!x) continue;
    const Confidence confidence = function && call->resolution == python::Resolution::kImported ? Confidence::kCertain : Confidence::kLikely;
    const std::string what = object ? "the loss" : std::string(call->last_name());
    if (const Expr* dtype = call->keyword("dtype")) {
      const Float f = float_type(*dtype);
      if (is_narrow(f)) out.add(*call, confidence, what + " is computed in " + float_name(f) + " by its dtype argument");
      continue;  // given: float32, or decided elsewhere
    }
    if (++searches > kMaxFlows) break;
    // The nearest of: a cast, a module that was made half.
    const Expr* source = nullptr;
    const std::pair<std::string, const Expr*>* module = nullptr;
    source = python::flows_from(*x, [&](const Expr& e) {
      if (e.is(ExprKind::kCall)) return cast_of(e) != Float::kUnknown;
      if (!e.is(ExprKind::kName) && !e.is(ExprKind::kAttribute)) return false;
      for (const auto& h : halved) {  // few
        if (h.second->span.begin < e.span.begin && h.first == python::dotted(e) && python::enclosing_function(*h.second) == python::enclosing_function(e)) {
          module = &h;
          return true;
        }
      }
      return false;
    });
    if (!source) continue;
    const Float f = module ? cast_of(*module->second) : cast_of(*source);
    if (!is_narrow(f)) continue;
    const Expr& cast = module ? *module->second : *source;
    // What was cast may be an index, a target or a mask of the same expression.
    const bool weak = python::enclosing_function(cast) != python::enclosing_function(*call);
    Finding& finding = out.add(*call, weak ? Confidence::kHint : f == Float::kHalf ? confidence : Confidence::kLikely,
                               what + " of " + float_name(f) + " values: " + (f == Float::kHalf ? "exponentials and sums leave the range of float16" : "8 bits of mantissa decide near ties and small losses"));
    finding.related.push_back(out.related(cast.span, std::string("made ") + float_name(f) + " here"));
  }
}

void cpp_file(const cpp::File& f, Report& out) {
  std::set<int> seen;
  for (const cpp::Call& c : f.calls()) {
    if (!is_one_of(c.last, {"hexp", "h2exp", "hexp2", "h2exp2"})) continue;
    const cpp::Function* fn = f.function_of(c.token);
    const int id = f.tokens()[c.token].function;
    if (!fn || seen.count(id) != 0 || !contains_any(fn->name, {"softmax", "topk", "gating", "attention", "attn", "entropy"})) continue;
    seen.insert(id);
    out.add(c.name_span, Confidence::kCertain, "the exponentials of a softmax are computed in float16");
  }
}

}  // namespace

const Rule& r08_softmax_dtype() {
  static constexpr Rule kRule = {
      .id = "R08",
      .name = "softmax-dtype",
      .title = "Softmax or cross-entropy of 16-bit values",
      .severity = Severity::kWrongNumbers,
      .why = "The operators of CANN accept float16, bfloat16 and float32, so nothing fails; rounding of the scores before the exponential differs from what the CUDA kernels did inside, and near ties "
             "of a gate or small losses come out differently. Where autocast is on, it promotes both to float32 by itself; an explicit cast defeats that.",
      .fix = "Upcast first: softmax(x, dim=-1, dtype=torch.float32) and cross_entropy(logits.float(), target); cast the result back where the model wants it.",
      .versions = "all",
      .source = "pitfall table, row 8 (corrected: the operators take 16-bit input); CANN operator page Softmax; torch.amp lists of operators",
      .python = python_file,
      .cpp = cpp_file,
  };
  return kRule;
}

}  // namespace pointsman::audit::rules
