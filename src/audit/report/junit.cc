// SPDX-License-Identifier: Apache-2.0
//
// JUnit XML: one test suite per rule, one failed test per finding; a rule without findings is one test that passed.
#include <algorithm>
#include <map>

#include "audit/report/report.h"
#include "base/log.h"
#include "base/markup.h"

namespace pointsman::audit {

std::string junit_report(const AuditResult& result, Severity threshold) {
  std::map<std::string_view, std::vector<const Finding*>> by_rule;
  size_t tests = 0, failures = 0, skipped = 0;
  const auto fails = [&](const Finding& f) { return !f.suppressed && !f.baselined && f.severity >= threshold; };
  for (const Finding& f : result.findings) by_rule[f.rule].push_back(&f);
  std::string suites;
  for (const Rule* r : all_rules()) {
    const auto& list = by_rule[r->id];
    const size_t failed = static_cast<size_t>(std::count_if(list.begin(), list.end(), [&](const Finding* f) { return fails(*f); }));
    const size_t ignored = list.size() - failed, n = std::max<size_t>(1, list.size());
    tests += n;
    failures += failed;
    skipped += ignored;
    suites += format("  <testsuite name=\"{} {}\" tests=\"{}\" failures=\"{}\" errors=\"0\" skipped=\"{}\">\n", r->id, escape_markup(r->name), n, failed, ignored);
    if (list.empty()) suites += format("    <testcase classname=\"pointsman.audit.{}\" name=\"{}\"/>\n", r->id, escape_markup(r->title));
    for (const Finding* f : list) {
      const std::string place = format("{}:{}", f->location.path, f->location.line);
      suites += format("    <testcase classname=\"pointsman.audit.{}\" name=\"{}:{}\" file=\"{}\" line=\"{}\">\n", r->id, escape_markup(place), f->location.column, escape_markup(f->location.path), f->location.line);
      if (fails(*f)) {
        suites += format("      <failure type=\"{}\" message=\"{}\">{}\n{}\nfix: {}</failure>\n", severity_name(f->severity), escape_markup(f->message), escape_markup(place), escape_markup(f->excerpt),
                         escape_markup(f->fix.empty() ? r->fix : std::string_view(f->fix)));
      } else {
        const std::string why = f->suppressed ? "silenced by a comment: " + f->justification : f->baselined ? "known from the baseline" : format("{}: below the threshold: {}", severity_name(f->severity), f->message);
        suites += format("      <skipped message=\"{}\"/>\n", escape_markup(why));
      }
      suites += "    </testcase>\n";
    }
    suites += "  </testsuite>\n";
  }
  return format("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites name=\"pointsman audit\" tests=\"{}\" failures=\"{}\" errors=\"0\" skipped=\"{}\">\n{}</testsuites>\n", tests, failures, skipped, suites);
}

}  // namespace pointsman::audit
