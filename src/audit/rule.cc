// SPDX-License-Identifier: Apache-2.0
#include "audit/rule.h"

#include <algorithm>

namespace pointsman::audit {

namespace rules {
#define PM_AUDIT_RULE(name) const Rule& name();
#include "audit/rules/rule_list.inc"
#undef PM_AUDIT_RULE
}  // namespace rules

std::span<const Rule* const> all_rules() {
  static const std::vector<const Rule*> kRules = {
#define PM_AUDIT_RULE(name) &rules::name(),
#include "audit/rules/rule_list.inc"
#undef PM_AUDIT_RULE
  };
  return kRules;
}

const Rule* find_rule(std::string_view id) {
  if (id.empty()) return nullptr;
  const char letter = id[0] >= 'a' && id[0] <= 'z' ? static_cast<char>(id[0] - 32) : id[0];
  std::string_view digits = id.substr(1);
  while (digits.size() > 1 && digits[0] == '0') digits.remove_prefix(1);
  for (const Rule* r : all_rules()) {
    std::string_view own = r->id.substr(1);
    while (own.size() > 1 && own[0] == '0') own.remove_prefix(1);
    if (r->id[0] == letter && own == digits) return r;
  }
  return nullptr;
}

Finding& Report::add_at(const Location& location, std::string excerpt, std::string label, Confidence confidence, std::string message) {
  Finding f;
  f.rule = std::string(rule_.id);
  f.severity = rule_.severity;
  f.confidence = confidence;
  f.location = location;
  f.message = std::move(message);
  f.excerpt = std::move(excerpt);
  f.label = std::move(label);
  findings_.push_back(std::move(f));
  return findings_.back();
}

Finding& Report::add(Span span, Confidence confidence, std::string message) {
  // A finding of many lines points at its first.
  const size_t line = unit_->line_index(span.begin);
  const std::string_view text = unit_->line_text(line);
  span.end = std::min(span.end, unit_->line_starts[line] + static_cast<uint32_t>(text.size()));
  Unit::Excerpt e = unit_->excerpt(span.begin);
  Finding& f = add_at(unit_->location({span.begin, std::max(span.begin, span.end)}), std::move(e.text), unit_->label_at(span.begin), confidence, std::move(message));
  f.excerpt_column = e.column;
  return f;
}

Finding& Report::add(const python::Expr& e, std::string message) {
  return add(e.span, e.resolution == python::Resolution::kImported ? Confidence::kCertain : Confidence::kLikely, std::move(message));
}

void Report::add_edit_at(Finding& finding, const Location& location, std::string_view line, int line_column, std::string_view what, std::string text) {
  const size_t at = line.find(what);
  if (at == line.npos || line.find(what, at + 1) != line.npos) return;
  // The part of the line that is edited is plain where variables are set.
  for (const char c : line.substr(0, at + what.size())) {
    if (static_cast<uint8_t>(c) >= 0x80) return;
  }
  const int column = static_cast<int>(at) + line_column, end = column + static_cast<int>(what.size());
  finding.edits.push_back({{location.path, location.line, column, location.line, end, column, end}, std::move(text)});
}

void Report::note(std::string key, std::string value, Span span) {
  notes_.push_back(locate(*unit_, span, Note{std::string(rule_.id), std::move(key), std::move(value)}));
}

}  // namespace pointsman::audit
