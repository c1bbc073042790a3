// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "audit/report/report.h"
#include "audit/verdict.h"
#include "base/log.h"

namespace pointsman::audit {
namespace {

constexpr size_t kMaxExcerpt = 160;
constexpr size_t kWidth = 110;

const char* colour_of(Severity s) {
  switch (s) {
    case Severity::kBlocks: return "\x1b[1;31m";
    case Severity::kWrongNumbers: return "\x1b[1;35m";
    case Severity::kPerformance: return "\x1b[1;33m";
    case Severity::kVersion: return "\x1b[1;34m";
    case Severity::kInfo: return "\x1b[1;36m";
  }
  return "";
}

bool is_continuation(char c) { return (static_cast<uint8_t>(c) & 0xC0) == 0x80; }

// Terminal columns of the first `bytes` bytes: East Asian characters take two, tabs become spaces beforehand.
size_t columns(std::string_view s) {
  size_t n = 0;
  for (size_t i = 0; i < s.size(); ++i) {
    if (is_continuation(s[i])) continue;
    const auto c = static_cast<uint8_t>(s[i]);
    n += c >= 0xE3 && c <= 0xED ? 2 : 1;  // CJK, kana, Hangul and full-width forms start here
  }
  return n;
}

// Control characters of hostile files must not reach the terminal.
std::string printable(std::string_view s) {
  std::string out;
  for (const char c : s) {
    if (c == '\t') {
      out += ' ';
    } else if (static_cast<uint8_t>(c) < 0x20 || c == 0x7F) {
      out += '?';
    } else {
      out += c;
    }
  }
  // C1 controls are two bytes in UTF-8: C2 80 to C2 9F.
  for (size_t i = 0; i + 1 < out.size(); ++i) {
    if (static_cast<uint8_t>(out[i]) == 0xC2 && static_cast<uint8_t>(out[i + 1]) < 0xA0) out.replace(i, 2, "?");
  }
  return out;
}

std::string wrap(std::string_view text, size_t indent) {
  std::string out;
  size_t column = 0;
  while (!text.empty()) {
    const size_t blank = std::min(text.find(' '), text.size());
    const std::string_view word = text.substr(0, blank);
    text.remove_prefix(std::min(blank + 1, text.size()));
    const size_t width = columns(word);
    if (column > 0 && column + 1 + width > kWidth - indent) {
      out += '\n';
      out.append(indent, ' ');
      column = 0;
    }
    if (column > 0) {
      out += ' ';
      ++column;
    }
    out += word;
    column += width;
  }
  return out;
}

void excerpt(const Finding& f, std::string& out, const char* on, const char* off) {
  if (f.excerpt.empty()) return;
  // A window around the place when the line is long.
  const auto column = static_cast<size_t>(std::max(0, f.location.column - f.excerpt_column));
  size_t begin = 0;
  if (f.excerpt.size() > kMaxExcerpt && column > kMaxExcerpt / 2) begin = std::min(column - kMaxExcerpt / 2, f.excerpt.size());
  while (begin < f.excerpt.size() && is_continuation(f.excerpt[begin])) ++begin;
  std::string_view window = std::string_view(f.excerpt).substr(begin, kMaxExcerpt);
  while (!window.empty() && begin + window.size() < f.excerpt.size() && is_continuation(f.excerpt[begin + window.size()])) window.remove_suffix(1);
  const std::string number = std::to_string(f.location.line);
  out += format("  {:>5} | {}\n", number, printable(window));
  if (column >= begin && column <= begin + window.size()) {
    const size_t from = column - begin;
    size_t length = f.location.end_line == f.location.line && f.location.end_column > f.location.column ? static_cast<size_t>(f.location.end_column - f.location.column) : 1;
    length = std::min(length, window.size() - std::min(from, window.size()));
    const size_t width = std::max<size_t>(1, columns(window.substr(std::min(from, window.size()), length)));
    out += format("        | {}{}{}{}\n", std::string(columns(window.substr(0, from)), ' '), on, std::string(width, '^'), off);
  }
}

const Rule* rule_of(const Finding& f) { return find_rule(f.rule); }

std::string verdict_text(const AuditResult& result, const char* bold, const char* off) {
  const Verdict v = make_verdict(result.findings, result.api, result.signs);
  if (v.work.empty() && v.classes.empty()) return {};
  std::string out = format("{}Port{}\n", bold, off);
  for (const ClassVerdict& c : v.classes) out += format("  {}: {}\n", model_class_words(c.model_class), wrap(c.text, 4));
  if (v.classes.empty()) out += format("  {:.1f} % of {} uses map one to one\n", direct_percent(v), v.uses);
  size_t n = 0;
  for (const WorkItem& w : v.work) {
    out += format("  {:>2}. {:<14} {:<4} {:>4} in {} file{}, first {}:{}\n", ++n, work_words(w.work), w.rule, w.findings, w.files, w.files == 1 ? "" : "s", printable(w.first.path), w.first.line);
  }
  return out + "\n";
}

}  // namespace

const char* severity_words(Severity severity) {
  constexpr const char* kWords[] = {"info", "version", "performance", "wrong numbers", "blocks"};
  return kWords[static_cast<size_t>(severity)];
}

std::string text_report(const AuditResult& result, const TextOptions& options) {
  std::string out;
  std::string_view path;
  const char* off = options.colour ? "\x1b[0m" : "";
  const char* bold = options.colour ? "\x1b[1m" : "";
  for (const Finding& f : result.findings) {
    if ((f.suppressed || f.baselined) && !options.show_suppressed) continue;
    if (f.location.path != path) {
      path = f.location.path;
      out += format("{}{}{}\n", bold, printable(path), off);
    }
    const char* on = options.colour ? colour_of(f.severity) : "";
    const Rule* rule = rule_of(f);
    out += format("  {}:{}{}  {}{}{}  {}{}, {}{}\n", f.location.line, f.location.column, f.label.empty() ? "" : " (" + f.label + ")", bold, f.rule, off, on, severity_words(f.severity), confidence_name(f.confidence), off);
    if (f.suppressed) out += format("    silenced{}\n", f.justification.empty() ? "" : ": " + printable(f.justification));
    excerpt(f, out, on, off);
    out += "    " + wrap(printable(f.message), 4) + "\n";
    for (const Related& r : f.related) out += format("    see {}:{}: {}\n", printable(r.location.path), r.location.line, printable(r.message));
    const std::string_view fix = f.fix.empty() && rule ? rule->fix : std::string_view(f.fix);
    if (!fix.empty()) out += "    fix: " + wrap(printable(fix), 9) + "\n";
    out += '\n';
  }
  out += verdict_text(result, bold, off);
  const AuditSummary& s = result.summary;
  size_t total = 0;
  std::string counts;
  for (size_t i = std::size(s.by_severity); i-- > 0;) {
    total += s.by_severity[i];
    if (s.by_severity[i] > 0) counts += format("{}{} {}", counts.empty() ? "" : ", ", s.by_severity[i], severity_words(static_cast<Severity>(i)));
  }
  out += format("{} finding{} in {} file{} ({} lines){}{}\n", total, total == 1 ? "" : "s", s.files, s.files == 1 ? "" : "s", s.lines, counts.empty() ? "" : ": ", counts);
  if (s.suppressed > 0) out += format("{} silenced by comments\n", s.suppressed);
  if (s.dropped > 0) out += format("{} more of the same rule in the same file are not listed\n", s.dropped);
  for (const auto& u : result.unused_suppressions) out += format("{}:{}: this comment silences nothing\n", printable(u.location.path), u.location.line);
  if (s.baselined > 0) out += format("{} known from the baseline\n", s.baselined);
  size_t shown = 0;
  for (const SkippedPath& p : result.skipped) {
    if (++shown > 10) break;
    out += format("not read: {}: {}\n", printable(p.path), printable(p.reason));
  }
  if (result.skipped.size() > 10) out += format("not read: {} more (--format json lists them)\n", result.skipped.size() - 10);
  return out;
}

std::string explain(const Rule& rule) {
  std::string out = format("{} {}: {}\n\n", rule.id, rule.name, rule.title);
  out += format("severity: {}\nversions: {}\nsource:   {}\n\n", severity_words(rule.severity), rule.versions, wrap(rule.source, 10));
  out += "Why\n  " + wrap(rule.why, 2) + "\n\nFix\n  " + wrap(rule.fix, 2) + "\n\n";
  out += format("Silence one place with a comment: pointsman: ignore[{}] REASON\n", rule.id);
  return out;
}

std::string list_rules() {
  std::string out;
  for (const Rule* r : all_rules()) out += format("{:<4} {:<14} {}\n", r->id, severity_words(r->severity), r->title);
  return out;
}

}  // namespace pointsman::audit
