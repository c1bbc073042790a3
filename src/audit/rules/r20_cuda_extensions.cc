// SPDX-License-Identifier: Apache-2.0
//
// Row 20. Style: a table of packages, seen as imports, pins and includes; kernels and build calls.
#include <algorithm>

#include "audit/rule.h"
#include "audit/rules/words.h"

namespace pointsman::audit::rules {
namespace {

using python::Expr;
using python::ExprKind;

struct Package {
  std::string_view module;   // as imported
  std::string_view package;  // as pinned, '-' for '_'
  std::string_view instead;
};
constexpr Package kPackages[] = {
    {"apex", "apex", "Ascend's apex, or torch_npu's fused optimisers (NpuFusedAdamW) and torch.amp"},
    {"bitsandbytes", "bitsandbytes", "no counterpart of the CUDA build; quantise with npu_weight_quant_batchmatmul or npu_quant_matmul"},
    {"causal_conv1d", "causal-conv1d", "torch_npu.npu_fused_causal_conv1d where the version has it, else plain torch"},
    {"cupy", "cupy", "NumPy on the host, torch on the device"},
    {"deep_ep", "deep-ep", "sgl-kernel-npu's DeepEP-Ascend, or npu_moe_distribute_dispatch and npu_moe_distribute_combine"},
    {"deep_gemm", "deep-gemm", "torch_npu.npu_grouped_matmul (FP8 modes on 950 only)"},
    {"deepspeed.ops", "", "plain torch optimisers, or DeepSpeed with its NPU accelerator"},
    {"flash_attn", "flash-attn", "torch_npu.npu_fusion_attention (training), npu_fused_infer_attention_score (inference)"},
    {"flash_attn_interface", "", "torch_npu.npu_fusion_attention (training), npu_fused_infer_attention_score (inference)"},
    {"flash_mla", "flash-mla", "torch_npu.npu_fused_infer_attention_score or npu_sparse_flash_attention"},
    {"flashinfer", "flashinfer", "npu_fused_infer_attention_score with a block table; sampling in torch"},
    {"grouped_gemm", "grouped-gemm", "torch_npu.npu_grouped_matmul (split_item 3, group_type 0)"},
    {"mamba_ssm", "mamba-ssm", "no fused counterpart known; plain torch or an own Ascend C kernel"},
    {"megablocks", "megablocks", "npu_moe_token_permute, npu_grouped_matmul and npu_moe_token_unpermute"},
    {"numba.cuda", "", "an Ascend C or Triton-Ascend kernel"},
    {"nvidia_smi", "", "npu-smi"},
    {"pycuda", "pycuda", "an Ascend C kernel behind an aclnn operator"},
    {"scattermoe", "scattermoe", "npu_moe_token_permute, npu_grouped_matmul and npu_moe_token_unpermute"},
    {"stk", "stanford-stk", "npu_grouped_matmul over tokens sorted by expert"},
    {"tensorrt", "tensorrt", "ATC and ACL, or MindIE"},
    {"tensorrt_llm", "tensorrt-llm", "vllm-ascend or MindIE"},
    {"transformer_engine", "transformer-engine", "MindSpeed's Transformer Engine"},
    {"triton", "triton", "Triton-Ascend (a package of its own; not every kernel compiles), or a fused operator"},
    {"tutel", "tutel", "npu_moe_* operators; MindSpeed's MoE"},
    {"xformers", "xformers", "torch_npu.npu_fusion_attention"},
};

const Package* of_module(std::string_view full) {
  for (const Package& p : kPackages) {
    if (python::is_under(full, p.module)) return &p;
  }
  return nullptr;
}

Finding& say(Finding& f, const Package& p) {
  f.fix = std::string(p.instead) + ".";
  return f;
}

void python_file(const python::Module& m, Report& out) {
  for (const python::Stmt* s : m.imports()) {
    for (const python::ImportedName& i : s->imports) {
      const bool from = s->kind == python::StmtKind::kImportFrom;
      if (from && s->name.starts_with('.')) continue;
      const Package* p = of_module(from ? s->name : i.name);
      if (!p && from && !s->name.empty()) p = of_module(std::string(s->name) + "." + std::string(i.name));
      if (!p) continue;
      // Optional: whoever wrote it has another way.
      const bool optional = python::failure_is_caught(*s) || python::runs_only_on_cuda(*s);
      out.note(optional ? "optional" : "required", std::string(p->module), from ? s->header : i.span);
      if (from) break;
    }
  }
  for (const Expr* c : m.calls()) {
    if (c->full_name == "torch.utils.cpp_extension.CUDAExtension") out.add(*c, "an extension with CUDA sources; it cannot be built for CANN");
    if (is_one_of(c->full_name, {"torch.utils.cpp_extension.load", "torch.utils.cpp_extension.load_inline"})) {
      const bool inline_cuda = c->keyword("cuda_sources") != nullptr;
      const bool files = python::find_within(*c, [](const Expr& e) { return e.is(ExprKind::kString) && (e.text.ends_with(".cu") || e.text.ends_with(".cuh")); }) != nullptr;
      if (inline_cuda || files) out.add(*c, "CUDA sources are compiled at run time; it cannot be done for CANN");
    }
  }
}

// Imports, but for those of the package that is being audited: its kernels are found where they are.
void whole_tree(const Tree& tree, Report& out) {
  for (const char* key : {"required", "optional"}) {
    for (const Located<Note>* n : tree.notes_of("R20", key)) {
      const Package* p = of_module(n->value.value);
      const std::string own = std::string(p->module.substr(0, p->module.find('.'))) + "/__init__.py";
      if (std::any_of(tree.files.begin(), tree.files.end(), [&](const std::string& f) { return f == own || f.ends_with("/" + own); })) continue;
      Finding& f = say(out.add(*n, Confidence::kCertain, std::string(p->module) + " is built on CUDA and does not load where there is none"), *p);
      if (n->value.key == "optional") f.severity = Severity::kInfo;
    }
  }
}

void cpp_file(const cpp::File& f, Report& out) {
  size_t kernels = 0;
  const cpp::Function* first = nullptr;
  for (const cpp::Function& fn : f.functions()) {
    if (!fn.is_kernel) continue;
    if (!first) first = &fn;
    ++kernels;
  }
  if (first) {
    out.add(first->head, Confidence::kCertain, kernels == 1 ? "a CUDA kernel" : std::to_string(kernels) + " CUDA kernels in this file, of which this is the first")
        .fix = "A fused CANN operator where one does the same (see the other findings of this file), else an Ascend C kernel behind an aclnn interface.";
  }
  for (const cpp::Include& i : f.includes()) {
    if (f.runs_under(i.condition, {"USE_CUDA", "WITH_CUDA", "__CUDACC__", "USE_ROCM"})) continue;
    for (std::string_view prefix : {"cub/", "thrust/", "cutlass/", "cute/", "cooperative_groups", "mma.h", "cublas", "cudnn", "curand", "nvshmem"}) {
      if (!i.path.starts_with(prefix)) continue;
      out.add(i.span, Confidence::kCertain, "<" + std::string(i.path) + "> is CUDA's and has no counterpart of that name in CANN");
      break;
    }
  }
  // asm("...") of PTX: mnemonics with a type behind a dot.
  for (const cpp::Call& c : f.calls()) {
    if (!is_one_of(c.name, {"asm", "__asm__", "volatile"}) || c.arguments.empty()) continue;
    const std::string text = f.text(c.arguments[0]);
    if (contains_any(text, {".f32", ".b32", ".u32", ".s32", ".b16", ".b64", ".u64", ".sync", ".shared", ".global", "%laneid", "bar."})) {
      out.add(c.name_span, Confidence::kCertain, "PTX instructions");
      break;
    }
  }
}

void config_file(const config::Document& d, Report& out) {
  for (const config::Pin& pin : d.pins) {
    for (const Package& p : kPackages) {
      if (p.package.empty()) continue;
      const bool versioned = pin.package == p.package || (p.package == "cupy" && pin.package.starts_with("cupy-cuda")) || (p.package == "flashinfer" && pin.package == "flashinfer-python");
      if (!versioned) continue;
      say(out.add(pin.span, Confidence::kCertain, "package " + pin.package + " is built on CUDA"), p);
    }
  }
}

}  // namespace

const Rule& r20_cuda_extensions() {
  static constexpr Rule kRule = {
      .id = "R20",
      .name = "cuda-extensions",
      .title = "Packages and kernels written for CUDA",
      .severity = Severity::kBlocks,
      .why = "Compiled CUDA code does not run on CANN and is not translated by torch_npu: what such a package or kernel does must be found among CANN's operators, taken from a port, or "
             "written anew.",
      .fix = "Replace by a fused CANN operator or a port; make the import optional where the plain path exists.",
      .versions = "all",
      .source = "pitfall table, row 20; op-plugin operator list; the packages' own documentation",
      .python = python_file,
      .cpp = cpp_file,
      .config = config_file,
      .tree = whole_tree,
  };
  return kRule;
}

}  // namespace pointsman::audit::rules
