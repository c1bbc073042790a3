// SPDX-License-Identifier: Apache-2.0
//
// Row 7: shapes that depend on values, and values that the host waits for, inside the forward pass.
#include <set>

#include "audit/rule.h"
#include "audit/rules/moe_words.h"

namespace pointsman::audit::rules {
namespace {

using python::Expr;
using python::ExprKind;
using python::Stmt;
using python::StmtKind;

bool is_module_class(const Stmt* c) {
  if (!c) return false;
  for (const Expr* e : c->exprs) {
    const std::string_view name = e->full_name;
    if (name == "torch.nn.Module" || name == "torch.nn.modules.Module" || name == "torch.autograd.Function") return true;
    if (contains_any(e->last_name(), {"module", "layer", "model", "block"})) return true;
  }
  return false;
}

// forward, or a method of code about experts that runs in it.
bool is_forward(const Expr& e, bool& experts) {
  const Stmt* f = python::enclosing_function(e);
  if (!f) return false;
  const Stmt* c = python::enclosing_class(e);
  if (c && contains_any(c->name, {"log", "metric", "tracker", "statistic", "report"})) return false;
  experts = (c && is_expert_name(c->name)) || is_moe_function(*f) || (c && contains_any(c->name, {"dispatcher", "router", "gate"}));
  // A helper nested in forward runs in it, too.
  for (const Stmt* at = f; at; at = python::enclosing_function(at)) {
    if (at->name == "forward" && is_module_class(python::enclosing_class(at))) return true;
  }
  if (contains_any(f->name, {"init", "load", "save", "log", "print", "debug", "repr", "test", "state_dict", "config", "check", "assert", "stat", "export", "quant", "backward", "bench", "main",
                             "convert", "reset", "summary", "metric", "plot", "track", "update", "param", "report", "aggregate"}))
    return false;
  return experts && contains_any(f->name, {"forward", "dispatch", "permute", "route", "routing", "infer", "gate", "gating", "combine", "preprocess", "run_expert", "moe_"});
}

// Logging, assertions, error paths: not the computation.
bool is_side_path(const Expr& e) {
  if (e.stmt && (e.stmt->kind == StmtKind::kAssert || e.stmt->kind == StmtKind::kRaise)) return true;
  for (const Expr* p = e.parent; p; p = p->parent) {
    if (p->is(ExprKind::kCall) && is_one_of(p->last_name(), {"print", "info", "debug", "warning", "error", "add_scalar", "log", "format", "warn"})) return true;
    if (p->is(ExprKind::kString)) return true;  // a field of an f-string
  }
  for (const python::Guard& g : python::guards(e)) {
    if (python::find_within(*g.condition, [](const Expr& x) {
          return (x.is(ExprKind::kName) || x.is(ExprKind::kAttribute)) && contains_any(x.text, {"log", "debug", "verbose", "is_tracing", "is_scripting", "exporting", "output_router"});
        }))
      return true;
  }
  return false;
}

// Numbers of the host: shapes, sizes, NumPy, configuration.
bool is_host_value(const Expr& receiver) {
  return python::find_within(receiver, [](const Expr& e) {
           return is_one_of(e.last_name(), {"shape", "size", "numel", "numpy", "config", "cfg", "args", "os", "json", "np", "items", "keys"}) || python::is_under(e, "numpy") || is_one_of(e.text, {"np", "numpy"});
         }) != nullptr;
}

const char* wait_message(std::string_view name) {
  if (name == "item") return "item() in the forward pass: the host waits for the device and then decides";
  if (name == "tolist") return "tolist() in the forward pass: the host waits for the device and then decides";
  return "cpu() in the forward pass: the host waits for the device";
}

void shapes(const python::Module& m, Report& out) {
  for (const Expr* call : m.calls()) {
    const std::string_view name = call->last_name();
    const bool shape = is_one_of(name, {"nonzero", "masked_select", "unique", "unique_consecutive", "where", "argwhere"});
    const bool wait = is_one_of(name, {"item", "tolist", "cpu"});
    if (!shape && !wait) continue;
    bool experts = false;
    if (!is_forward(*call, experts) || is_side_path(*call) || python::runs_only_on_cuda(*call)) continue;
    const bool function = python::is_under(*call, "torch");
    if (shape) {
      if (!function && (!call->full_name.empty() || !call->callee()->is(ExprKind::kAttribute) || name == "where")) continue;
      if (name == "where" && (call->positional(1) || call->has_unpacking())) continue;
      if (!function && is_host_value(*call->callee()->children[0])) continue;
      Finding& f = out.add(*call, function && call->resolution == python::Resolution::kImported ? Confidence::kCertain : Confidence::kLikely,
                           std::string(name) + " in the forward pass: the size of its result depends on values, so the host waits, and no graph with fixed shapes can hold it");
      if (!experts) f.confidence = Confidence::kLikely;
      continue;
    }
    if (!call->callee()->is(ExprKind::kAttribute) || call->children.size() > 1 || !call->full_name.empty()) continue;
    const Expr& receiver = *call->callee()->children[0];
    if (is_host_value(receiver)) continue;
    // x.unique().tolist(): the first one was reported.
    if (python::find_within(receiver, [](const Expr& e) {
          return e.is(ExprKind::kCall) && is_one_of(e.last_name(), {"nonzero", "unique", "masked_select", "argwhere", "unique_consecutive", "cpu", "item", "tolist"});
        }))
      continue;
    const bool counts = python::find_within(receiver, [](const Expr& e) {
      return (e.is(ExprKind::kName) || e.is(ExprKind::kAttribute)) && (is_expert_name(e.text) || is_count_word(e.text));
    }) != nullptr;
    out.add(*call, experts || counts ? Confidence::kLikely : Confidence::kHint, wait_message(name));
  }
}

// x[mask] where mask is a comparison.
void masks(const python::Module& m, Report& out) {
  for (const Expr* s : m.subscripts()) {
    if (s->children.size() < 2 || python::is_target(*s)) continue;
    bool experts = false;
    const Expr& index = *s->children[1];
    if (!index.is(ExprKind::kCompare) && !index.is(ExprKind::kName) && !index.is(ExprKind::kUnary)) continue;
    if (!is_forward(*s, experts) || !experts || is_side_path(*s) || python::runs_only_on_cuda(*s)) continue;
    const auto compares = [](const Expr& e) { return e.is(ExprKind::kCompare) && is_one_of(e.text, {"==", "!=", "<", ">", "<=", ">="}); };
    const Expr* mask = nullptr;
    if (compares(index)) {
      mask = &index;
    } else if (index.is(ExprKind::kName)) {
      const auto defs = python::definitions_of(index);
      for (const auto* d : defs) {
        if (d->value && d->tuple_index < 0 && d->kind == python::DefinitionKind::kAssign && compares(*d->value)) mask = d->value;
      }
    }
    if (!mask) continue;
    // A mask compares a tensor with something: numbers and lengths of the host do not count.
    if (is_host_value(*mask) || mask->children.empty() || mask->children[0]->is(ExprKind::kNumber) || python::constant_number(*mask->children[0])) continue;
    Finding& f = out.add(*s, Confidence::kLikely, "rows are chosen by a mask in the forward pass: how many there are depends on values, so the host waits");
    f.related.push_back(out.related(mask->span, "the mask"));
  }
}

void compiles(const python::Module& m, Report& out) {
  for (const Expr* call : m.calls()) {
    const bool compile = call->full_name == "torch.compile";
    // @partial(torch.compile, dynamic=True)
    const Expr* first = call->positional(0);
    const bool partial = call->full_name == "functools.partial" && first && first->full_name == "torch.compile";
    if ((!compile && !partial) || python::runs_only_on_cuda(*call)) continue;
    const Expr* dynamic = call->keyword("dynamic");
    if (!dynamic || python::constant_bool(*dynamic) != std::optional(true)) continue;
    const bool certain = call->resolution == python::Resolution::kImported && in_moe_code(*call);
    out.add(*call, certain ? Confidence::kCertain : Confidence::kLikely, "compiled with dynamic shapes: the graph modes of an NPU want fixed ones and run single operators otherwise");
  }
}

void python_file(const python::Module& m, Report& out) {
  if (is_test_path(m.unit().path)) return;
  shapes(m, out);
  masks(m, out);
  compiles(m, out);
}

void cpp_file(const cpp::File& f, Report& out) {
  if (is_test_path(f.unit().path)) return;
  std::set<int> seen;
  int searches = 0;
  for (const cpp::Call& c : f.calls()) {
    const int id = f.tokens()[c.token].function;
    const cpp::Function* fn = f.function_of(c.token);
    if (!fn || seen.count(id) != 0 || f.runs_under(f.tokens()[c.token].condition, {"USE_NPU", "USE_ASCEND", "USE_ROCM"})) continue;
    const auto about_counts = [](std::string_view n) { return is_expert_name(n) || is_count_word(n) || contains_any(n, {"offset"}); };
    if (c.last == "cudaMemcpyAsync" || c.last == "cudaMemcpy") {
      bool to_host = false, counts = false;
      for (const cpp::TokenRange& a : c.arguments) {
        to_host = to_host || f.mentions(a, "cudaMemcpyDeviceToHost");
        if (&a == &c.arguments[0] || &a == &c.arguments[std::min<size_t>(1, c.arguments.size() - 1)]) counts = counts || mentions(f, a, about_counts);
      }
      if (!to_host || !counts || (!is_moe_function(f, *fn) && !mentions(f, {fn->first, fn->last}, is_expert_name))) continue;
      if (++searches > kMaxSearches) break;
      bool waits = c.last == "cudaMemcpy";
      for (const cpp::Call& other : f.calls())
        waits = waits || (f.tokens()[other.token].function == id && other.token > c.token && is_one_of(other.last, {"cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize"}));
      if (!waits) continue;
      seen.insert(id);
      out.add(c.name_span, Confidence::kLikely, "counts of routed tokens come back to the host, which waits for them before the experts are launched");
    }
  }
}

}  // namespace

const Rule& r07_dynamic_shapes() {
  static constexpr Rule kRule = {
      .id = "R07",
      .name = "dynamic-shapes",
      .title = "Shapes and decisions that depend on routed values",
      .severity = Severity::kPerformance,
      .why = "An operator whose result has an unknown size, and every item(), tolist() or cpu(), makes the host wait for the device; launches are then no longer ahead of it, which costs more on an "
             "NPU than on a GPU. Captured graphs (NPUGraph, npugraph_ex) cannot hold either.",
      .fix = "Keep counts on the device and hand them to torch_npu.npu_grouped_matmul as the group_list tensor; pad the number of tokens to a few fixed sizes and capture one graph for each.",
      .versions = "all",
      .source = "pitfall table, row 7; CANN operator page GroupedMatmul (groupList is a device tensor); torch_npu NPUGraph limits",
      .python = python_file,
      .cpp = cpp_file,
  };
  return kRule;
}

}  // namespace pointsman::audit::rules
