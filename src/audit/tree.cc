// SPDX-License-Identifier: Apache-2.0
#include "audit/tree.h"

#include <algorithm>

#include "audit/python/query.h"

namespace pointsman::audit {
namespace {

using python::Expr;
using python::ExprKind;
using python::Stmt;
using python::StmtKind;

// The value of a variable as far as it is known: a literal, or the text of the expression.
std::string value_text(const Unit& unit, const Expr& value) {
  if (const auto s = python::constant_string(value)) return std::string(*s);
  if (value.is(ExprKind::kCall) && value.full_name.empty() && value.last_name() == "str" && value.positional(0)) return value_text(unit, *value.positional(0));
  return std::string(unit.slice(value.span).substr(0, 200));
}

void add_environment(const Unit& unit, std::string_view name, const Expr* value, Span span, Tree& tree) {
  config::Environment e{std::string(name), value ? value_text(unit, *value) : std::string(), value == nullptr, span};
  tree.environment.push_back(locate(unit, span, std::move(e)));
}

bool is_environ(const Expr& e) { return e.full_name == "os.environ"; }

void environment_of_call(const Unit& unit, const Expr& call, Tree& tree) {
  const Expr& callee = *call.callee();
  const bool method = callee.is(ExprKind::kAttribute) && is_environ(*callee.children[0]);
  const std::string_view last = call.last_name();
  if ((method && last == "setdefault") || call.full_name == "os.putenv") {
    const Expr *name = call.positional(0), *value = call.positional(1);
    if (name && value && name->is(ExprKind::kString)) add_environment(unit, name->text, value, call.span, tree);
  } else if (method && last == "update") {
    for (size_t i = 1; i < call.children.size(); ++i) {
      const Expr& a = *call.children[i];
      if (a.is(ExprKind::kKeyword) && a.text != "**") add_environment(unit, a.text, a.children[0], a.span, tree);
      if (!a.is(ExprKind::kDict)) continue;
      for (size_t k = 0; k + 1 < a.children.size(); k += 2) {
        if (a.children[k]->is(ExprKind::kString)) add_environment(unit, a.children[k]->text, a.children[k + 1], {a.children[k]->span.begin, a.children[k + 1]->span.end}, tree);
      }
    }
  } else if (method && last == "pop" && call.positional(0) && call.positional(0)->is(ExprKind::kString)) {
    add_environment(unit, call.positional(0)->text, nullptr, call.span, tree);
  }
}

void pins_of_call(const Unit& unit, const Expr& call, Tree& tree) {
  if (call.last_name() != "setup") return;
  for (const std::string_view key : {"install_requires", "setup_requires", "extras_require"}) {
    const Expr* list = call.keyword(key);
    if (!list) continue;
    // A name stands for the list it was given.
    if (list->is(ExprKind::kName)) {
      const auto definitions = python::definitions_of(*list);
      if (definitions.size() == 1 && definitions[0]->value) list = definitions[0]->value;
    }
    python::find_within(*list, [&](const Expr& e) {
      config::Pin pin;
      if (e.is(ExprKind::kString) && !e.is_formatted && config::parse_requirement(e.text, pin)) {
        pin.source = "setup";
        pin.span = e.span;
        tree.pins.push_back(locate(unit, e.span, std::move(pin)));
      }
      return false;
    });
  }
}

bool has_extension(std::string_view module) {
  constexpr std::string_view kNames[] = {"apex",  "xformers", "flash_attn", "bitsandbytes", "triton", "mamba_ssm", "causal_conv1d", "cupy", "pycuda", "tensorrt", "transformer_engine",
                                         "megablocks", "grouped_gemm", "deep_ep", "deep_gemm", "flashinfer", "numba.cuda"};
  return std::any_of(std::begin(kNames), std::end(kNames), [&](std::string_view n) { return python::is_under(module, n); });
}

void count_import(std::string_view module, Tree& tree) {
  tree.api.extensions += has_extension(module);
  const auto is = [&](std::initializer_list<std::string_view> names) { return std::any_of(names.begin(), names.end(), [&](std::string_view n) { return python::is_under(module, n); }); };
  tree.signs.vision += is({"torchvision.ops", "torchvision.models", "mmcv", "mmdet", "mmengine", "detectron2", "ultralytics", "timm"});
  tree.signs.reinforcement += is({"verl", "trl", "openrlhf", "stable_baselines3", "gymnasium", "tianshou"});
}

void count_uses(const python::Module& module, Tree& tree) {
  for (const Expr* c : module.calls()) {
    if (c->full_name.empty() && c->callee()->is(ExprKind::kAttribute) && c->callee()->text == "cuda") ++tree.api.torch_cuda;  // x.cuda()
    if (!python::is_under(*c, "torch") && !python::is_under(*c, "torch_npu")) continue;
    if (python::is_under(*c, "torch_npu") || python::is_under(*c, "torch.npu")) {
      ++tree.api.torch_npu;
    } else if (python::is_under(*c, "torch.cuda")) {
      ++tree.api.torch_cuda;
    } else if (python::is_under(*c, "torch.distributed")) {
      ++tree.api.torch_distributed;
    } else {
      ++tree.api.torch;
    }
  }
  const auto names = [](std::string_view s, std::initializer_list<std::string_view> parts) {
    return std::any_of(parts.begin(), parts.end(), [&](std::string_view p) { return s.find(p) != s.npos; });
  };
  for (const std::vector<const Stmt*>* list : {&module.functions(), &module.classes()}) {
    for (const Stmt* s : *list) {
      tree.signs.attention += names(s->name, {"Attention", "attention", "DecoderLayer", "CausalLM"});
      tree.signs.experts += names(s->name, {"MoE", "moe", "Expert", "expert", "Router"});
      tree.signs.vision += names(s->name, {"nms", "NMS", "Detector", "YOLO", "BBox", "bbox"});
      tree.signs.reinforcement += names(s->name, {"PPO", "ppo", "GRPO", "grpo", "Rollout", "rollout"});
      for (const Expr* d : s->decorators) tree.api.kernels += python::find_within(*d, [](const Expr& e) { return e.full_name == "triton.jit" || e.full_name == "numba.cuda.jit"; }) != nullptr;
    }
  }
}

}  // namespace

ApiUse& ApiUse::operator+=(const ApiUse& o) {
  torch += o.torch;
  torch_cuda += o.torch_cuda;
  torch_distributed += o.torch_distributed;
  torch_npu += o.torch_npu;
  extensions += o.extensions;
  cuda_runtime += o.cuda_runtime;
  cuda_libraries += o.cuda_libraries;
  kernels += o.kernels;
  launches += o.launches;
  return *this;
}

ModelSigns& ModelSigns::operator+=(const ModelSigns& o) {
  attention += o.attention;
  experts += o.experts;
  vision += o.vision;
  reinforcement += o.reinforcement;
  return *this;
}

bool Tree::imports_module(std::string_view module) const {
  return std::any_of(imports.begin(), imports.end(), [&](const Located<Import>& i) { return python::is_under(i.value.module, module); });
}

std::vector<const Located<Note>*> Tree::notes_of(std::string_view rule, std::string_view key) const {
  std::vector<const Located<Note>*> out;
  for (const Located<Note>& n : notes) {
    if (n.value.rule == rule && n.value.key == key) out.push_back(&n);
  }
  return out;
}

void collect_facts(const python::Module& module, Tree& tree) {
  const Unit& unit = module.unit();
  for (const Stmt* s : module.imports()) {
    if (s->kind == StmtKind::kImportFrom) {
      tree.imports.push_back(locate(unit, s->span, Import{std::string(s->name)}));
      count_import(s->name, tree);
    } else {
      for (const python::ImportedName& n : s->imports) {
        tree.imports.push_back(locate(unit, n.span, Import{std::string(n.name)}));
        count_import(n.name, tree);
      }
    }
  }
  for (const Stmt* s : module.statements()) {
    if (s->kind == StmtKind::kAssign) {
      for (const Expr* t : s->targets) {
        if (t->is(ExprKind::kSubscript) && is_environ(*t->children[0]) && t->children[1]->is(ExprKind::kString))
          add_environment(unit, t->children[1]->text, s->value, s->span, tree);
      }
    } else if (s->kind == StmtKind::kDelete) {
      for (const Expr* t : s->exprs) {
        if (t->is(ExprKind::kSubscript) && is_environ(*t->children[0]) && t->children[1]->is(ExprKind::kString)) add_environment(unit, t->children[1]->text, nullptr, s->span, tree);
      }
    }
  }
  for (const Expr* call : module.calls()) {
    environment_of_call(unit, *call, tree);
    pins_of_call(unit, *call, tree);
  }
  count_uses(module, tree);
}

void collect_facts(const cpp::File& file, Tree& tree) {
  tree.api.launches += file.launches().size();
  for (const cpp::Function& f : file.functions()) {
    tree.api.kernels += f.is_kernel;
    tree.signs.experts += f.name.find("moe") != std::string::npos || f.name.find("expert") != std::string::npos || f.name.find("Expert") != std::string::npos;
    tree.signs.attention += f.name.find("attention") != std::string::npos || f.name.find("attn") != std::string::npos;
  }
  for (const cpp::Call& c : file.calls()) {
    const std::string& n = c.name;
    const auto is_api = [&](std::string_view prefix) { return n.starts_with(prefix) && n.size() > prefix.size() && n[prefix.size()] >= 'A' && n[prefix.size()] <= 'Z'; };
    tree.api.cuda_runtime += is_api("cuda") || is_api("cu");
    tree.api.cuda_libraries += is_api("nccl") || is_api("cublas") || is_api("cudnn") || is_api("curand") || is_api("cusparse") || is_api("cufft") || n.starts_with("cub::") ||
                               n.starts_with("thrust::") || n.starts_with("cutlass::");
  }
}

void collect_facts(const config::Document& document, Tree& tree) {
  for (const config::Environment& e : document.environment) tree.environment.push_back(locate(*document.unit, e.span, e));
  for (const config::Pin& p : document.pins) tree.pins.push_back(locate(*document.unit, p.span, p));
  for (const config::Image& i : document.images) tree.images.push_back(locate(*document.unit, i.span, i));
}

}  // namespace pointsman::audit
