// SPDX-License-Identifier: Apache-2.0
//
// Known findings: a JSON file of fingerprints. What is in it is reported as known and does not decide the exit code, so that an
// audit can be switched on in a tree that has findings, and fail on new ones only.
#pragma once

#include <string>

#include "audit/audit.h"

namespace pointsman::audit {

// {"schema_version": 1, "findings": [{"fingerprint", "rule", "path"}, ...]}, in the order of the findings; silenced ones are left out.
std::string baseline_text(const AuditResult& result);

// Marks the findings that are in the file and recounts the summary; gives the number of entries that match nothing any more.
// kCorrupt, kUnsupported: not a baseline of this schema.
Result<size_t> apply_baseline(std::string_view text, AuditResult& result);

}  // namespace pointsman::audit
