// SPDX-License-Identifier: Apache-2.0
//
// X13. Style: names and arguments; two names that contradict each other; advice in prose.
#include "audit/rule.h"
#include "audit/rules/words.h"

namespace pointsman::audit::rules {
namespace {

using python::Expr;
using python::ExprKind;
using python::Stmt;

bool is_float8(const Expr& e) {
  return python::find_within(e, [](const Expr& x) { return (x.is(ExprKind::kName) || x.is(ExprKind::kAttribute)) && (x.text.starts_with("float8") || x.text.starts_with("float4")); }) != nullptr;
}

void check_clip(const Expr& call, Report& out) {
  const Expr* x = call.argument(0, "parameters");
  if (!x) return;
  const auto of_parameters = [](const Expr& e) {
    return (e.is(ExprKind::kName) || e.is(ExprKind::kAttribute)) && contains_any(e.text, {"param", "grad", "weight", "model", "module", "optim", "group"});
  };
  if (python::flows_from(*x, of_parameters)) return;
  const Expr* activation = python::flows_from(*x, [](const Expr& e) {
    return (e.is(ExprKind::kName) || e.is(ExprKind::kAttribute)) && contains_any(e.text, {"logit", "hidden", "activation", "output", "score", "attn", "x_norm"});
  });
  const Stmt* function = python::enclosing_function(call);
  if (!activation && !(function && function->name == "forward")) return;
  out.add(call, Confidence::kLikely, "clip_grad_norm_ scales the gradients of parameters; given activations it changes nothing in the forward pass")
      .fix = "Bound activations where the model defines it (a clamp that was trained), or keep the gate in fp32; clip_grad_norm_(model.parameters(), max_norm) belongs after backward().";
}

// 1 / k: the same weight for each chosen expert.
bool is_reciprocal(const Expr& e) {
  return python::find_within(e, [](const Expr& x) {
           return x.is(ExprKind::kBinary) && x.text == "/" && x.children.size() == 2 && x.children[0]->is(ExprKind::kNumber) && is_one_of(x.children[0]->text, {"1", "1.0", "1."});
         }) != nullptr;
}

void check_uniform(const Expr& call, Report& out) {
  const Expr* value = call.argument(1, "fill_value");
  if (!value || !is_reciprocal(*value) || !call.stmt) return;
  bool weights = false;
  for (const Expr* t : call.stmt->targets) {
    weights |= python::find_within(*t, [](const Expr& e) { return (e.is(ExprKind::kName) || e.is(ExprKind::kAttribute)) && contains_any(e.text, {"weight", "prob", "score", "gate"}); }) != nullptr;
  }
  if (!weights) return;
  for (const python::Guard& g : python::guards(call)) {
    const Expr* deviates = python::find_within(*g.condition, [](const Expr& e) {
      return e.is(ExprKind::kCall) && is_one_of(e.last_name(), {"isnan", "isinf", "isfinite", "any", "abs", "allclose", "sum"});
    });
    if (!deviates) continue;
    Finding& f = out.add(call, Confidence::kLikely, "when the weights look wrong they are replaced by equal ones: the error upstream is hidden and the output is another model's");
    f.related.push_back(out.related(deviates->span, "the test"));
    f.fix = "Stop (or count and report) when the sum of the weights deviates or is NaN, naming layer and token.";
    return;
  }
}

bool is_kl(const Expr& e) {
  return (e.is(ExprKind::kCall) && is_one_of(e.last_name(), {"kl_div", "kl_divergence", "KLDivLoss"})) || (e.is(ExprKind::kName) && is_one_of(lower(e.text), {"kl", "kl_div", "kl_mean", "kl_max"}));
}

void python_file(const python::Module& m, Report& out) {
  for (const Expr* c : m.calls()) {
    if (c->full_name == "torch.nn.utils.clip_grad_norm_" || c->full_name == "torch.nn.utils.clip_grad_norm") check_clip(*c, out);
    if (is_one_of(c->full_name, {"torch.autocast", "torch.amp.autocast", "torch.cuda.amp.autocast", "torch.npu.amp.autocast", "torch_npu.npu.amp.autocast"})) {
      const Expr* dtype = c->keyword("dtype");
      if (!dtype) dtype = c->positional(c->full_name.ends_with("amp.autocast") && c->full_name != "torch.amp.autocast" ? 0 : 1);
      if (dtype && is_float8(*dtype)) {
        out.add(*c, "autocast has no 8-bit or 4-bit mode: on an NPU it takes fp16, bf16 and fp32 only")
            .fix = "Quantise explicitly: npu_dynamic_mx_quant and npu_quant_matmul or npu_grouped_matmul with scales (MX formats on 950 only).";
      }
    }
    if (is_one_of(c->full_name, {"torch.cuda.Stream", "torch.npu.Stream", "torch_npu.npu.Stream", "torch.Stream"})) {
      const Expr* p = c->argument(1, "priority");
      if (p && !(p->is(ExprKind::kNumber) && p->text == "0")) {
        Finding& f = out.add(*c, "the priority of a stream is accepted and has no effect on an NPU; work that relied on it is not put first");
        f.severity = Severity::kPerformance;
        f.fix = "A separate stream, with events where order matters.";
      }
    }
    if (is_one_of(c->full_name, {"torch.full_like", "torch.full"})) check_uniform(*c, out);
  }
  // A KL divergence beside an allclose with its default tolerances: two numbers that nobody can reconcile.
  for (const Expr* c : m.calls()) {
    if (c->full_name != "torch.allclose" || c->keyword("rtol") || c->keyword("atol") || c->positional(2) || c->has_unpacking()) continue;
    const Stmt* function = python::enclosing_function(*c);
    for (const Expr* k : m.calls()) {
      if (!is_kl(*k) || python::enclosing_function(*k) != function) continue;
      Finding& f = out.add(*c, Confidence::kLikely, "allclose with its default tolerances beside a KL divergence: say on which tensors and with which tolerances each was taken");
      f.related.push_back(out.related(k->span, "the divergence"));
      f.fix = "torch.allclose(a, b, rtol=..., atol=...) on the same tensors as the divergence; `pointsman compare` prints both.";
      break;
    }
  }
}

size_t sentence_begin(std::string_view text, size_t at) {
  const size_t line = text.rfind('\n', at);
  return line == std::string_view::npos ? 0 : line + 1;
}

// Advice outside of code blocks: "clip_grad_norm_ before the gate", "KL 0.8 although torch.allclose returns True".
void prose(const Unit& unit, Report& out) {
  const std::string_view text = unit.text;
  const auto sentence = [&](size_t at) {
    const size_t begin = sentence_begin(text, at);
    return text.substr(begin, std::min(text.find('\n', at), text.size()) - begin);
  };
  for (size_t at = text.find("clip_grad_norm_"); at != std::string_view::npos; at = text.find("clip_grad_norm_", at + 1)) {
    const std::string_view s = sentence(at);
    if (!contains_any(s, {"gate", "logit", "activation", "forward", "门控", "激活"}) || contains_any(s, {"backward", "optimizer", "反向"})) continue;
    if (s.find('(') != std::string_view::npos && s.find("clip_grad_norm_(") != std::string_view::npos) continue;  // code: the other callback's
    out.add(Span{static_cast<uint32_t>(at), static_cast<uint32_t>(at + 15)}, Confidence::kHint, "clip_grad_norm_ is recommended for activations; it acts on gradients, and changes nothing at inference");
  }
  for (size_t at = text.find("allclose"); at != std::string_view::npos; at = text.find("allclose", at + 1)) {
    const std::string_view s = sentence(at);
    if (s.find("KL") == std::string_view::npos || contains_any(s, {"rtol", "atol"})) continue;
    out.add(Span{static_cast<uint32_t>(at), static_cast<uint32_t>(at + 8)}, Confidence::kHint, "a KL divergence stands beside an allclose without tolerances; both can be true only of different tensors");
  }
}

}  // namespace

const Rule& x13_misuse() {
  static constexpr Rule kRule = {
      .id = "X13",
      .name = "misuse",
      .title = "An API used for what it does not do",
      .severity = Severity::kWrongNumbers,
      .why = "Calls that look like a remedy and have no effect, or hide the fault: gradient clipping of activations, autocast to 8-bit formats, stream priorities, equal weights instead of "
             "an error, tolerances that nobody chose.",
      .fix = "See the finding; in short: keep gates in fp32, quantise explicitly, order with events, fail on bad weights, state tolerances.",
      .versions = "all",
      .source = "torch_npu autocast_utils; torch.nn.utils documentation; practitioner's guide §3.2 and §4.1, corrected",
      .python = python_file,
      .prose = prose,
  };
  return kRule;
}

}  // namespace pointsman::audit::rules
