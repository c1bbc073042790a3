// SPDX-License-Identifier: Apache-2.0
#include "audit/rules/precision.h"

namespace pointsman::audit::rules {

using python::Expr;
using python::ExprKind;

const char* float_name(Float f) {
  switch (f) {
    case Float::kHalf: return "float16";
    case Float::kBfloat16: return "bfloat16";
    case Float::kFloat32: return "float32";
    case Float::kUnknown: break;
  }
  return "unknown";
}

Float float_type(std::string_view t) {
  if (t.starts_with("torch.")) t.remove_prefix(6);
  if (t == "fp16" || t == "float16" || t == "half" || t == "FP16") return Float::kHalf;
  if (t == "bf16" || t == "bfloat16" || t == "BF16") return Float::kBfloat16;
  if (t == "fp32" || t == "float32" || t == "float" || t == "float64" || t == "double" || t == "FP32") return Float::kFloat32;
  return Float::kUnknown;
}

Float float_type(const Expr& e) {
  if (e.is(ExprKind::kString)) return e.is_formatted ? Float::kUnknown : float_type(e.text);
  if (e.is(ExprKind::kAttribute)) {
    if (e.full_name.starts_with("torch.") && e.full_name.find('.', 6) == e.full_name.npos) return float_type(e.full_name);
  }
  if (e.is(ExprKind::kName) || e.is(ExprKind::kAttribute)) {
    const auto defs = python::definitions_of(e);
    if (defs.size() == 1 && defs[0]->value && defs[0]->tuple_index < 0 && defs[0]->value != &e && defs[0]->kind == python::DefinitionKind::kAssign) {
      const Expr& v = *defs[0]->value;
      if (v.is(ExprKind::kString) || v.full_name.starts_with("torch.")) return v.is(ExprKind::kString) ? float_type(v.text) : float_type(v.full_name);
    }
  }
  return Float::kUnknown;
}

Float cast_of(const Expr& call) {
  if (!call.is(ExprKind::kCall) || !call.callee()->is(ExprKind::kAttribute)) return Float::kUnknown;
  const std::string_view name = call.callee()->text;
  const bool bare = call.children.size() == 1;
  if (name == "half" && bare) return Float::kHalf;
  if (name == "bfloat16" && bare) return Float::kBfloat16;
  if ((name == "float" || name == "double") && bare) return Float::kFloat32;
  if (name != "to" && name != "type") return Float::kUnknown;
  if (const Expr* k = call.keyword("dtype")) return float_type(*k);
  for (size_t i = 1; i < call.children.size(); ++i) {
    const Expr& a = *call.children[i];
    if (a.is(ExprKind::kKeyword) || a.is(ExprKind::kString)) continue;
    if (const Float f = float_type(a); f != Float::kUnknown) return f;
  }
  return Float::kUnknown;
}

Float nearest_cast(const Expr& e, const Expr** cast) {
  const auto casts = [](const Expr& x) {
    if (!x.is(ExprKind::kCall)) return false;
    if (cast_of(x) != Float::kUnknown) return true;
    const Expr* dtype = x.keyword("dtype");
    return dtype && float_type(*dtype) != Float::kUnknown;
  };
  const Expr* at = python::flows_from(e, casts);
  if (cast) *cast = at;
  if (!at) return Float::kUnknown;
  const Float f = cast_of(*at);
  return f != Float::kUnknown ? f : float_type(*at->keyword("dtype"));
}

}  // namespace pointsman::audit::rules
