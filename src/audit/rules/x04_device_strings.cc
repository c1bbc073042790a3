// SPDX-License-Identifier: Apache-2.0
//
// X4. Style: strings in their context, methods with distinctive names, references under a module.
#include "audit/rule.h"
#include "audit/rules/words.h"

namespace pointsman::audit::rules {
namespace {

using python::Expr;
using python::ExprKind;

// The vendor's import that turns torch.cuda into torch.npu at run time.
bool is_patched(const python::Module& m) {
  for (const python::Stmt* s : m.imports()) {
    for (const python::ImportedName& n : s->imports) {
      if (n.name == "transfer_to_npu" || n.name == "torch_npu.contrib.transfer_to_npu") return true;
    }
  }
  return false;
}

class PythonFile {
 public:
  PythonFile(const python::Module& m, Report& out) : m_(m), out_(out), patched_(is_patched(m)) {}

  void run() {
    for (const Expr* s : m_.strings()) device_string(*s);
    for (const Expr* c : m_.calls()) call(*c);
    for (const Expr* r : m_.references()) guarded_reference(*r);
    for (const Expr* r : m_.references()) reference(*r);
    for (const python::Stmt* s : m_.imports()) import(*s);
  }

 private:
  Finding& add(const Expr& e, Confidence c, std::string message) { return soften(out_.add(e, c, std::move(message))); }
  Finding& soften(Finding& f) {
    if (patched_) {
      f.severity = Severity::kInfo;
      f.message += " (transfer_to_npu is imported and replaces it at run time)";
    }
    return f;
  }

  static bool is_string_of_device(const Expr& s) {
    if (s.is_bytes) return false;
    return s.is_formatted ? s.text == "cuda:{}" : is_cuda_device(s.text);
  }

  // Comparisons, keys and tests are questions about the device, not a choice of it.
  static bool is_question(const Expr& s) {
    const Expr* p = s.parent;
    if (!p) return false;
    if (p->is(ExprKind::kCompare)) return true;
    if ((p->is(ExprKind::kTuple) || p->is(ExprKind::kList) || p->is(ExprKind::kSet)) && p->parent && p->parent->is(ExprKind::kCompare)) return true;
    if (p->is(ExprKind::kSubscript) && p->children[1] == &s) return true;
    if (p->is(ExprKind::kCall)) return is_one_of(p->last_name(), {"startswith", "endswith", "hasattr", "getattr", "split", "find", "replace", "print", "info", "debug", "warning"});
    if (p->is(ExprKind::kDict)) {
      for (size_t i = 0; i < p->children.size(); i += 2) {
        if (p->children[i] == &s) return true;
      }
    }
    return false;
  }

  void device_string(const Expr& s) {
    if (!is_string_of_device(s) || is_question(s)) return;
    // The letters between the quotes.
    const size_t at = m_.unit().slice(s.span).find("cuda");
    const uint32_t begin = s.span.begin + static_cast<uint32_t>(at == std::string_view::npos ? 0 : at);
    if (python::runs_only_on_cuda(s)) {
      if (at != std::string_view::npos) keep_for_test(s, {begin, begin + 4});
      return;
    }
    const Expr* p = s.parent;
    Confidence confidence = Confidence::kLikely;
    std::string where = "this device name";
    if (p && p->is(ExprKind::kKeyword)) {
      where = "'" + std::string(p->text) + "'";
      p = p->parent;
    }
    if (p && p->is(ExprKind::kCall) && (python::is_under(*p, "torch") || python::is_under(*p, "torchvision")) && p->resolution == python::Resolution::kImported) confidence = Confidence::kCertain;
    Finding& f = add(s, confidence, where + " selects a CUDA device; with torch_npu the device type is 'npu'");
    if (at != std::string_view::npos) f.edits.push_back(out_.edit({begin, begin + 4}, "npu"));
  }

