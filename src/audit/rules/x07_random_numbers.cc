// SPDX-License-Identifier: Apache-2.0
//
// X7. Style: names and literals, with data flow for noise that reaches a choice.
#include "audit/rule.h"
#include "audit/rules/words.h"

namespace pointsman::audit::rules {
namespace {

using python::Expr;
using python::ExprKind;
using python::Stmt;

bool is_seeding(const Expr& call) {
  return is_one_of(call.full_name, {"torch.manual_seed", "torch.cuda.manual_seed", "torch.cuda.manual_seed_all", "torch.npu.manual_seed", "torch.npu.manual_seed_all",
                                    "torch_npu.npu.manual_seed", "torch_npu.npu.manual_seed_all", "numpy.random.seed", "random.seed", "transformers.set_seed"}) ||
         (call.full_name.empty() && is_one_of(call.last_name(), {"manual_seed", "manual_seed_all"}));
}

bool is_builtin_hash(const Expr& e) {
  return e.is(ExprKind::kCall) && e.full_name.empty() && e.callee()->is(ExprKind::kName) && e.callee()->text == "hash" && python::definitions_of(*e.callee()).empty();
}

// str(x), "a" + b, f"{x}": the built-in hash of these differs from process to process.
bool is_text(const Expr& e) {
  return python::find_within(e, [](const Expr& x) { return x.is(ExprKind::kString) || (x.is(ExprKind::kCall) && is_one_of(x.last_name(), {"str", "repr", "format", "join"})); }) != nullptr;
}

bool is_random(const Expr& call) {
  if (!call.is(ExprKind::kCall)) return false;
  if (is_one_of(call.full_name, {"torch.rand", "torch.randn", "torch.rand_like", "torch.randn_like", "torch.nn.functional.gumbel_softmax", "torch.empty_like.exponential_"})) return true;
  return call.full_name.empty() && call.callee()->is(ExprKind::kAttribute) && is_one_of(call.last_name(), {"exponential_", "uniform_", "normal_"});
}

// In a function or class whose name says gate or router. Tests, and what makes inputs and weights, seed before every case, as they
// should.
bool in_routing(const Expr& e) {
  const Stmt* function = python::enclosing_function(e);
  if (!function || contains_any(function->name, {"init", "reset", "make", "create", "build", "input", "baseline", "random", "data"})) return false;
  bool routes = false;
  for (const Stmt* s = e.stmt; s; s = s->parent) {
    if (s->kind != python::StmtKind::kFunction && s->kind != python::StmtKind::kClass) continue;
    if (contains_any(s->name, {"test", "bench"})) return false;
    routes |= contains_any(s->name, {"rout", "gate", "gating", "moe"}) && !contains_any(s->name, {"delegate", "aggregate"});
  }
  return routes;
}

bool only_while_training(const Expr& e) {
  const auto training = [](const Expr& x) { return (x.is(ExprKind::kName) || x.is(ExprKind::kAttribute)) && contains_any(x.text, {"training", "is_train"}); };
  for (const python::Guard& g : python::guards(e)) {
    if (python::find_within(*g.condition, training)) return true;
  }
  // noise * self.training, perhaps by way of the noise's width.
  const Expr* whole = &e;
  while (whole->parent) whole = whole->parent;
  return python::flows_from(*whole, training) != nullptr;
}

// Does the noise reach a top-k or argmax of the same function?
bool reaches_choice(const Expr& noise, const python::Module& m) {
  const Stmt* function = python::enclosing_function(noise);
  for (const Expr* c : m.calls()) {
    if (!is_one_of(c->last_name(), {"topk", "argmax", "sort", "argsort"}) || python::enclosing_function(*c) != function) continue;
    const Expr* x = c->full_name.empty() ? c->callee() : c->argument(0, "input");
    if (x && python::flows_from(*x, [&](const Expr& e) { return &e == &noise; })) return true;
  }
  return noise.last_name() == "gumbel_softmax";
}

std::string_view device_of(const Expr& call) {
  if (const Expr* d = call.keyword("device")) {
    if (auto s = python::constant_string(*d)) return *s;
  }
  return {};
}

void check_seed(const Expr& call, bool seeds_every_device, std::string_view path, Report& out) {
  for (size_t i = 1; i < call.children.size(); ++i) {
    const Expr* hash = python::flows_from(*call.children[i], [](const Expr& e) { return is_builtin_hash(e); });
    if (!hash || hash->children.size() < 2) continue;
    const bool text = is_text(*hash->children[1]);
    out.add(call, text ? Confidence::kCertain : Confidence::kLikely,
            text ? "the seed comes from hash() of a text, which Python salts anew in every process: ranks and runs draw different numbers"
                 : "the seed comes from the built-in hash(): where a text is hashed it differs between processes");
    return;
  }
  if (!contains_any(path, {"test"}) && in_routing(call) && !only_while_training(call)) {
    out.add(call, Confidence::kLikely, "seeding inside the routing code repeats the same numbers at every call, and depends on how a batch is cut into calls");
    return;
  }
  if (python::is_under(call, "torch.cuda") && !python::runs_only_on_cuda(call)) {
    Finding& f = out.add(call, "only CUDA generators are seeded here; those of an NPU are not, and the same seed gives other numbers there");
    if (seeds_every_device) f.severity = Severity::kInfo;
    f.fix = "torch.manual_seed(seed) seeds every device; do not expect equal random numbers from CUDA and NPU.";
  }
}

void python_file(const python::Module& m, Report& out) {
  bool seeds_every_device = false;
  for (const Expr* c : m.calls()) seeds_every_device |= c->full_name == "torch.manual_seed" || c->full_name == "transformers.set_seed";
  for (const Expr* c : m.calls()) {
    if (is_seeding(*c)) check_seed(*c, seeds_every_device, m.unit().path, out);
    if (is_random(*c) && in_routing(*c) && !only_while_training(*c) && reaches_choice(*c, m)) {
      out.add(*c, Confidence::kLikely, "noise decides which experts a token gets, also at inference: the devices draw different numbers, so the routes differ")
          .fix = "Add route noise only under self.training; draw it from a counter-based generator keyed by seed, layer, step and token.";
    }
    // Random tensors of two devices are compared.
    if (is_one_of(c->full_name, {"torch.equal", "torch.allclose", "torch.testing.assert_close", "numpy.testing.assert_allclose", "numpy.testing.assert_array_equal"})) {
      const Expr* a = c->positional(0);
      const Expr* b = c->positional(1);
      if (!a || !b) continue;
      const auto drawn = [](const Expr& e) { return is_random(e) || e.full_name == "torch.multinomial" || e.full_name == "torch.bernoulli" || e.full_name == "torch.nn.functional.dropout"; };
      const Expr* ra = python::flows_from(*a, drawn);
      const Expr* rb = python::flows_from(*b, drawn);
      if (ra && rb && ra != rb && !device_of(*ra).empty() && !device_of(*rb).empty() && device_of(*ra) != device_of(*rb)) {
        out.add(*c, Confidence::kLikely, "random numbers of two devices are compared; equal seeds do not give equal numbers on different devices")
            .fix = "Draw once on the CPU and copy to both devices.";
      }
    }
  }
}

}  // namespace

const Rule& x07_random_numbers() {
  static constexpr Rule kRule = {
      .id = "X7",
      .name = "random-numbers",
      .title = "Random numbers that must be equal across devices or processes",
      .severity = Severity::kWrongNumbers,
      .why = "Each device has its own generator and algorithm: the same seed gives other numbers on an NPU than on CUDA. hash() of a text is salted per process. "
             "Noise inside a gate changes which experts are chosen, so runs cannot be compared.",
      .fix = "Seed with torch.manual_seed(a fixed number) once; key noise by (seed, layer, step, token) with a counter-based generator (Philox), drawn on the CPU where devices are compared.",
      .versions = "all",
      .source = "pitfall table's sources, X7; Python documentation of PYTHONHASHSEED; PyTorch notes on reproducibility",
      .python = python_file,
  };
  return kRule;
}

}  // namespace pointsman::audit::rules
