// SPDX-License-Identifier: Apache-2.0
#include "audit/finding.h"

#include <iterator>
#include <map>
#include <span>
#include <tuple>

#include "base/hash.h"
#include "base/log.h"

namespace pointsman::audit {
namespace {
constexpr const char* kSeverityNames[] = {"info", "version", "performance", "wrong_numbers", "blocks"};
constexpr const char* kConfidenceNames[] = {"hint", "likely", "certain"};
}  // namespace

const char* severity_name(Severity severity) { return kSeverityNames[static_cast<size_t>(severity)]; }
const char* confidence_name(Confidence confidence) { return kConfidenceNames[static_cast<size_t>(confidence)]; }

std::optional<Severity> parse_severity(std::string_view name) {
  for (size_t i = 0; i < std::size(kSeverityNames); ++i) {
    if (name == kSeverityNames[i]) return static_cast<Severity>(i);
  }
  return std::nullopt;
}

std::optional<Confidence> parse_confidence(std::string_view name) {
  for (size_t i = 0; i < std::size(kConfidenceNames); ++i) {
    if (name == kConfidenceNames[i]) return static_cast<Confidence>(i);
  }
  return std::nullopt;
}

bool finding_before(const Finding& a, const Finding& b) {
  return std::tie(a.location.path, a.location.line, a.location.column, a.rule, a.message) <
         std::tie(b.location.path, b.location.line, b.location.column, b.rule, b.message);
}

void fingerprint_findings(std::vector<Finding>& findings) {
  std::map<std::string, int> seen;
  for (Finding& f : findings) {
    std::string key = f.rule + '\0' + f.location.path + '\0';
    for (const char c : f.excerpt) {
      if (c != ' ' && c != '\t') key += c;
    }
    const int n = seen[key]++;
    key += '\0';
    key += std::to_string(n);
    Xxh3 hash;
    hash.update(std::as_bytes(std::span(key)));
    const Xxh3Digest digest = hash.finish();
    f.fingerprint = format("{:016x}", digest.low ^ digest.high);
  }
}

}  // namespace pointsman::audit
