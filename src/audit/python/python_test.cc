// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <string>

#include "audit/python/ast.h"
#include "audit/python/query.h"

namespace pointsman::audit::python {
namespace {

struct Parsed {
  Unit unit;
  std::unique_ptr<Module> module;
  explicit Parsed(std::string text) {
    unit.path = "x.py";
    unit.kind = FileKind::kPython;
    unit.text = std::move(text);
    index_lines(unit);
    module = parse(unit);
  }
  // The first call whose last name is `name`.
  const Expr& call(std::string_view name) const {
    for (const Expr* c : module->calls()) {
      if (c->last_name() == name) return *c;
    }
    ADD_FAILURE() << "no call of " << name;
    static const Expr kNone;
    return kNone;
  }
};

std::string full(const Parsed& p, std::string_view name) { return std::string(p.call(name).full_name); }

TEST(PythonNames, FollowImportsAndAliases) {
  const Parsed p(
      "import torch\nimport torch.nn.functional as F\nimport torch.distributed as dist\nfrom torch import nn as n, topk as best\n"
      "from . import ops\nfrom .layers.gate import Gate\nG = torch.nn.functional\n"
      "F.softmax(x)\ndist.all_reduce(x)\nn.Linear(1, 2)\nbest(x)\nops.permute(x)\nGate()\nG.gelu(x)\ntorch.cuda.synchronize()\n");
  EXPECT_EQ(full(p, "softmax"), "torch.nn.functional.softmax");
  EXPECT_EQ(full(p, "all_reduce"), "torch.distributed.all_reduce");
  EXPECT_EQ(full(p, "Linear"), "torch.nn.Linear");
  EXPECT_EQ(full(p, "topk"), "torch.topk");
  EXPECT_EQ(full(p, "permute"), ".ops.permute");
  EXPECT_EQ(full(p, "Gate"), ".layers.gate.Gate");
  EXPECT_EQ(full(p, "gelu"), "torch.nn.functional.gelu");
  EXPECT_EQ(full(p, "synchronize"), "torch.cuda.synchronize");
  EXPECT_EQ(p.call("softmax").resolution, Resolution::kImported);
}

TEST(PythonNames, WithoutAnImportCustomaryNamesAreAssumed) {
  const Parsed p("dist.all_reduce(x)\nmodel.cuda()\n");
  EXPECT_EQ(full(p, "all_reduce"), "torch.distributed.all_reduce");
  EXPECT_EQ(p.call("all_reduce").resolution, Resolution::kAssumed);
  EXPECT_EQ(full(p, "cuda"), "");
}

TEST(PythonNames, WhatIsReboundResolvesToNothing) {
  const Parsed p(
      "import torch\nfrom torch import topk\ndef topk(x): return x\n"
      "def f(torch):\n  torch.relu(1)\ndef g():\n  dist = make()\n  dist.barrier()\nclass A:\n  F = 1\n  def h(self): return F.gelu(1)\n");
  EXPECT_EQ(full(p, "relu"), "");
  EXPECT_EQ(full(p, "barrier"), "");
  EXPECT_EQ(full(p, "gelu"), "torch.nn.functional.gelu") << "names of a class body are not seen from its methods";
  const Parsed q("try:\n  import apex\nexcept ImportError:\n  apex = None\napex.run()\n");
  EXPECT_EQ(full(q, "run"), "apex.run") << "None in the handler is a placeholder";
}

TEST(PythonCalls, ArgumentsByPositionAndName) {
  const Parsed p("f(1, *a)\ng(1, 2, k=3, **kw)\nh(x for x in y)\n");
  EXPECT_EQ(p.call("f").positional(0)->text, "1");
  EXPECT_EQ(p.call("f").positional(1), nullptr);
  EXPECT_EQ(p.call("g").positional(1)->text, "2");
  EXPECT_EQ(p.call("g").argument(5, "k")->text, "3");
  EXPECT_EQ(p.call("g").argument(0, "missing")->text, "1");
  EXPECT_TRUE(p.call("g").has_unpacking());
  EXPECT_TRUE(p.call("h").positional(0)->is(ExprKind::kComprehension));
}

TEST(PythonStrings, EscapesConcatenationAndFields) {
  const Parsed p("f('a' \"b\\n\" r'\\d', f\"cuda:{rank}\", b'x', f'{x[\"k\"]:>{w}}', '''q'q''')\n\"\"\"doc\"\"\"\n");
  const Expr& c = p.call("f");
  EXPECT_EQ(c.positional(0)->text, "ab\n\\d");
  EXPECT_EQ(c.positional(1)->text, "cuda:{}");
  EXPECT_TRUE(c.positional(1)->is_formatted);
  EXPECT_EQ(c.positional(1)->children[0]->text, "rank");
  EXPECT_TRUE(c.positional(2)->is_bytes);
  EXPECT_TRUE(c.positional(3)->children[0]->is(ExprKind::kSubscript));
  EXPECT_EQ(c.positional(4)->text, "q'q");
  EXPECT_EQ(p.module->strings().size(), 6u) << "five arguments and the key of the field; no docstring";
}

TEST(PythonFlow, FollowsAssignmentsLoopsAndAttributes) {
  const Parsed p(
      "import torch\n"
      "class M:\n"
      "  def __init__(self, c):\n    self.k = c.num_experts_per_tok\n"
      "  def forward(self, x):\n"
      "    s = torch.softmax(x, -1)\n    if x.ndim: s = s * 2\n    s[0] = 1\n    v, i = torch.topk(s, self.k)\n    return one_hot(i)\n"
      "  def other(self, x):\n    s = torch.softmax(x, -1)\n    s = torch.zeros(3)\n    return bincount(s)\n");
  const auto is_softmax = [](const Expr& e) { return e.is(ExprKind::kCall) && e.full_name == "torch.softmax"; };
  const Expr& topk = p.call("topk");
  EXPECT_NE(flows_from(*topk.positional(0), is_softmax), nullptr);
  EXPECT_NE(flows_from(*p.call("one_hot").positional(0), is_softmax), nullptr);
  EXPECT_EQ(flows_from(*p.call("bincount").positional(0), is_softmax), nullptr) << "a later assignment replaces the earlier one";
  const auto defs = definitions_of(*topk.positional(1));
  ASSERT_EQ(defs.size(), 1u);
  EXPECT_EQ(dotted(*defs[0]->value), "c.num_experts_per_tok");
}

TEST(PythonGuards, TellCudaFromNpu) {
  const Parsed p(
      "import torch\n"
      "if torch.cuda.is_available():\n  a()\nelse:\n  b()\n"
      "def f(d):\n"
      "  if d.type != 'cuda':\n    return c()\n  return e()\n"
      "x = g() if d == 'npu' else h()\n"
      "if not is_npu:\n  i()\n"
      "ok = use_cuda and j()\n"
      "if n > 1 or d == 'cuda':\n  k()\n");
  for (const char* name : {"a", "e", "h", "i", "j"}) EXPECT_TRUE(runs_only_on_cuda(p.call(name))) << name;
  for (const char* name : {"b", "c", "g", "k"}) EXPECT_FALSE(runs_only_on_cuda(p.call(name))) << name;
  EXPECT_TRUE(runs_only_on_npu(p.call("g")));
}

TEST(PythonContext, LoopsHandlersAndManagers) {
  const Parsed p(
      "def f():\n  for i in start():\n    with torch.autocast('cuda'), lock:\n      body()\n  [inside() for x in y]\n  while cond():\n    pass\n"
      "try:\n  import apex\nexcept ImportError:\n  pass\ntry:\n  import apex2\nfinally:\n  pass\n");
  EXPECT_FALSE(in_loop(p.call("start")));
  EXPECT_TRUE(in_loop(p.call("body")));
  EXPECT_TRUE(in_loop(p.call("inside")));
  EXPECT_TRUE(in_loop(p.call("cond")));
  ASSERT_EQ(with_managers(p.call("body")).size(), 2u);
  EXPECT_TRUE(failure_is_caught(*p.module->imports()[0]));
  EXPECT_FALSE(failure_is_caught(*p.module->imports()[1]));
}

TEST(PythonBroken, GoesOnAfterErrorsAndReadsPythonTwo) {
  const Parsed p(
      "print 'a', first(1)\nexec \"x\"\nraise E, second()\ntry:\n  pass\nexcept E, e:\n  third()\n"
      "x = (1, 2\ndef g:\n  fourth()\nimport torch\n$$ ?? fifth(2)\ny = '''not closed\nsixth()\n");
  for (const char* name : {"first", "second", "third", "fourth", "fifth", "sixth"}) p.call(name);
  EXPECT_TRUE(p.module->imports_module("torch"));
}

TEST(PythonBroken, EveryExpressionHasAStatement) {
  const Parsed p("@decorator(first())\nx = second()\n@last.one");
  for (const char* name : {"decorator", "first", "second"}) EXPECT_NE(p.call(name).stmt, nullptr) << name;
  for (const Expr* r : p.module->references()) EXPECT_NE(r->stmt, nullptr);
}

TEST(PythonBroken, DepthAndLengthAreBounded) {
  const std::string open(200'000, '('), chain = "x" + std::string(100'000, '.') + "y";
  std::string attributes = "x", blocks, nots = "z = ";
  for (int i = 0; i < 50'000; ++i) attributes += ".a";
  for (int i = 0; i < 2'000; ++i) blocks += std::string(static_cast<size_t>(i), ' ') + "if x:\n";
  for (int i = 0; i < 100'000; ++i) nots += "not ";
  std::string plus = "a";
  for (int i = 0; i < 100'000; ++i) plus += "+a";
  std::string triple;
  for (int i = 0; i < 50'000; ++i) triple += "\"\"\"x''' ";
  for (const std::string& text : {open, chain, attributes, blocks, nots, plus, triple, std::string(100'000, '['), "f(" + std::string(100'000, '{') + "})"}) {
    const Parsed p(text);
    for (const Expr* r : p.module->references()) {
      guards(*r);
      if (r->span.begin > 100) break;
    }
  }
}

}  // namespace
}  // namespace pointsman::audit::python
