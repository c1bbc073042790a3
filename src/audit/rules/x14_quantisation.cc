// SPDX-License-Identifier: Apache-2.0
//
// X14. Style: casts and the names around them; the target SoC.
#include "audit/rule.h"
#include "audit/rules/words.h"

namespace pointsman::audit::rules {
namespace {

using python::Expr;
using python::ExprKind;
using python::Stmt;

bool is_fp8(std::string_view full_name) { return full_name.starts_with("torch.float8_e4m3") || full_name.starts_with("torch.float8_e5m2"); }

// The dtype of x.to(dtype), x.to(device, dtype), x.type(dtype), torch.tensor(..., dtype=...).
const Expr* cast_dtype(const Expr& call, auto&& wanted) {
  if (!call.is(ExprKind::kCall) || !is_one_of(call.last_name(), {"to", "type", "astype"})) return nullptr;
  for (size_t i = 1; i < call.children.size(); ++i) {
    const Expr* a = call.children[i];
    if (a->is(ExprKind::kKeyword)) a = a->children[0];
    if (wanted(a->full_name)) return a;
  }
  return nullptr;
}

bool knows_scale(const Stmt* s) {
  if (!s) return false;
  for (const python::Parameter& p : s->parameters) {
    if (contains_any(p.name, {"scale", "amax"})) return true;
  }
  return python::find_within(*s, [](const Expr& e) {
           return ((e.is(ExprKind::kName) || e.is(ExprKind::kAttribute)) && contains_any(e.text, {"scale", "amax", "absmax", "max_val", "quant"})) ||
                  (e.is(ExprKind::kCall) && is_one_of(e.last_name(), {"finfo"}));
         }) != nullptr;
}

void python_file(const python::Module& m, Report& out) {
  const bool no_fp8 = out.soc == Soc::kA2 || out.soc == Soc::kA3;
  for (const Expr* c : m.calls()) {
    if (const Expr* dtype = cast_dtype(*c, is_fp8)) {
      const Stmt* function = python::enclosing_function(*c);
      const bool scaled = function ? knows_scale(function) : c->stmt && knows_scale(c->stmt);
      const bool back = python::find_within(*c->callee(), [](const Expr& e) { return e.is(ExprKind::kCall) && is_one_of(e.last_name(), {"view", "randn", "rand", "zeros", "ones"}); }) != nullptr;
      if (!scaled && !back) {
        out.add(*c, dtype->resolution == python::Resolution::kImported ? Confidence::kLikely : Confidence::kHint,
                "a cast to an 8-bit float without a scale: e4m3 ends at 448 and rounds to three mantissa bits, so small weights vanish and large ones saturate");
      }
    }
    if (cast_dtype(*c, [](std::string_view n) { return n == "torch.float8_e8m0fnu"; })) {
      out.add(*c, Confidence::kHint, "a scale is cast to E8M0 without saying how it is rounded; rounding down overflows the block's largest value, rounding up loses a bit")
          .fix = "State the rule: floor of log2(amax) - emax (OCP), or the rounding-up rule; npu_dynamic_mx_quant has it as scale_alg.";
    }
    const std::string_view last = c->last_name();
    if (contains(last, "mx_quant") || contains(last, "mxfp")) {
      if (const Expr* b = c->keyword("block_size"); b) {
        if (auto v = python::constant_number(*b); v && (static_cast<int64_t>(*v) % 32 != 0 || *v > 1024)) {
          out.add(*b, Confidence::kCertain, "the block size of an MX format is a multiple of 32, at most 1024").severity = Severity::kBlocks;
        }
      }
      if (no_fp8 && last.starts_with("npu_")) {
        out.add(*c, Confidence::kCertain, std::string(last) + " exists on 950 only; the target is " + soc_name(out.soc)).severity = Severity::kBlocks;
      }
    }
  }
  if (!no_fp8) return;
  const Expr* first = nullptr;
  for (const Expr* r : m.references()) {
    if (!is_fp8(r->full_name) || (r->parent && (r->parent->is(ExprKind::kCompare) || r->parent->is(ExprKind::kDict)))) continue;
    first = r;
    break;
  }
  if (first) {
    Finding& f = out.add(*first, "8-bit floats: no FP8 or MX arithmetic on " + std::string(soc_name(out.soc)) + " (950 only)");
    f.severity = Severity::kBlocks;
    f.fix = "INT8 (npu_dynamic_quant with npu_grouped_matmul or npu_quant_matmul) on A2 and A3; MXFP8 on 950.";
  }
}

void cpp_file(const cpp::File& f, Report& out) {
  if (out.soc != Soc::kA2 && out.soc != Soc::kA3) return;
  for (const cpp::Call& c : f.calls()) {
    if (c.is_member || !c.name.starts_with("aclnn") || c.name.find("Mx") == std::string::npos) continue;
    out.add(c.name_span, Confidence::kCertain, c.name + " works in MX formats, which exist on 950 only; the target is " + soc_name(out.soc)).severity = Severity::kBlocks;
  }
}

}  // namespace

const Rule& x14_quantisation() {
  static constexpr Rule kRule = {
      .id = "X14",
      .name = "quantisation",
      .title = "Low-bit formats used without what they need",
      .severity = Severity::kWrongNumbers,
      .why = "An FP8 tensor means something only with its scale; an MX block holds 32 values under one power of two, so the inner size must be a multiple of 32 (64 for the paired scale "
             "layout of the grouped matmul), and the rounding of the scale is part of the format. A2 and A3 have no FP8 units.",
      .fix = "Quantise with an explicit scale (npu_dynamic_mx_quant, npu_dynamic_quant), keep the scale beside the data, pad K to a multiple of 64.",
      .versions = "FP8 and MX on 950PR and 950DT; INT8 on A2 and A3",
      .source = "CANN operator tables (GroupedMatmul, DynamicMxQuant); OCP Microscaling Formats 1.0",
      .python = python_file,
      .cpp = cpp_file,
  };
  return kRule;
}

}  // namespace pointsman::audit::rules
