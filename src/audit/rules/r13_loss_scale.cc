// SPDX-License-Identifier: Apache-2.0
//
// Row 13: dynamic loss scaling, which finds overflows by looking for infinities.
#include "audit/rule.h"
#include "audit/rules/words.h"

namespace pointsman::audit::rules {
namespace {

using python::Expr;
using python::ExprKind;

std::string message(std::string_view how) {
  return "the loss scale follows overflows (" + std::string(how) + "); how an NPU shows an overflow depends on its chip and mode";
}

// A scaler that is off, or whose use depends on a type that is not float16.
bool is_off(const Expr& call) {
  const Expr* e = call.keyword("enabled");
  return e && python::constant_bool(*e) == std::optional(false);
}

bool is_scaler(const Expr& call) {
  if (is_one_of(call.full_name, {"torch.cuda.amp.GradScaler", "torch.amp.GradScaler", "torch.cuda.amp.grad_scaler.GradScaler", "torch.amp.grad_scaler.GradScaler",
                                 "torch.distributed.fsdp.sharded_grad_scaler.ShardedGradScaler", "torch.distributed.fsdp.ShardedGradScaler"}))
    return true;
  return call.full_name.empty() && call.callee()->is(ExprKind::kName) && is_one_of(call.last_name(), {"GradScaler", "ShardedGradScaler"});
}

// The class of this name is the file's own.
bool is_own_class(const Expr& call) {
  for (const auto* d : python::definitions_of(*call.callee())) {
    if (d->kind == python::DefinitionKind::kClass || d->kind == python::DefinitionKind::kFunction) return true;
  }
  return false;
}

void python_file(const python::Module& m, Report& out) {
  for (const Expr* call : m.calls()) {
    if (python::runs_only_on_cuda(*call)) continue;
    if (is_scaler(*call)) {
      if (is_off(*call) || is_own_class(*call)) continue;
      // torch.amp.GradScaler("npu") is torch_npu's own.
      const Expr* device = call->full_name.starts_with("torch.amp.") ? call->argument(0, "device") : nullptr;
      if (device) {
        const auto text = python::constant_string(*device);
        if (text && text->starts_with("npu")) continue;
      }
      Finding& f = out.add(*call, message("GradScaler"));
      if (const Expr* enabled = call->keyword("enabled"); enabled && !python::constant_bool(*enabled)) f.severity = Severity::kInfo;  // on for some settings only
      continue;
    }
    const bool apex = call->full_name == "apex.amp.initialize" || (call->full_name.empty() && python::dotted(*call->callee()) == "amp.initialize");
    if (apex) {
      const Expr *scale = call->keyword("loss_scale"), *level = call->keyword("opt_level");
      const auto text = scale ? python::constant_string(*scale) : std::nullopt;
      const auto opt = level ? python::constant_string(*level) : std::nullopt;
      // O1 and O2 are dynamic unless a number is given; O0 and O3 are not.
      const bool dynamic = scale ? text == "dynamic" : opt == "O1" || opt == "O2";
      if (dynamic) out.add(*call, call->full_name.empty() ? Confidence::kLikely : Confidence::kCertain, message("apex amp"));
      continue;
    }
    for (size_t i = 1; i < call->children.size(); ++i) {
      const Expr& a = *call->children[i];
      if (!a.is(ExprKind::kKeyword) || a.text != "dynamic_loss_scale" || python::constant_bool(*a.children[0]) == std::optional(false)) continue;
      Finding& f = out.add(a, Confidence::kLikely, message("dynamic_loss_scale"));
      if (!a.children[0]->is(ExprKind::kConstant)) f.severity = Severity::kInfo;  // for some settings only
    }
  }
  // {"fp16": {"enabled": True, "loss_scale": 0}} of a DeepSpeed configuration.
  for (const Expr* s : m.strings()) {
    if (s->text != "loss_scale" || !s->parent || !s->parent->is(ExprKind::kDict) || python::runs_only_on_cuda(*s)) continue;
    const auto& items = s->parent->children;
    bool zero = false, enabled = false;
    const Expr* value = nullptr;
    for (size_t i = 0; i + 1 < items.size(); i += 2) {
      if (!items[i]->is(ExprKind::kString)) continue;
      if (items[i] == s) {
        value = items[i + 1];
        zero = value->is(ExprKind::kNumber) && python::constant_number(*value) == std::optional(0.0);
      }
      if (items[i]->text == "enabled") enabled = python::constant_bool(*items[i + 1]) == std::optional(true);
    }
    if (zero && enabled) out.add(*value, Confidence::kCertain, message("loss_scale 0 of DeepSpeed means dynamic"));
  }
}

void config_file(const config::Document& d, Report& out) {
  for (const config::Entry& e : d.entries) {
    if (e.key == "loss_scale" && e.value == "dynamic") out.add(e.value_span, Confidence::kCertain, message("loss_scale: dynamic"));
    if (e.key == "dynamic_loss_scale" && is_one_of(lower(e.value), {"true", "yes", "on"})) out.add(e.value_span, Confidence::kCertain, message("dynamic_loss_scale"));
    // DeepSpeed: fp16.loss_scale 0 (the default) with fp16.enabled.
    if (e.key != "enabled" || (lower(e.value) != "true" && e.value != "auto") || !e.path.ends_with("fp16.enabled")) continue;
    const std::string block = e.path.substr(0, e.path.size() - 7);
    const config::Entry* scale = d.find(block + "loss_scale");
    const bool deepspeed = scale || d.find(block + "loss_scale_window") || d.find(block + "initial_scale_power") || d.find("zero_optimization.stage") || d.find("train_micro_batch_size_per_gpu");
    if (!deepspeed || (scale && scale->value != "0" && scale->value != "0.0")) continue;
    out.add(scale ? scale->value_span : e.value_span, e.value == "auto" ? Confidence::kLikely : Confidence::kCertain, message("fp16 of DeepSpeed with loss_scale 0"));
  }
}

}  // namespace

const Rule& r13_loss_scale() {
  static constexpr Rule kRule = {
      .id = "R13",
      .name = "loss-scale",
      .title = "Dynamic loss scale",
      .severity = Severity::kWrongNumbers,
      .why = "A dynamic scale halves when a gradient is infinite or not a number. A2 and A3 give infinities by default and 950 always; in saturation mode (the only one of 910) an overflow becomes the "
             "largest number, the check sees nothing, and the scale grows while gradients are wrong.",
      .fix = "Train in bfloat16, which needs no scale; else torch_npu's own GradScaler, which checks overflows in the NPU's way, in INF_NAN mode. A "
             "fixed scale hides the question but not the overflow.",
      .versions = "saturation mode: 910, and A2 or A3 when INF_NAN_MODE_ENABLE=0",
      .source = "pitfall table, row 13; torch_npu documentation of mixed precision and of INF_NAN_MODE_ENABLE",
      .python = python_file,
      .config = config_file,
  };
  return kRule;
}

}  // namespace pointsman::audit::rules
