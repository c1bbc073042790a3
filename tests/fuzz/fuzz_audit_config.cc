// SPDX-License-Identifier: Apache-2.0
// The first byte chooses a format, the rest is any text of it; also documents and notebooks, whose units are read in turn.
#include "audit/blocks.h"
#include "audit/config/document.h"
#include "fuzz_audit.h"

namespace {

namespace au = pointsman::audit;

void check(const au::Unit& unit) {
  const auto document = au::config::parse(unit);
  const auto inside = [&](au::Span s) { return s.begin <= s.end && s.end <= unit.text.size(); };
  for (const au::config::Entry& e : document->entries) pointsman::fuzz::expect(inside(e.key_span) && inside(e.value_span));
  for (const au::config::Environment& e : document->environment) pointsman::fuzz::expect(inside(e.span));
  for (const au::config::Pin& p : document->pins) pointsman::fuzz::expect(inside(p.span));
  for (const au::config::Image& i : document->images) pointsman::fuzz::expect(inside(i.span));
  for (const au::config::Command& c : document->commands) {
    pointsman::fuzz::expect(inside(c.span) && !c.words.empty() && c.program_index < c.words.size());
    for (const au::config::Word& w : c.words) pointsman::fuzz::expect(inside(w.span));
  }
  au::Tree tree;
  au::collect_facts(*document, tree);
  pointsman::fuzz::run_rules(unit, [&](const au::Rule& rule, au::Report& report) {
    if (rule.config) rule.config(*document, report);
  });
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr au::FileKind kKinds[] = {au::FileKind::kYaml,         au::FileKind::kJson,       au::FileKind::kToml,  au::FileKind::kIni,
                                     au::FileKind::kRequirements, au::FileKind::kDockerfile, au::FileKind::kShell, au::FileKind::kDocument, au::FileKind::kNotebook};
  if (size == 0) return 0;
  const au::FileKind kind = kKinds[data[0] % std::size(kKinds)];
  if (kind != au::FileKind::kDocument && kind != au::FileKind::kNotebook) {
    check(pointsman::fuzz::unit_of(data + 1, size - 1, kind));
    return 0;
  }
  for (const au::Unit& u : au::split_units("fuzz", kind, au::decode(pointsman::fuzz::text_of(data + 1, size - 1)))) {
    pointsman::fuzz::expect(u.file_lines.empty() || u.file_lines.size() >= u.line_starts.size());
    u.location({0, static_cast<uint32_t>(u.text.size())});
    check(u);
  }
  return 0;
}