  void call(const Expr& c) {
    const Expr& callee = *c.callee();
    if (!callee.is(ExprKind::kAttribute) || callee.text != "cuda" || !callee.full_name.empty()) return;
    // x.cuda(), x.cuda(device), x.cuda(non_blocking=True)
    if (c.children.size() > 3) return;
    const Span name{callee.span.end - 4, callee.span.end};
    if (python::runs_only_on_cuda(c)) {
      keep_for_test(c, name);
      return;
    }
    Finding& f = soften(out_.add(name, Confidence::kLikely, ".cuda() moves to a CUDA device; on an NPU it fails with 'Torch not compiled with CUDA enabled'"));
    f.edits.push_back(out_.edit(name, "npu"));
  }

  bool is_known(std::string_view member) const { return out_.facts.is_npu_module_name(member) || is_one_of(member, {"amp", "random", "memory"}); }

  // What runs only when a test of CUDA succeeds is no finding; but when the test is changed to ask for an NPU, it has to change too.
  void keep_for_test(const Expr& e, Span span) {
    if (guarded_.size() < 500) guarded_.push_back({&e, span});
  }
  void guarded_reference(const Expr& r) {
    if (!python::is_under(r, "torch.cuda") || r.full_name.size() <= 11 || !m_.unit().slice(r.span).starts_with("torch.cuda.") || !python::runs_only_on_cuda(r)) return;
    const std::string_view member = r.full_name.substr(11);
    if (is_known(member.substr(0, member.find('.')))) keep_for_test(r, {r.span.begin + 6, r.span.begin + 10});
  }
  void add_guarded(const Expr& test, Finding& f) {
    for (const Guarded& g : guarded_) {
      for (const python::Guard& guard : python::guards(*g.expr)) {
        if (guard.condition->span.begin > test.span.begin || guard.condition->span.end < test.span.end) continue;
        f.edits.push_back(out_.edit(g.span, "npu"));
        break;
      }
    }
  }

  void reference(const Expr& r) {
    if (!python::is_under(r, "torch.cuda") || r.full_name.size() <= 11) return;
    const std::string member(r.full_name.substr(11));
    const std::string first = member.substr(0, member.find('.'));
    if (python::runs_only_on_cuda(r)) return;
    std::string message = "torch.cuda." + member + " is CUDA's";
    if (first == "is_available") message = "torch.cuda.is_available() is False on an NPU: the program goes on on the CPU without a word";
    Finding& f = soften(out_.add(r, message));
    if (is_known(first)) {
      f.fix = "torch.npu." + member + " (after import torch_npu).";
      const std::string_view text = m_.unit().slice(r.span);
      if (text.starts_with("torch.cuda.")) {
        f.edits.push_back(out_.edit({r.span.begin + 6, r.span.begin + 10}, "npu"));
        if (first == "is_available") add_guarded(r, f);
      }
    } else {
      f.fix = "torch.npu has no '" + first + "'; see what the code needs it for.";
    }
  }

  void import(const python::Stmt& s) {
    if (python::failure_is_caught(s) || python::runs_only_on_cuda(s)) return;
    const auto report = [&](std::string_view module, Span span) {
      if (python::is_under(module, "pynvml") || python::is_under(module, "py3nvml"))
        out_.add(span, Confidence::kCertain, "NVML reads NVIDIA devices only").fix = "npu-smi info, or the DCMI library, tells the same of Ascend devices.";
      if (python::is_under(module, "torch.cuda") && s.kind == python::StmtKind::kImportFrom) soften(out_.add(s.span, Confidence::kCertain, "'from " + std::string(module) + " import' takes names of CUDA")).fix = "Import from torch_npu.npu (torch.npu after import torch_npu).";
    };
    if (s.kind == python::StmtKind::kImportFrom) {
      report(s.name, s.span);
    } else {
      for (const python::ImportedName& n : s.imports) report(n.name, n.span);
    }
  }

  struct Guarded {
    const Expr* expr;
    Span span;
  };

