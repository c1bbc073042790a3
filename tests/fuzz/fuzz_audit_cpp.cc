// SPDX-License-Identifier: Apache-2.0
// Any text as C++: ranges of tokens stay inside, and every rule reads it.
#include "audit/cpp/file.h"
#include "fuzz_audit.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  namespace au = pointsman::audit;
  const au::Unit unit = pointsman::fuzz::unit_of(data, size, au::FileKind::kCpp);
  const auto file = au::cpp::parse(unit);
  const auto n = static_cast<uint32_t>(file->tokens().size());
  for (const au::cpp::Token& t : file->tokens()) {
    pointsman::fuzz::expect(t.span.begin < t.span.end && t.span.end <= unit.text.size());
    pointsman::fuzz::expect(t.condition < static_cast<int>(file->conditions().size()) && t.function < static_cast<int>(file->functions().size()));
  }
  for (const au::cpp::Call& c : file->calls()) {
    for (const au::cpp::TokenRange& a : c.arguments) pointsman::fuzz::expect(a.first <= a.last && a.last <= n);
  }
  for (const au::cpp::Function& f : file->functions()) pointsman::fuzz::expect(f.first < f.last && f.last <= n);
  au::Tree tree;
  au::collect_facts(*file, tree);
  pointsman::fuzz::run_rules(unit, [&](const au::Rule& rule, au::Report& report) {
    if (rule.cpp) rule.cpp(*file, report);
  });
  return 0;
}
