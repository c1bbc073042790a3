// SPDX-License-Identifier: Apache-2.0
//
// Row 14: embedding and output layer in 16 bits while training.
#include "audit/rule.h"
#include "audit/rules/precision.h"
#include "audit/rules/words.h"

namespace pointsman::audit::rules {
namespace {

using python::Expr;
using python::ExprKind;

bool is_head_name(std::string_view name) {
  const std::string s = lower(name);
  return contains_any(s, {"lm_head", "embed_tokens", "word_embed", "tok_embed", "token_embed", "wte", "output_embed", "embed_out", "output_layer"}) || s == "embedding" || s == "embeddings" || s == "embed";
}

// Does the file train? Gradients are computed, or weights are stepped.
const Expr* training(const python::Module& m) {
  for (const Expr* c : m.calls()) {
    if (c->last_name() == "backward" && c->callee()->is(ExprKind::kAttribute) && contains_any(python::dotted(*c->callee()->children[0]), {"loss", "engine", "accelerator", "output"})) return c;
    if (python::is_under(*c, "torch.optim") && contains_any(c->last_name(), {"adam", "sgd", "adafactor", "lion", "rmsprop", "adagrad"})) return c;
    if (is_one_of(c->full_name, {"transformers.Trainer", "trl.SFTTrainer", "transformers.Seq2SeqTrainer"})) return c;
  }
  return nullptr;
}

// Adapters keep their own weights in float32; the frozen rest may be narrow.
bool has_adapters(const python::Module& m) {
  if (m.imports_module("peft")) return true;
  for (const Expr* c : m.calls()) {
    if (contains_any(c->last_name(), {"get_peft_model", "loraconfig", "prepare_model_for_kbit"})) return true;
  }
  return false;
}

void python_file(const python::Module& m, Report& out) {
  const Expr* trains = training(m);
  if (!trains || has_adapters(m)) return;
  const auto add = [&](const Expr& at, Confidence confidence, std::string text) {
    Finding& f = out.add(at, confidence, std::move(text));
    f.related.push_back(out.related(trains->span, "the file trains here"));
  };
  for (const Expr* call : m.calls()) {
    if (python::runs_only_on_cuda(*call)) continue;
    const Confidence resolved = call->resolution == python::Resolution::kImported ? Confidence::kCertain : Confidence::kLikely;
    if (call->full_name == "torch.nn.Embedding") {
      const Expr* dtype = call->keyword("dtype");
      if (dtype && is_narrow(float_type(*dtype))) add(*call, resolved, std::string("the embedding is trained in ") + float_name(float_type(*dtype)));
      continue;
    }
    const Expr* dtype = call->keyword("dtype");
    if (call->full_name == "torch.nn.Linear" && dtype && is_narrow(float_type(*dtype)) && call->stmt) {
      for (const Expr* t : call->stmt->targets) {
        if (is_head_name(t->last_name())) add(*call, resolved, std::string("the output layer is trained in ") + float_name(float_type(*dtype)));
      }
      continue;
    }
    // model.lm_head.half(), self.embed_tokens.to(torch.bfloat16)
    const Float f = cast_of(*call);
    if (is_narrow(f)) {
      const Expr& receiver = *call->callee()->children[0];
      const bool made_here = receiver.is(ExprKind::kCall) && receiver.full_name == "torch.nn.Embedding";
      const bool named = (receiver.is(ExprKind::kName) || receiver.is(ExprKind::kAttribute)) && is_head_name(receiver.text);
      // Modules are cast as they are; a cast of what a layer returned is of activations.
      const bool module = named && (receiver.is(ExprKind::kAttribute) || (call->parent == nullptr && call->stmt && call->stmt->kind == python::StmtKind::kExpr));
      if (made_here || module) add(*call, made_here ? resolved : Confidence::kLikely, std::string("the embedding or output layer is cast to ") + float_name(f) + " in a file that trains");
      continue;
    }
    // AutoModelForCausalLM.from_pretrained(..., torch_dtype=torch.float16) and an optimizer over all of it.
    if (call->last_name() == "from_pretrained" && python::is_under(*call, "transformers")) {
      const Expr* type = call->keyword("torch_dtype");
      if (!type) type = call->keyword("dtype");
      if (type && is_narrow(float_type(*type)) && contains_any(call->full_name, {"model", "forcausallm", "lmhead"}))
        add(*call, Confidence::kLikely, std::string("the model, its embedding and output layer too, is loaded in ") + float_name(float_type(*type)) + " and trained: there are no float32 master weights");
    }
  }
}

}  // namespace

const Rule& r14_embedding_dtype() {
  static constexpr Rule kRule = {
      .id = "R14",
      .name = "embedding-dtype",
      .title = "Embedding or output layer trained in 16 bits",
      .severity = Severity::kInfo,
      .why = "Steps of the optimizer that are smaller than half a unit in the last place of a 16-bit weight are lost, first in the embedding and the output layer, whose gradients are sparse. It is the "
             "same on CUDA; a run that only just converges there may not do so after a move. No vendor document demands float32; inference in bfloat16 is normal.",
      .fix = "Keep float32 master weights (autocast over a float32 model, FSDP with param_dtype=bfloat16, or an optimizer with master weights), and take the loss of float32 logits.",
      .versions = "all",
      .source = "pitfall table, row 14 (corrected: no official requirement was found)",
      .python = python_file,
  };
  return kRule;
}

}  // namespace pointsman::audit::rules
