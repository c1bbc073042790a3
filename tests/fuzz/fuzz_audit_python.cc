// SPDX-License-Identifier: Apache-2.0
// Any text as Python: the tree's spans stay inside, and every rule reads it.
#include "audit/python/ast.h"
#include "fuzz_audit.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  namespace au = pointsman::audit;
  const au::Unit unit = pointsman::fuzz::unit_of(data, size, au::FileKind::kPython);
  const auto module = au::python::parse(unit);
  const auto inside = [&](au::Span s) { return s.begin <= s.end && s.end <= unit.text.size(); };
  for (const auto* list : {&module->calls(), &module->references(), &module->strings()}) {
    for (const au::python::Expr* e : *list) pointsman::fuzz::expect(inside(e->span) && e->stmt != nullptr);
  }
  for (const au::python::Stmt* s : module->statements()) pointsman::fuzz::expect(inside(s->header) && s->scope != nullptr);
  au::Tree tree;
  au::collect_facts(*module, tree);
  pointsman::fuzz::run_rules(unit, [&](const au::Rule& rule, au::Report& report) {
    if (rule.python) rule.python(*module, report);
  });
  return 0;
}
