// SPDX-License-Identifier: Apache-2.0
//
// Row 5: the experts' matrices are multiplied by a grouped GEMM of CUDA, by a loop over the experts, or as a padded batch.
#include "audit/rule.h"
#include "audit/rules/moe_words.h"

namespace pointsman::audit::rules {
namespace {

using python::Expr;
using python::ExprKind;
using python::Stmt;
using python::StmtKind;

Confidence confidence_of(const Expr& e) { return e.resolution == python::Resolution::kImported ? Confidence::kCertain : Confidence::kLikely; }

void calls(const python::Module& m, Report& out) {
  for (const Expr* call : m.calls()) {
    const std::string_view name = call->last_name(), full = call->full_name;
    if (full.empty() || python::runs_only_on_cuda(*call)) continue;
    if (full == "torch._grouped_mm" || full == "torch._scaled_grouped_mm" || full == "torch.nn.functional.grouped_mm" || full == "torch.nn.functional.scaled_grouped_mm") {
      out.add(*call, std::string(name) + " is a kernel of CUDA; torch_npu has a grouped product of its own");
    } else if ((python::is_under(full, "grouped_gemm") || python::is_under(full, "gg") || contains(full, "grouped_gemm_util") || python::is_under(full, "megablocks")) &&
               is_one_of(name, {"gmm", "padded_gmm", "sdd", "dsd", "dds"})) {
      out.add(*call, "a grouped or block-sparse product from a CUDA extension; torch_npu has a grouped product of its own");
    } else if ((python::is_under(full, "deep_gemm") && contains(name, "grouped")) || (python::is_under(full, "flashinfer") && (contains(name, "group") || contains(name, "moe")))) {
      if (contains(name, "gemm") || contains(name, "moe") || contains(name, "mm_")) out.add(*call, "a grouped product from a CUDA extension; torch_npu has one of its own");
    }
  }
}

bool names_experts(const Expr& e) { return mentions(e, [](std::string_view n) { return contains(lower(n), "expert") && !contains(lower(n), "per_tok"); }); }

// Loading, converting, initialising: not the computation.
bool is_setup(const Stmt* function) {
  if (!function) return true;  // scripts and class bodies
  return contains_any(function->name, {"init", "load", "save", "convert", "state_dict", "reset", "weights", "quant", "export", "pack", "shard", "split", "merge", "build", "prepare", "mapping",
                                       "print", "param", "backward_dw", "setup", "warm", "register", "replace", "copy", "unload", "free", "test_", "dummy"});
}

// Products of a loop's body that take the loop's expert.
const Expr* product_in(const Stmt& loop) {
  std::vector<std::string_view> variables;
  for (const Expr* t : loop.targets) {
    if (t->is(ExprKind::kName)) variables.push_back(t->text);
    for (const Expr* c : t->children) {
      if (c->is(ExprKind::kName)) variables.push_back(c->text);
    }
  }
  const auto is_variable = [&](const Expr& e) { return e.is(ExprKind::kName) && std::find(variables.begin(), variables.end(), e.text) != variables.end(); };
  // experts[i], w1[i]
  const auto picks = [&](const Expr& e) { return e.is(ExprKind::kSubscript) && python::find_within(*e.children[1], is_variable); };
  int searches = 0;
  const auto product = [&](const Expr& e) {
    if (searches > kMaxSearches) return false;
    if (e.is(ExprKind::kBinary) && e.text == "@") return ++searches > 0 && python::flows_from(*e.children[1], picks) != nullptr;
    if (!e.is(ExprKind::kCall)) return false;
    if (is_one_of(e.last_name(), {"linear", "matmul", "mm", "addmm"}) && (e.full_name.empty() || python::is_under(e, "torch"))) {
      for (size_t i = 1; i < e.children.size(); ++i) {
        ++searches;
        const Expr& a = e.children[i]->is(ExprKind::kKeyword) ? *e.children[i]->children[0] : *e.children[i];
        if (python::flows_from(a, [&](const Expr& x) { return picks(x) && !is_variable(*x.children[0]); })) return true;
      }
    }
    // expert(x), self.experts[i](x), where the arguments are data.
    if (e.children.size() < 2) return false;
    const Expr& callee = *e.callee();
    if (callee.is(ExprKind::kSubscript)) return picks(callee) && names_experts(callee);
    if (!callee.is(ExprKind::kName)) return false;
    if (is_variable(callee)) return names_experts(callee) || (!loop.exprs.empty() && names_experts(*loop.exprs[0]));
    if (!names_experts(callee)) return false;
    for (const auto* d : python::definitions_of(callee)) {
      if (d->value && (picks(*d->value) || python::find_within(*d->value, is_variable))) return true;
    }
    return false;
  };
  for (const Stmt* s : loop.body) {
    if (const Expr* hit = python::find_within(*s, product)) return hit;
  }
  return nullptr;
}

void loops(const python::Module& m, Report& out) {
  int searches = 0;
  for (const Stmt* s : m.statements()) {
    if (s->kind != StmtKind::kFor || s->exprs.empty() || s->targets.empty() || python::runs_only_on_cuda(*s)) continue;
    const Expr& over = *s->exprs[0];
    if (is_setup(python::enclosing_function(s))) continue;
    const bool experts = python::flows_from(over, [](const Expr& e) {
      return (e.is(ExprKind::kName) || e.is(ExprKind::kAttribute)) && contains(lower(e.text), "expert") && !contains(lower(e.text), "per_tok");
    }) != nullptr || names_experts(*s->targets[0]);
    if (!experts) continue;
    if (++searches > kMaxSearches) break;
    const Expr* product = product_in(*s);
    if (!product) continue;
    Finding& f = out.add(s->header, Confidence::kLikely, "the experts are run one after the other in a Python loop: many small products that leave most of the cores idle");
    f.related.push_back(out.related(product->span, "the product of one expert"));
  }
}

void padded_batches(const python::Module& m, Report& out) {
  for (const Expr* call : m.calls()) {
    if (!is_one_of(call->last_name(), {"bmm", "baddbmm"}) || !python::is_under(*call, "torch") || python::runs_only_on_cuda(*call)) continue;
    const Stmt* c = python::enclosing_class(*call);
    const Stmt* f = python::enclosing_function(*call);
    if (is_setup(f)) continue;
    const bool place = (c && contains(lower(c->name), "expert")) || (f && contains(lower(f->name), "expert"));
    if (!place && !names_experts(*call)) continue;
    out.add(*call, confidence_of(*call), "the experts are multiplied as a batch that is padded to the largest of them; a grouped product needs no padding");
  }
}

void triton_kernels(const python::Module& m, Report& out) {
  for (const Stmt* f : m.functions()) {
    const auto triton = [](const Expr* d) {
      const Expr& name = d->is(ExprKind::kCall) ? *d->callee() : *d;
      return name.full_name == "triton.jit" || name.full_name == "triton.autotune";
    };
    if (std::none_of(f->decorators.begin(), f->decorators.end(), triton)) continue;
    const std::string name = lower(f->name);
    const bool grouped = contains(name, "group") || is_expert_name(f->name);
    const bool product = contains(name, "gemm") || contains(name, "gmm") || contains(name, "matmul") || contains(name, "fused_moe") || contains(name, "_mm") || contains(name, "bmm");
    if (grouped && product) out.add(name_span(m.unit(), f->header, f->name), Confidence::kLikely, "a grouped product written in Triton; torch_npu has a grouped product of its own");
  }
}

void python_file(const python::Module& m, Report& out) {
  calls(m, out);
  loops(m, out);
  padded_batches(m, out);
  triton_kernels(m, out);
}

void cpp_file(const cpp::File& f, Report& out) {
  std::vector<std::string> seen;
  for (const cpp::Token& t : f.tokens()) {
    if (t.kind != cpp::TokenKind::kIdentifier) continue;
    const std::string_view name = f.unit().slice(t.span);
    const bool cutlass = is_one_of(name, {"GemmGrouped", "DefaultGemmGrouped", "GroupProblemShape", "GemmUniversalGrouped", "KernelPtrArrayTmaWarpSpecializedCooperative"});
    const bool cublas = name.starts_with("cublas") && contains(name, "GroupedBatched");
    if ((!cutlass && !cublas) || f.runs_under(t.condition, {"USE_ROCM", "__HIP__"})) continue;
    if (std::find(seen.begin(), seen.end(), name) != seen.end()) continue;  // once a file
    seen.emplace_back(name);
    out.add(t.span, Confidence::kCertain, "a grouped GEMM of " + std::string(cublas ? "cuBLAS" : "CUTLASS") + "; CANN has aclnnGroupedMatmul").fix =
        "aclnnGroupedMatmulV4 with splitItem 3 and groupType 0 (0 along M, 2 along K for the gradient of the weights); groupListType 0 takes cumulative sums, 1 counts.";
  }
}

}  // namespace

const Rule& r05_grouped_gemm() {
  static constexpr Rule kRule = {
      .id = "R05",
      .name = "grouped-gemm",
      .title = "Products of experts by a CUDA grouped GEMM, a loop or a padded batch",
      .severity = Severity::kPerformance,
      .why = "The CUDA kernels do not exist on an NPU, and loops and padded batches waste it. CANN multiplies all experts in one operator that takes the tokens in expert order and the counts.",
      .fix = "torch_npu.npu_grouped_matmul([x], [w], group_list=counts, split_item=3, group_type=0, group_list_type=1): group_list_type 0 takes cumulative sums, 1 counts; one 3-D weight tensor "
             "for more than 128 experts (lists hold 128 tensors, a group_list tensor 1024 groups); K a multiple of 64 for MX formats.",
      .versions = "fp16, bf16 and fp32 on A2, A3 and 950; MXFP8 and MXFP4 on 950 only",
      .source = "pitfall table, row 5; op-plugin signature of npu_grouped_matmul; CANN operator page GroupedMatmul",
      .python = python_file,
      .cpp = cpp_file,
  };
  return kRule;
}

}  // namespace pointsman::audit::rules