  const python::Module& m_;
  Report& out_;
  const bool patched_;
  std::vector<Guarded> guarded_;
};

void python_file(const python::Module& m, Report& out) { PythonFile(m, out).run(); }

void cpp_file(const cpp::File& f, Report& out) {
  const auto& tokens = f.tokens();
  for (uint32_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i].kind != cpp::TokenKind::kIdentifier) continue;
    const std::string_view name = f.text(i);
    const bool qualified = i >= 2 && f.text(i - 1) == "::";
    const bool device = qualified && ((name == "kCUDA" && is_one_of(f.text(i - 2), {"torch", "at", "c10"})) || (name == "CUDA" && f.text(i - 2) == "DeviceType"));
    if (device && !f.runs_under(tokens[i].condition, {"USE_CUDA", "WITH_CUDA", "__CUDACC__"}))
      out.add({tokens[i - 2].span.begin, tokens[i].span.end}, Confidence::kCertain, "this device type is CUDA's; torch_npu registers c10::DeviceType::PrivateUse1");
  }
}

void config_file(const config::Document& d, Report& out) {
  for (const config::Entry& e : d.entries) {
    const std::string key = lower(e.key);
    if (is_cuda_device(e.value) && (contains(key, "device") || key == "accelerator" || key == "map_location" || key == "backend"))
      out.add(e.value_span, Confidence::kCertain, "'" + e.key + "' selects a CUDA device; with torch_npu the device type is 'npu'");
  }
  for (const config::Command& c : d.commands) {
    for (size_t i = c.program_index; i < c.words.size(); ++i) {
      const std::string& w = c.words[i].text;
      if (w == "nvidia-smi" || w.ends_with("/nvidia-smi")) {
        out.add(c.words[i].span, Confidence::kCertain, "nvidia-smi does not know Ascend devices").fix = "npu-smi info (npu-smi info -t usages for a device's load).";
      } else if (i > c.program_index && contains(lower(w), "device") && w.starts_with("--") && (w.ends_with("=cuda") || (i + 1 < c.words.size() && is_cuda_device(c.words[i + 1].text)))) {
        out.add(w.ends_with("=cuda") ? c.words[i].span : c.words[i + 1].span, Confidence::kLikely, "this option selects a CUDA device; with torch_npu the device type is 'npu'");
      }
    }
  }
}

struct Variable {
  std::string_view cuda, instead;
};
constexpr Variable kVariables[] = {
    {"CUDA_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES"},
    {"CUDA_LAUNCH_BLOCKING", "ASCEND_LAUNCH_BLOCKING"},
    {"PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_NPU_ALLOC_CONF"},
    {"NVIDIA_VISIBLE_DEVICES", "ASCEND_VISIBLE_DEVICES"},
};

void whole_tree(const Tree& tree, Report& out) {
  for (const auto& e : tree.environment) {
    for (const Variable& v : kVariables) {
      if (e.value.name != v.cuda) continue;
      Finding& f = out.add(e, Confidence::kCertain, std::string(v.cuda) + " is ignored by CANN; its counterpart is " + std::string(v.instead));
      f.fix = "Set " + std::string(v.instead) + (v.cuda == "CUDA_VISIBLE_DEVICES" ? " (ascending ids, commas, no spaces)." : ".");
      Report::add_edit(f, e, v.cuda, std::string(v.instead));
    }
  }
}

}  // namespace

const Rule& x04_device_strings() {
  static constexpr Rule kRule = {
      .id = "X4",
      .name = "device-strings",
      .title = "CUDA devices by name",
      .severity = Severity::kBlocks,
      .why = "A tensor or module that is sent to 'cuda' does not reach an NPU: the call fails, or a test of torch.cuda.is_available() quietly chooses the CPU. "
             "CANN ignores CUDA_VISIBLE_DEVICES, so a process that counts on it sees every device.",
      .fix = "import torch_npu; device type 'npu' (torch.device(\"npu:0\"), .npu(), torch.npu.*), ASCEND_RT_VISIBLE_DEVICES, npu-smi. Better: take the device type "
             "from one place (torch.accelerator.current_accelerator() since PyTorch 2.6, or an option).",
      .versions = "all",
      .source = "torch_npu: device registration and the list of calls that transfer_to_npu replaces",
      .python = python_file,
      .cpp = cpp_file,
      .config = config_file,
      .tree = whole_tree,
  };
  return kRule;
}

}  // namespace pointsman::audit::rules
