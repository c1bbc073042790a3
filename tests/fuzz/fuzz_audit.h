// SPDX-License-Identifier: Apache-2.0
//
// A unit from fuzz input, and all rules over it.
#pragma once

#include <algorithm>

#include "audit/rule.h"
#include "audit/suppression.h"
#include "fuzz_input.h"

namespace pointsman::fuzz {

inline audit::Unit unit_of(const uint8_t* data, size_t size, audit::FileKind kind) {
  audit::Unit unit;
  unit.path = "fuzz";
  unit.kind = unit.container = kind;
  unit.text = audit::decode(text_of(data, size)).text;
  audit::index_lines(unit);
  return unit;
}

// `callback(rule, report)` for every rule; findings must lie inside the unit.
template <class F>
void run_rules(const audit::Unit& unit, F callback) {
  audit::find_suppressions(unit);
  std::vector<audit::Finding> findings;
  std::vector<audit::Located<audit::Note>> notes;
  for (const audit::Rule* rule : audit::all_rules()) {
    audit::Report report(*rule, audit::Facts::embedded(), audit::Soc::kUnknown, &unit, findings, notes);
    callback(*rule, report);
  }
  // Lines are those of the file, of which the unit may be a part.
  int first = unit.file_line(0), last = first;
  for (size_t i = 0; i < unit.line_starts.size(); ++i) {
    first = std::min(first, unit.file_line(i));
    last = std::max(last, unit.file_line(i));
  }
  for (const audit::Finding& f : findings) {
    expect(f.location.line >= first && f.location.line <= last && f.location.column >= 1 && f.location.end_line >= f.location.line);
    for (const audit::Edit& e : f.edits) expect(e.location.line >= first && e.location.line <= last && e.location.end_line == e.location.line && e.location.end_column >= e.location.column);
  }
}

}  // namespace pointsman::fuzz
