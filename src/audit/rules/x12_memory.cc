// SPDX-License-Identifier: Apache-2.0
//
// X12. Style: names, and where they run.
#include "audit/rule.h"
#include "audit/rules/words.h"

namespace pointsman::audit::rules {
namespace {

using python::Expr;
using python::ExprKind;
using python::Stmt;

bool is_empty_cache(const Expr& call) {
  return is_one_of(call.full_name, {"torch.cuda.empty_cache", "torch.npu.empty_cache", "torch_npu.npu.empty_cache"});
}

// Loops over few, long things: emptying the cache between two of them costs nothing.
bool is_slow_loop(const Stmt& loop) {
  const auto slow = [](const Expr& e) {
    return (e.is(ExprKind::kName) || e.is(ExprKind::kAttribute)) &&
           contains_any(e.text, {"epoch", "trial", "model", "config", "case", "exp_", "experiment", "bench", "ckpt", "checkpoint", "shard", "fold", "shape", "setting", "dtype", "backend", "retry", "attempt"});
  };
  for (const Expr* t : loop.targets) {
    if (python::find_within(*t, slow)) return true;
  }
  for (const Expr* e : loop.exprs) {
    if (python::find_within(*e, slow)) return true;
  }
  return false;
}

// if out of memory: empty the cache and try again; every N steps: not in every round.
bool is_rare(const Expr& call) {
  for (const Stmt* s = call.stmt; s; s = s->parent) {
    if (s->kind == python::StmtKind::kExcept) return true;
    if (s->kind == python::StmtKind::kFunction) break;
  }
  for (const python::Guard& g : python::guards(call)) {
    if (python::find_within(*g.condition, [](const Expr& e) { return (e.is(ExprKind::kBinary) && e.text == "%") || (e.is(ExprKind::kName) && contains_any(e.text, {"interval", "freq", "every"})); })) return true;
  }
  return false;
}

void check_empty_cache(const Expr& call, const python::Module& m, Report& out) {
  if (is_rare(call)) return;
  const Stmt* loop = python::enclosing_loop(call);
  const Stmt* function = python::enclosing_function(call);
  if (loop && !is_slow_loop(*loop)) {
    out.add(call, Confidence::kLikely, "the allocator's cache is emptied in a loop: every round returns its memory and allocates it again, each time with a device synchronisation");
    return;
  }
  if (function && is_one_of(function->name, {"forward", "__call__", "step", "training_step", "decode", "generate_step"})) {
    out.add(call, Confidence::kLikely, "the allocator's cache is emptied in every call of " + std::string(function->name) + ": its memory is allocated again each time, with a device synchronisation");
    return;
  }
  // Modules taken off a model by name, then the cache emptied, in the hope that their memory comes back.
  for (const Expr* c : m.calls()) {
    if (function && c->full_name.empty() && c->last_name() == "delattr" && c->callee()->is(ExprKind::kName) && python::enclosing_function(*c) == function) {
      Finding& f = out.add(*c, Confidence::kLikely, "a module is unloaded by deleting its attribute; any other reference (hooks, optimiser, parameter lists) keeps its memory, and emptying the cache cannot return it");
      f.related.push_back(out.related(call.span, "the cache is emptied here"));
      f.fix = "Keep experts in fixed slots that are overwritten, or move the module to the CPU (module.to(\"cpu\")) and let the allocator reuse its blocks; check with torch.npu.memory_allocated().";
      return;
    }
  }
}

// x.to(device, non_blocking=True) or x.cuda(non_blocking=True), in a file that never pins anything.
void check_non_blocking(const python::Module& m, Report& out) {
  const Expr* first = nullptr;
  for (const Expr* c : m.calls()) {
    if (is_one_of(c->last_name(), {"pin_memory", "empty_pinned"})) return;
    if (const Expr* k = c->keyword("pin_memory"); k && !(k->is(ExprKind::kConstant) && k->text == "False")) return;
    if (const Expr* k = c->keyword("pin_memory_device"); k) return;
    if (first || !c->full_name.empty() || !is_one_of(c->last_name(), {"to", "cuda", "npu"})) continue;
    const Expr* n = c->keyword("non_blocking");
    if (!n || !(n->is(ExprKind::kConstant) && n->text == "True")) continue;
    if (c->children.size() > 1) {
      if (auto s = python::constant_string(*c->children[1]); s && *s == "cpu") continue;
    }
    first = c;
  }
  for (const Expr* r : m.references()) {
    if (contains_any(r->text, {"pin_memory", "pinned"})) return;
  }
  if (first) {
    Finding& f = out.add(*first, Confidence::kHint, "non_blocking=True, and nothing in this file pins host memory: from pageable memory the copy waits all the same");
    f.severity = Severity::kInfo;
    f.fix = "Pin the host tensor (pin_memory=True in the DataLoader, tensor.pin_memory()).";
  }
}

void python_file(const python::Module& m, Report& out) {
  for (const Expr* c : m.calls()) {
    if (is_empty_cache(*c)) check_empty_cache(*c, m, out);
  }
  check_non_blocking(m, out);
}

}  // namespace

const Rule& x12_memory() {
  static constexpr Rule kRule = {
      .id = "X12",
      .name = "memory-habits",
      .title = "Memory habits that cost more on an NPU",
      .severity = Severity::kPerformance,
      .why = "empty_cache returns free blocks to the driver: it synchronises the device, and the next allocation asks the driver again. It never frees what is still referenced. "
             "Copies from pageable host memory are synchronous whatever their flag says.",
      .fix = "Remove empty_cache from steps; set PYTORCH_NPU_ALLOC_CONF=expandable_segments:True against fragmentation; reuse buffers; pin host memory.",
      .versions = "all; on 950DT only expandable_segments and pinned_* options of the allocator are accepted",
      .source = "torch_npu caching allocator; PyTorch CUDA notes on pinned memory; practitioner's guide §3.3 and §4.3, corrected",
      .python = python_file,
  };
  return kRule;
}

}  // namespace pointsman::audit::rules
