// SPDX-License-Identifier: Apache-2.0
//
// Row 10: attention by PyTorch's scaled_dot_product_attention, or by a name that a library turns into it or into flash-attn.
#include "audit/rule.h"
#include "audit/rules/words.h"
#include "base/log.h"

namespace pointsman::audit::rules {
namespace {

using python::Expr;
using python::ExprKind;
using python::Stmt;
using python::StmtKind;

bool is_key(std::string_view key) {
  std::string k = lower(key);
  while (k.starts_with('-') || k.starts_with('_')) k.erase(0, 1);
  std::replace(k.begin(), k.end(), '-', '_');
  return k == "attn_implementation" || k == "attn_impl" || k == "attention_implementation";
}
bool is_flash(std::string_view v) { return v.starts_with("flash_attention_2") || v.starts_with("flash_attention_3") || v == "flash_attn" || v == "flash_attn_2"; }
// transformers has kernels of torch_npu under this name.
bool is_mapped(std::string_view v) { return v == "flash_attention_2"; }
bool is_value(std::string_view v) { return v == "sdpa" || is_flash(v); }

std::string message(std::string_view value) {
  if (is_mapped(value)) return format("'{}' is the CUDA package flash-attn; only versions of transformers that map the name to torch_npu run it on an NPU", value);
  if (is_flash(value)) return format("'{}' needs the package flash-attn, whose kernels are CUDA", value);
  return "attention goes through scaled_dot_product_attention; whether torch_npu uses its fused operator depends on mask, head size and type";
}

void refine(std::string_view value, Finding& f) {
  if (!is_flash(value)) return;
  if (!is_mapped(value)) f.severity = Severity::kBlocks;
  f.fix = "A version of transformers that maps flash_attention_2 to torch_npu, else attn_implementation=\"sdpa\" or \"eager\", or torch_npu.npu_fusion_attention in the attention class.";
}

void add_value(const Expr& value, Confidence confidence, Report& out) {
  if (python::runs_only_on_cuda(value)) return;
  const auto text = python::constant_string(value);
  if (!text || !is_value(*text)) return;
  Finding& f = out.add(value, confidence, message(*text));
  refine(*text, f);
}

void python_file(const python::Module& m, Report& out) {
  for (const Expr* call : m.calls()) {
    if (python::runs_only_on_cuda(*call)) continue;
    if (is_one_of(call->full_name, {"torch.nn.functional.scaled_dot_product_attention", "torch._C._nn.scaled_dot_product_attention"})) {
      out.add(*call, message("sdpa"));
      continue;
    }
    if (is_one_of(call->full_name, {"torch.nn.attention.sdpa_kernel", "torch.backends.cuda.sdp_kernel", "torch.backends.cuda.enable_flash_sdp", "torch.backends.cuda.enable_mem_efficient_sdp",
                                    "torch.backends.cuda.enable_math_sdp", "torch.backends.cuda.enable_cudnn_sdp"})) {
      Finding& f = out.add(*call, "this chooses between kernels of CUDA for scaled_dot_product_attention; on an NPU it chooses nothing");
      f.severity = Severity::kInfo;
      continue;
    }
    if (call->last_name() == "add_argument") {
      const Expr *name = call->positional(0), *value = call->keyword("default");
      if (name && value && name->is(ExprKind::kString) && is_key(name->text)) add_value(*value, Confidence::kLikely, out);
      continue;
    }
    for (size_t i = 1; i < call->children.size(); ++i) {
      const Expr& a = *call->children[i];
      if (a.is(ExprKind::kKeyword) && is_key(a.text)) add_value(*a.children[0], Confidence::kCertain, out);
    }
  }
  for (const Stmt* s : m.statements()) {
    if ((s->kind != StmtKind::kAssign && s->kind != StmtKind::kAnnAssign) || !s->value) continue;
    for (const Expr* t : s->targets) {
      // config._attn_implementation = "sdpa"; a plain name says it where it is used.
      if (t->is(ExprKind::kAttribute) && is_key(t->text)) add_value(*s->value, Confidence::kCertain, out);
      if (t->is(ExprKind::kName) && is_key(t->text) && s->kind == StmtKind::kAnnAssign && s->value->is(ExprKind::kString)) add_value(*s->value, Confidence::kLikely, out);
      if (t->is(ExprKind::kSubscript) && t->children[1]->is(ExprKind::kString) && is_key(t->children[1]->text)) add_value(*s->value, Confidence::kCertain, out);
    }
  }
  for (const Expr* s : m.strings()) {
    if (!s->parent || !s->parent->is(ExprKind::kDict) || !is_value(s->text)) continue;
    const auto& items = s->parent->children;
    for (size_t i = 0; i + 1 < items.size(); i += 2) {
      if (items[i + 1] == s && items[i]->is(ExprKind::kString) && is_key(items[i]->text)) add_value(*s, Confidence::kCertain, out);
    }
  }
}

void config_file(const config::Document& d, Report& out) {
  for (const config::Entry& e : d.entries) {
    if (!is_key(e.key) || !is_value(e.value)) continue;
    Finding& f = out.add(e.value_span, Confidence::kCertain, message(e.value));
    refine(e.value, f);
  }
  for (const config::Command& c : d.commands) {
    for (size_t i = 1; i < c.words.size(); ++i) {
      const std::string& w = c.words[i].text;
      const size_t equal = w.find('=');
      const std::string key = w.substr(0, equal);
      if (!w.starts_with("--") || !is_key(key)) continue;
      const std::string value = equal != std::string::npos ? w.substr(equal + 1) : i + 1 < c.words.size() ? c.words[i + 1].text : std::string();
      if (!is_value(value)) continue;
      Finding& f = out.add(c.words[i].span, Confidence::kLikely, message(value));
      refine(value, f);
    }
  }
}

void cpp_file(const cpp::File& f, Report& out) {
  std::vector<std::string> seen;
  for (const cpp::Call& c : f.calls()) {
    const bool torch = is_one_of(c.last, {"scaled_dot_product_attention", "_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention"});
    const bool cudnn = c.last == "SDPA_attributes" || c.last == "SDPA_backward_attributes" || c.last == "SDPA_fp8_attributes" || c.last == "cudnnMultiHeadAttnForward";
    if ((!torch && !cudnn) || f.runs_under(f.tokens()[c.token].condition, {"USE_ROCM", "USE_NPU", "USE_ASCEND"})) continue;
    if (torch && !(c.name.starts_with("at::") || c.name.starts_with("torch::"))) continue;
    if (std::find(seen.begin(), seen.end(), c.last) != seen.end()) continue;
    seen.emplace_back(c.last);
    Finding& finding = out.add(c.name_span, Confidence::kCertain, cudnn ? "attention by cuDNN, which an NPU does not have" : message("sdpa"));
    if (cudnn) finding.severity = Severity::kBlocks;
    finding.fix = "aclnnFusedInferAttentionScore (V4 on A2 and A3, V5 on 950) for inference, aclnnFlashAttentionScoreV2 for training; innerPrecise 0 asks for high precision.";
  }
}

}  // namespace

const Rule& r10_sdpa() {
  static constexpr Rule kRule = {
      .id = "R10",
      .name = "sdpa",
      .title = "Attention by scaled_dot_product_attention or flash-attn's name",
      .severity = Severity::kVersion,
      .why = "torch_npu routes scaled_dot_product_attention to its fused operator for some masks, head sizes and types and runs matmul, softmax, matmul for the others, without a word. The choice "
             "depends on the version, and the slow path needs memory for all scores.",
      .fix = "Check with a profile which operator runs; to be explicit: torch_npu.npu_fusion_attention (training) or torch_npu.npu_fused_infer_attention_score (inference). Masks there say what to "
             "hide (True hides), the reverse of PyTorch's boolean masks.",
      .versions = "fused routing since the torch 2.1 era of torch_npu, under conditions",
      .source = "pitfall table, row 10 (corrected: not tied to CANN 7.0); op-plugin signatures; CANN operator pages FlashAttentionScore, FusedInferAttentionScore",
      .python = python_file,
      .cpp = cpp_file,
      .config = config_file,
  };
  return kRule;
}

}  // namespace pointsman::audit::rules
