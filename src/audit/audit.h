// SPDX-License-Identifier: Apache-2.0
//
// Runs the rules over a tree. Nothing that is read is executed or imported; files are read one by one on several threads, and the
// result does not depend on their number or timing.
#pragma once

#include <string>
#include <vector>

#include "audit/rule.h"
#include "audit/walk.h"

namespace pointsman::audit {

struct AuditOptions {
  Soc soc = Soc::kUnknown;
  std::string data_directory;                 // empty: the built-in data
  Confidence min_confidence = Confidence::kHint;
  std::vector<std::string> rules;             // only these; empty: all
  std::vector<std::string> disabled;
  WalkOptions walk;
  int num_threads = 0;                        // 0: one per usable CPU
  size_t max_findings_per_file_and_rule = 500;
};

struct AuditSummary {
  size_t files = 0;
  uint64_t bytes = 0;
  uint64_t lines = 0;
  size_t files_by_kind[12] = {};  // by FileKind
  size_t suppressed = 0;
  size_t baselined = 0;           // known from the baseline file
  size_t dropped = 0;             // beyond max_findings_per_file_and_rule
  size_t by_severity[5] = {};     // not suppressed, not in the baseline
};

struct AuditResult {
  std::string root;
  AuditOptions options;
  std::string data_generated;           // the date of the data
  std::vector<Finding> findings;        // by path, line, column, rule; suppressed ones included and marked
  std::vector<SkippedPath> skipped;
  std::vector<Located<std::string>> unused_suppressions;
  AuditSummary summary;
  ApiUse api;
  ModelSigns signs;
};

// kNotFound, kIo: the root; kInvalidArgument: an unknown rule; kCorrupt, kUnsupported: the data directory.
Result<AuditResult> audit(FileSystem& fs, const std::string& root, const AuditOptions& options);

// Is there a finding at or above the threshold that is neither suppressed nor in the baseline?
bool reaches(const AuditResult& result, Severity threshold);

}  // namespace pointsman::audit
