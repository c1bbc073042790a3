// SPDX-License-Identifier: Apache-2.0
//
// An AuditResult as text for people and as documents for machines. Pure functions: the same result gives the same bytes.
#pragma once

#include <string>
#include <string_view>

#include "audit/audit.h"
#include "base/json.h"

namespace pointsman::audit {

struct TextOptions {
  bool colour = false;
  bool show_suppressed = false;
};

// Grouped by file: the line with a caret under the place, what happens, what to write instead; then a summary.
std::string text_report(const AuditResult& result, const TextOptions& options = {});

// {"schema_version": 1, "findings": [...], "summary": {...}, ...}; docs/formats/audit_json.md.
Json json_report(const AuditResult& result);

// SARIF 2.1.0. `version` is the program's.
Json sarif_report(const AuditResult& result, std::string_view version);
// One self-contained page: verdict, work list, findings.
std::string html_report(const AuditResult& result, std::string_view version);
// JUnit XML: findings at or above `threshold` are failures, others skipped.
std::string junit_report(const AuditResult& result, Severity threshold);

// What --explain prints.
std::string explain(const Rule& rule);
// What --list-rules prints: id, severity, title.
std::string list_rules();

// "blocks", "wrong numbers", ...: for people.
const char* severity_words(Severity severity);

}  // namespace pointsman::audit
