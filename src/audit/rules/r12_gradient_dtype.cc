// SPDX-License-Identifier: Apache-2.0
//
// Row 12: gradients are summed over ranks in 16 bits.
#include "audit/rule.h"
#include "audit/rules/precision.h"
#include "audit/rules/moe_words.h"

namespace pointsman::audit::rules {
namespace {

using python::Expr;
using python::ExprKind;

std::string message(Float f, std::string_view how) { return "gradients are summed over ranks in " + std::string(float_name(f)) + " (" + std::string(how) + ")"; }

bool is_reduction(std::string_view name) { return is_one_of(name, {"all_reduce", "reduce_scatter", "reduce_scatter_tensor", "_reduce_scatter_base", "reduce", "all_reduce_coalesced"}); }

bool is_gradient(const Expr& e) {
  if (!e.is(ExprKind::kName) && !e.is(ExprKind::kAttribute)) return false;
  const std::string s = lower(e.text);
  return s == "grad" || s == "grads" || s == "main_grad" || s.starts_with("grad_") || s.ends_with("_grad") || s.ends_with("_grads") || contains(s, "gradient");
}


// Keys by which configurations choose the type of the reduction.
bool is_reduce_key(std::string_view key) { return is_one_of(lower(key), {"reduce_dtype", "communication_data_type", "mixed_precision_reduce", "grad_reduce_dtype", "mp_reduce_dtype", "reduce_type"}); }

void python_file(const python::Module& m, Report& out) {
  for (const Expr* call : m.calls()) {
    if (python::runs_only_on_cuda(*call)) continue;
    const std::string_view name = call->last_name();
    const Confidence resolved = call->resolution == python::Resolution::kImported ? Confidence::kCertain : Confidence::kLikely;
    if (is_reduction(name) && python::is_under(*call, "torch.distributed")) {
      const Expr* x = call->argument(name.starts_with("reduce_scatter") || name.starts_with("_reduce") ? 1 : 0, "tensor");
      if (name.starts_with("reduce_scatter") && !x) x = call->keyword("input");
      if (!x) continue;
      const Expr* cast = nullptr;
      const Float f = nearest_cast(*x, &cast);
      if (!is_narrow(f)) continue;
      // What was cast must be gradients, not activations.
      const bool gradient = python::flows_from(*cast, [](const Expr& e) { return is_gradient(e); }) != nullptr || python::find_within(*x, [](const Expr& e) { return is_gradient(e); }) != nullptr;
      if (!gradient) continue;
      Finding& finding = out.add(*call, resolved, message(f, "cast before the collective"));
      finding.related.push_back(out.related(cast->span, std::string("made ") + float_name(f) + " here"));
      continue;
    }
    if (name == "register_comm_hook") {
      const Expr* hook = call->argument(1, "hook");
      if (!hook) continue;
      const Expr* narrow = python::find_within(*hook, [](const Expr& e) {
        return (e.is(ExprKind::kName) || e.is(ExprKind::kAttribute)) && is_one_of(e.text, {"fp16_compress_hook", "bf16_compress_hook", "fp16_compress_wrapper", "bf16_compress_wrapper"});
      });
      if (!narrow) continue;
      const bool known = python::is_under(*narrow, "torch.distributed.algorithms") && narrow->resolution == python::Resolution::kImported;
      out.add(*call, known ? Confidence::kCertain : Confidence::kLikely, message(narrow->text.starts_with("fp16") ? Float::kHalf : Float::kBfloat16, "a compression hook of DistributedDataParallel"));
      continue;
    }
    if (name == "MixedPrecision" || name == "MixedPrecisionPolicy") {
      if (!call->full_name.empty() && !python::is_under(*call, "torch.distributed")) continue;
      const Expr* reduce = call->keyword("reduce_dtype");
      if (reduce) {
        const Float f = float_type(*reduce);
        if (is_narrow(f)) out.add(*reduce, resolved, message(f, "reduce_dtype of FSDP"));
        continue;
      }
      const Expr* parameters = call->keyword("param_dtype");
      const Float f = parameters && !call->has_unpacking() ? float_type(*parameters) : Float::kUnknown;
      if (is_narrow(f)) out.add(*call, Confidence::kLikely, message(f, "FSDP reduces in param_dtype when reduce_dtype is not given"));
      continue;
    }
    for (size_t i = 1; i < call->children.size(); ++i) {
      const Expr& a = *call->children[i];
      if (!a.is(ExprKind::kKeyword)) continue;
      if (a.text == "grad_reduce_in_fp32" && a.children[0]->is(ExprKind::kConstant) && a.children[0]->text == "False")
        out.add(a, Confidence::kLikely, "gradients are summed over ranks in the type of the parameters (grad_reduce_in_fp32=False)");
      if (is_reduce_key(a.text) && is_narrow(float_type(*a.children[0]))) out.add(a, Confidence::kLikely, message(float_type(*a.children[0]), a.text));
    }
  }
  // {"communication_data_type": "fp16"} of a DeepSpeed configuration.
  for (const Expr* s : m.strings()) {
    if (!s->parent || !s->parent->is(ExprKind::kDict) || !is_narrow(float_type(s->text)) || python::runs_only_on_cuda(*s)) continue;
    const auto& items = s->parent->children;
    for (size_t i = 0; i + 1 < items.size(); i += 2) {
      if (items[i + 1] == s && items[i]->is(ExprKind::kString) && is_reduce_key(items[i]->text)) out.add(*s, Confidence::kCertain, message(float_type(s->text), items[i]->text));
    }
  }
}

void config_file(const config::Document& d, Report& out) {
  for (const config::Entry& e : d.entries) {
    if (is_reduce_key(e.key) && is_narrow(float_type(e.value))) out.add(e.value_span, Confidence::kCertain, message(float_type(e.value), e.key));
  }
  for (const config::Command& c : d.commands) {
    for (size_t i = 1; i < c.words.size(); ++i) {
      const std::string& w = c.words[i].text;
      if (w == "--grad-reduce-in-bf16") out.add(c.words[i].span, Confidence::kCertain, message(Float::kBfloat16, "--grad-reduce-in-bf16"));
    }
  }
}

void cpp_file(const cpp::File& f, Report& out) {
  for (const cpp::Call& c : f.calls()) {
    if (!is_one_of(c.last, {"ncclAllReduce", "ncclReduceScatter", "ncclReduce"}) || f.runs_under(f.tokens()[c.token].condition, {"USE_ROCM", "USE_NPU", "USE_ASCEND"})) continue;
    Float type = Float::kUnknown;
    bool gradient = false;
    for (const cpp::TokenRange& a : c.arguments) {
      if (f.mentions(a, "ncclHalf") || f.mentions(a, "ncclFloat16")) type = Float::kHalf;
      if (f.mentions(a, "ncclBfloat16")) type = Float::kBfloat16;
      gradient = gradient || mentions(f, a, [](std::string_view n) { return contains_any(n, {"grad", "dweight", "dgamma"}); });
    }
    const cpp::Function* fn = f.function_of(c.token);
    gradient = gradient || (fn && contains_any(fn->name, {"grad", "backward"}));
    if (!is_narrow(type) || !gradient) continue;
    out.add(c.name_span, Confidence::kCertain, message(type, "the type given to NCCL")).fix = "HcclAllReduce or HcclReduceScatter of float32 gradients (HCCL_DATA_TYPE_FP32), cast after the sum.";
  }
}

}  // namespace

const Rule& r12_gradient_dtype() {
  static constexpr Rule kRule = {
      .id = "R12",
      .name = "gradient-dtype",
      .title = "Gradients summed over ranks in 16 bits",
      .severity = Severity::kWrongNumbers,
      .why = "HCCL adds in the type it is given, in the order of its own algorithms, so 16-bit sums differ from those of NCCL and from each other as the number of ranks changes. Fusing gradients into "
             "one buffer (combine_grad) changes nothing about that.",
      .fix = "Reduce in float32: MixedPrecision(reduce_dtype=torch.float32) of FSDP, \"communication_data_type\": \"fp32\" of DeepSpeed, --accumulate-allreduce-grads-in-fp32 of Megatron; no "
             "compression hook.",
      .versions = "all",
      .source = "pitfall table, row 12 (corrected: combine_grad fuses buffers only); PyTorch documentation of FSDP mixed precision; HCCL data types",
      .python = python_file,
      .cpp = cpp_file,
      .config = config_file,
  };
  return kRule;
}

}  // namespace pointsman::audit::rules
