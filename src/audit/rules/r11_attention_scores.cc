// SPDX-License-Identifier: Apache-2.0
//
// Row 11: scores of attention are multiplied out in float16 before they are scaled.
#include <map>
#include <set>

#include "audit/rule.h"
#include "audit/rules/moe_words.h"
#include "audit/rules/precision.h"

namespace pointsman::audit::rules {
namespace {

using python::Expr;
using python::ExprKind;

bool names(const Expr& e, std::initializer_list<std::string_view> exact, std::initializer_list<std::string_view> parts) {
  return python::find_within(e, [&](const Expr& x) {
           if (!x.is(ExprKind::kName) && !x.is(ExprKind::kAttribute)) return false;
           const std::string s = lower(x.text);
           return is_one_of(s, exact) || contains_any(s, parts);
         }) != nullptr;
}
bool is_query(const Expr& e) { return names(e, {"q", "xq", "qi", "q_states", "q_pe", "q_nope"}, {"query", "queries", "q_heads"}); }
bool is_key(const Expr& e) { return names(e, {"k", "xk", "kt", "k_t", "k_states", "keys", "k_pe", "k_nope"}, {"key_states", "key_layer", "key_t", "key"}); }

// k.transpose(-1, -2), k.transpose(2, 3), k.mT, k.permute(0, 2, 3, 1); or a name that was made so.
bool is_transposed(const Expr& e) {
  return python::flows_from(e, [](const Expr& x) {
           if (x.is(ExprKind::kAttribute)) return x.text == "mT" || x.text == "T";
           return x.is(ExprKind::kCall) && is_one_of(x.last_name(), {"transpose", "permute", "swapaxes", "t", "adjoint", "swapdims"});
         }) != nullptr;
}

struct Product {
  const Expr *q = nullptr, *k = nullptr;
};

std::optional<Product> scores(const Expr& e) {
  Product p;
  if (e.is(ExprKind::kBinary) && e.text == "@") {
    p = {e.children[0], e.children[1]};
  } else if (e.is(ExprKind::kCall)) {
    const std::string_view name = e.last_name();
    const bool function = python::is_under(e, "torch");
    if (name == "matmul" || name == "bmm") {
      if (function) {
        p = {e.positional(0), e.positional(1)};
      } else if (e.full_name.empty() && e.callee()->is(ExprKind::kAttribute)) {
        p = {e.callee()->children[0], e.positional(0)};
      }
    } else if (name == "einsum" && function) {
      p = {e.positional(1), e.positional(2)};
      const Expr* equation = e.positional(0);
      if (!p.q || !p.k || !equation || !equation->is(ExprKind::kString) || !is_query(*p.q) || !is_key(*p.k)) return std::nullopt;
      return p;
    } else {
      return std::nullopt;
    }
  } else {
    return std::nullopt;
  }
  if (!p.q || !p.k || !is_query(*p.q) || !is_key(*p.k) || !is_transposed(*p.k)) return std::nullopt;
  return p;
}

// q * scale, q / sqrt(d), a scaled query of a caller: the product stays in range.
bool is_scaled(const Expr& e) {
  return python::flows_from(e, [](const Expr& x) {
           if (x.is(ExprKind::kBinary) && (x.text == "*" || x.text == "/")) {
             for (const Expr* c : x.children) {
               if (c->is(ExprKind::kNumber) || (c->is(ExprKind::kBinary) && c->text == "**") || names(*c, {"d", "scale"}, {"scal", "sqrt", "norm_factor", "head_dim", "inv_"})) return true;
             }
           }
           if (x.is(ExprKind::kCall) && is_one_of(x.last_name(), {"mul", "mul_", "div", "div_"})) return true;
           // Normalised queries (QK norm) are bounded.
           return x.is(ExprKind::kCall) && (x.last_name() == "normalize" || contains_any(x.last_name(), {"q_norm", "qnorm", "query_norm", "q_layernorm"}));
         }) != nullptr ||
         python::find_within(e, [](const Expr& x) { return x.is(ExprKind::kName) && contains_any(x.text, {"scaled_q", "q_scaled", "scaled_query", "query_scaled"}); }) != nullptr;
}

struct Evidence {
  bool half = false, bfloat16 = false;
};

// What the class around the product says of types; without one, the file.
Evidence evidence(const python::Module& m, const python::Stmt* owner) {
  Evidence e;
  const auto inside = [&](Span s) { return !owner || (s.begin >= owner->span.begin && s.end <= owner->span.end); };
  for (const Expr* c : m.calls()) {
    if (!inside(c->span)) continue;
    const Float f = cast_of(*c);
    e.half = e.half || f == Float::kHalf;
    e.bfloat16 = e.bfloat16 || f == Float::kBfloat16;
  }
  for (const Expr* r : m.references()) {
    if (!inside(r->span) || (r->parent && r->parent->is(ExprKind::kCompare))) continue;
    const Float f = r->full_name.starts_with("torch.") ? float_type(r->full_name) : Float::kUnknown;
    e.half = e.half || f == Float::kHalf;
    e.bfloat16 = e.bfloat16 || f == Float::kBfloat16;
  }
  return e;
}

void python_file(const python::Module& m, Report& out) {
  std::set<const Expr*> seen;
  int searches = 0;
  std::map<const python::Stmt*, Evidence> types_of;
  for (const Expr* softmax : m.calls()) {
    if (softmax->last_name() != "softmax" || python::runs_only_on_cuda(*softmax)) continue;
    const bool function = python::is_under(*softmax, "torch");
    const Expr* x = function ? softmax->argument(0, "input") : softmax->full_name.empty() && softmax->callee()->is(ExprKind::kAttribute) ? softmax->callee()->children[0] : nullptr;
    // self.softmax(scores): a module.
    if (!function && softmax->positional(0) && !softmax->positional(0)->is(ExprKind::kNumber) && !softmax->positional(0)->is(ExprKind::kUnary)) x = softmax->positional(0);
    if (!x) continue;
    if (++searches > kMaxFlows) break;
    const Expr* product = python::flows_from(*x, [](const Expr& e) { return scores(e).has_value(); });
    if (!product || !seen.insert(product).second) continue;
    const Product p = *scores(*product);
    const python::Stmt* owner = python::enclosing_class(*product);
    if (types_of.count(owner) == 0) {
      if (types_of.size() > kMaxSearches) break;
      types_of[owner] = evidence(m, owner);
    }
    const Evidence types = types_of[owner];
    const Float q = nearest_cast(*p.q), k = nearest_cast(*p.k);
    if (q == Float::kFloat32 || k == Float::kFloat32 || is_scaled(*p.q) || is_scaled(*p.k)) continue;
    // torch.baddbmm(alpha=...) scales inside; a bfloat16 product has the range of float32.
    const bool half = is_narrow(q) ? q == Float::kHalf : types.half;
    if (!half && (is_narrow(q) || types.bfloat16)) continue;
    Finding& f = out.add(*product, q == Float::kHalf || k == Float::kHalf ? Confidence::kCertain : half ? Confidence::kLikely : Confidence::kHint,
                         half ? "scores of attention are multiplied out in float16 before they are scaled; large ones become infinite" : "scores of attention are multiplied out before they are scaled; in float16 large ones become infinite");
    f.related.push_back(out.related(softmax->span, "their softmax"));
  }
}

bool is_attention(std::string_view name) { return contains_any(name, {"attn", "attention", "qk"}); }

void cpp_file(const cpp::File& f, Report& out) {
  std::set<int> seen;
  const auto add = [&](Span span, uint32_t token, bool exact) {
    const cpp::Function* fn = f.function_of(token);
    const int id = f.tokens()[token].function;
    if (seen.count(id) != 0 || f.runs_under(f.tokens()[token].condition, {"USE_ROCM", "__HIP__"})) return;
    const bool attention = fn && (is_attention(fn->name) || mentions(f, {fn->first, fn->last}, is_attention));
    if (!attention && !exact) return;
    seen.insert(id);
    out.add(span, attention ? Confidence::kCertain : Confidence::kHint, attention ? "scores of attention are accumulated in float16" : "a product accumulates in float16; if it makes scores of attention, large ones become infinite").fix =
        "aclnnFusedInferAttentionScore or aclnnFlashAttentionScoreV2 with innerPrecise 0; aclnnMatmul with cubeMathType that keeps float32 sums.";
  };
  for (const cpp::Call& c : f.calls()) {
    const bool gemm = c.last.starts_with("cublas") && (contains(c.last, "GemmEx") || contains(c.last, "GemmStridedBatchedEx") || contains(c.last, "GemmBatchedEx"));
    if (gemm) {
      for (const cpp::TokenRange& a : c.arguments) {
        if (f.mentions(a, "CUBLAS_COMPUTE_16F") || f.mentions(a, "CUBLAS_COMPUTE_16F_PEDANTIC") || (&a >= &c.arguments[c.arguments.size() > 2 ? c.arguments.size() - 2 : 0] && f.mentions(a, "CUDA_R_16F")))
          add(c.name_span, c.token, true);
      }
    }
    if (c.last.starts_with("cublasHgemm")) add(c.name_span, c.token, true);
  }
}

}  // namespace

const Rule& r11_attention_scores() {
  static constexpr Rule kRule = {
      .id = "R11",
      .name = "attention-scores",
      .title = "Attention scores in float16 before scaling",
      .severity = Severity::kWrongNumbers,
      .why = "A product of queries and keys over 128 values easily passes 65504, the end of float16, before the division by the square root of the head size; the softmax then sees infinities. On CUDA "
             "the same code is often replaced by a fused kernel with float32 scores, which an NPU does not have under that name.",
      .fix = "Scale the query before the product, or use fused attention: torch_npu.npu_fusion_attention or torch_npu.npu_fused_infer_attention_score with inner_precise=0 (0 high precision, 1 high "
             "performance; it differs for float16 only). Neither applies rotary embeddings: rotate first (torch_npu.npu_rotary_mul).",
      .versions = "all",
      .source = "pitfall table, row 11 (corrected: prompt attention does not include rotary embeddings); CANN operator pages of fused attention, innerPrecise",
      .python = python_file,
      .cpp = cpp_file,
  };
  return kRule;
}

}  // namespace pointsman::audit::rules
