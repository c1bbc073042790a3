// SPDX-License-Identifier: Apache-2.0
//
// One file that needs nothing else: no script, no font, no picture from elsewhere; it prints.
#include <algorithm>
#include <map>

#include "audit/report/report.h"
#include "audit/verdict.h"
#include "base/log.h"
#include "base/markup.h"

namespace pointsman::audit {
namespace {

constexpr std::string_view kStyle = R"css(
:root{color-scheme:light dark;--line:#8884;--soft:#8882}
body{font:15px/1.5 system-ui,sans-serif;max-width:72rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.5rem;margin:0}h2{font-size:1.15rem;margin:2rem 0 .5rem}
table{border-collapse:collapse;width:100%}td,th{text-align:left;padding:.25rem .6rem;border-bottom:1px solid var(--line);vertical-align:top}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}
code,pre{font:13px/1.45 ui-monospace,monospace}pre{background:var(--soft);padding:.5rem .7rem;overflow-x:auto;margin:.4rem 0;border-radius:4px}
mark{background:#fd08;color:inherit;border-radius:2px}
details{border-bottom:1px solid var(--line);padding:.3rem 0}summary{cursor:pointer}
.s{display:inline-block;min-width:6.5rem;font-weight:600}.blocks{color:#c22}.wrong_numbers{color:#a2a}.performance{color:#a60}.version{color:#26c}.info{color:#277}
.bar{display:flex;height:.9rem;border-radius:4px;overflow:hidden;margin:.5rem 0}.bar div{min-width:2px}.muted{opacity:.7}
)css";

// The excerpt with the place marked.
std::string marked(const Finding& f) {
  const std::string& s = f.excerpt;
  auto clamp = [&](int column) {
    size_t i = std::min(s.size(), static_cast<size_t>(std::max(0, column - f.excerpt_column)));
    while (i > 0 && i < s.size() && (static_cast<uint8_t>(s[i]) & 0xC0) == 0x80) --i;
    return i;
  };
  const size_t begin = clamp(f.location.column), end = std::max(begin, clamp(f.location.end_column));
  if (begin == end) return escape_markup(s);
  return escape_markup(s.substr(0, begin)) + "<mark>" + escape_markup(s.substr(begin, end - begin)) + "</mark>" + escape_markup(s.substr(end));
}

std::string verdict_section(const AuditResult& result) {
  const Verdict v = make_verdict(result.findings, result.api, result.signs);
  std::string out = "<h2>Verdict</h2>\n";
  for (const ClassVerdict& c : v.classes) out += format("<p><b>{}</b>: {}</p>\n", model_class_words(c.model_class), escape_markup(c.text));
  if (v.classes.empty()) out += format("<p>{:.1f} % of {} uses map one to one. No sign of a language, vision or reinforcement-learning model.</p>\n", direct_percent(v), v.uses);
  constexpr const char* kColours[] = {"#26c", "#a60", "#a2a", "#844", "#c22", "#888"};
  out += "<div class=\"bar\" role=\"img\" aria-label=\"shares of the work\">";
  out += format("<div style=\"flex:{};background:#3a5\" title=\"direct: {}\"></div>", v.direct, v.direct);
  for (size_t i = 0; i < std::size(kColours); ++i) {
    if (v.places[i] > 0) out += format("<div style=\"flex:{};background:{}\" title=\"{}: {}\"></div>", v.places[i], kColours[i], work_words(static_cast<Work>(i)), v.places[i]);
  }
  out += "</div>\n<table><tr><th>kind of work</th><th class=\"n\">places</th></tr>";
  out += format("<tr><td>direct</td><td class=\"n\">{}</td></tr>", v.direct);
  for (size_t i = 0; i < std::size(kColours); ++i) out += format("<tr><td><span style=\"color:{}\">&#9632;</span> {}</td><td class=\"n\">{}</td></tr>", kColours[i], work_words(static_cast<Work>(i)), v.places[i]);
  out += "</table>\n";
  if (v.work.empty()) return out;
  out += "<h2>Work, in order</h2>\n<table><tr><th class=\"n\"></th><th>what</th><th>rule</th><th class=\"n\">findings</th><th class=\"n\">files</th><th>first</th><th>how</th></tr>\n";
  size_t n = 0;
  for (const WorkItem& w : v.work) {
    out += format("<tr><td class=\"n\">{}</td><td>{}</td><td><span class=\"{}\">{}</span></td><td class=\"n\">{}</td><td class=\"n\">{}</td><td><code>{}:{}</code></td><td>{}</td></tr>\n", ++n, work_words(w.work),
                  severity_name(w.severity), w.rule, w.findings, w.files, escape_markup(w.first.path), w.first.line, escape_markup(w.fix));
  }
  return out + "</table>\n";
}

}  // namespace

std::string html_report(const AuditResult& result, std::string_view version) {
  std::string out = "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">";
  out += "<title>Audit for Ascend</title><style>" + std::string(kStyle) + "</style></head><body>\n";
  const AuditSummary& s = result.summary;
  out += format("<h1>Audit for Ascend</h1>\n<p class=\"muted\">{} &middot; {} files, {} lines &middot; target: {} &middot; data of {} &middot; pointsman {}</p>\n", escape_markup(result.root), s.files, s.lines,
                result.options.soc == Soc::kUnknown ? "any" : soc_name(result.options.soc), escape_markup(result.data_generated), escape_markup(version));
  out += "<table><tr>";
  for (size_t i = std::size(s.by_severity); i-- > 0;) out += format("<th class=\"n {}\">{}</th>", severity_name(static_cast<Severity>(i)), severity_words(static_cast<Severity>(i)));
  out += "<th class=\"n\">silenced</th><th class=\"n\">known</th></tr><tr>";
  for (size_t i = std::size(s.by_severity); i-- > 0;) out += format("<td class=\"n\">{}</td>", s.by_severity[i]);
  out += format("<td class=\"n\">{}</td><td class=\"n\">{}</td></tr></table>\n", s.suppressed, s.baselined);
  out += verdict_section(result);
  out += "<h2>Findings</h2>\n";
  std::string_view path;
  for (const Finding& f : result.findings) {
    if (f.suppressed || f.baselined) continue;
    if (f.location.path != path) {
      path = f.location.path;
      out += format("<h3><code>{}</code></h3>\n", escape_markup(path));
    }
    const Rule* rule = find_rule(f.rule);
    out += format("<details><summary><span class=\"s {}\">{}</span> <b>{}</b> line {}{} &middot; {} <span class=\"muted\">({})</span></summary>\n", severity_name(f.severity), severity_words(f.severity), f.rule, f.location.line,
                  f.label.empty() ? "" : ", " + escape_markup(f.label), escape_markup(f.message), confidence_name(f.confidence));
    if (!f.excerpt.empty()) out += "<pre>" + marked(f) + "</pre>\n";
    out += format("<p><b>Fix.</b> {}</p>", escape_markup(f.fix.empty() && rule ? rule->fix : std::string_view(f.fix)));
    for (const Related& r : f.related) out += format("<p class=\"muted\">see {}:{}: {}</p>", escape_markup(r.location.path), r.location.line, escape_markup(r.message));
    if (rule) out += format("<p class=\"muted\">{} Versions: {}. Source: {}.</p>", escape_markup(rule->why), escape_markup(rule->versions), escape_markup(rule->source));
    out += "</details>\n";
  }
  if (!result.skipped.empty()) {
    out += "<h2>Not read</h2>\n<ul>\n";
    for (const SkippedPath& p : result.skipped) out += format("<li><code>{}</code>: {}</li>\n", escape_markup(p.path), escape_markup(p.reason));
    out += "</ul>\n";
  }
  return out + "</body></html>\n";
}

}  // namespace pointsman::audit
