// SPDX-License-Identifier: Apache-2.0
//
// What a rule reports: one place in one file, how bad it is, how sure we are, and what to write instead.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace pointsman::audit {

// Ordered: a threshold means "this or worse".
enum class Severity : uint8_t {
  kInfo,          // worth knowing
  kVersion,       // depends on the versions installed
  kPerformance,   // runs, slowly
  kWrongNumbers,  // runs, and computes something else
  kBlocks,        // fails or hangs
};

// Ordered likewise.
enum class Confidence : uint8_t {
  kHint,     // a pattern of text
  kLikely,   // distinctive names whose receiver is not resolved
  kCertain,  // an import that was resolved and the exact API, or an exact value of an exact key
};

// "blocks", "wrong_numbers", "performance", "version", "info"; "certain", "likely", "hint".
const char* severity_name(Severity severity);
const char* confidence_name(Confidence confidence);
std::optional<Severity> parse_severity(std::string_view name);
std::optional<Confidence> parse_confidence(std::string_view name);

// Lines and columns count from 1; columns are bytes of the decoded (UTF-8) line; the end column is one past the last byte.
struct Location {
  std::string path;  // relative to the root of the tree, '/' between folders
  int line = 0;
  int column = 0;
  int end_line = 0;
  int end_column = 0;
  int utf16_column = 0;  // the same columns counted as editors do; 0: not known
  int utf16_end_column = 0;
  friend bool operator==(const Location&, const Location&) = default;
};

struct Related {
  Location location;
  std::string message;
};

// A mechanical correction: replace the bytes at `location` by `text`.
struct Edit {
  Location location;
  std::string text;
};

struct Finding {
  std::string rule;  // "R16"
  Severity severity = Severity::kInfo;
  Confidence confidence = Confidence::kHint;
  Location location;
  std::string message;  // one sentence: what is there, and what happens on CANN
  std::string fix;      // what to write instead; empty: the rule's fix
  std::vector<Related> related;
  std::vector<Edit> edits;    // empty: not mechanical
  std::string excerpt;        // the line of the file, without its end; of a long line the part around the place
  int excerpt_column = 1;     // of the first byte of the excerpt
  std::string label;          // "cell 3" of a notebook, "code block" of a document, or empty
  std::string fingerprint;    // 16 hex digits; see fingerprint_findings()
  bool suppressed = false;    // by a comment
  std::string justification;  // of the suppression
  bool baselined = false;     // in the baseline file
};

// The order of every report: path, line, column, rule, message.
bool finding_before(const Finding& a, const Finding& b);

// Fingerprints survive edits elsewhere in the file: rule, path, the line without white space, and a counter among equal ones.
// REQUIRES: sorted by finding_before().
void fingerprint_findings(std::vector<Finding>& findings);

}  // namespace pointsman::audit
