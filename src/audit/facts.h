// SPDX-License-Identifier: Apache-2.0
//
// What the rules know about CANN: names of torch_npu, operators and their SoCs, versions that go together. Three JSON files
// (data/audit/), each with "schema": 1 and "generated": a date; built into the program, replaceable with --data DIR.
//
// Immutable once loaded: any number of threads may read.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/fs.h"
#include "base/json.h"

namespace pointsman::audit {

// The target of the audit, when it is known.
enum class Soc : uint8_t { kUnknown, kA2, kA3, k950Pr, k950Dt };
const char* soc_name(Soc soc);  // "a2", "a3", "950pr", "950dt", "unknown"
std::optional<Soc> parse_soc(std::string_view name);

// -1, 0, 1. Understands 8.0.RC1 < 8.0.RC3 < 8.0.0, 2.1.0 < 2.1.0.post17, 2.3.1+cpu = 2.3.1; a missing part counts as 0.
int compare_versions(std::string_view a, std::string_view b);

struct VersionRow {
  std::string torch_npu, torch, cann;
};

struct Operator {
  std::string name;  // "aclnnRmsNorm"
  // Per family "A2", "A3", "950": supported, not, or (absent or null) unknown.
  std::map<std::string, bool, std::less<>> soc;
};

class Facts {
 public:
  // The data built into the program.
  static const Facts& embedded();
  // Files of `directory` replace the built-in ones of the same name; at least one must be there. kCorrupt, kUnsupported: not what
  // this program reads (the message says which file, found and expected).
  static Result<Facts> load(FileSystem& fs, const std::string& directory);

  // Names under torch_npu. and torch.ops.npu. ("npu_rms_norm"), and under torch.npu. ("Stream").
  bool is_operator_name(std::string_view name) const { return std::binary_search(operator_names_.begin(), operator_names_.end(), name, std::less<>()); }
  bool is_npu_module_name(std::string_view name) const { return std::binary_search(module_names_.begin(), module_names_.end(), name, std::less<>()); }
  const std::vector<std::string>& operator_names() const { return operator_names_; }  // sorted
  const std::vector<std::string>& module_names() const { return module_names_; }      // sorted
  // Of a deprecated operator: what to use instead; else empty.
  std::string_view deprecated(std::string_view name) const;

  // "aclnnRmsNorm"; null when the list does not have it (which is no proof that there is none: the list is not complete).
  const Operator* find_operator(std::string_view name) const;
  const std::map<std::string, Operator, std::less<>>& operators() const { return operators_; }

  const std::vector<VersionRow>& versions() const { return versions_; }  // newest first, as the official table
  // Rows whose torch_npu is exactly `version` (local part dropped).
  std::vector<const VersionRow*> rows_of_torch_npu(std::string_view version) const;
  const VersionRow& recommended() const { return recommended_; }
  // The first CANN version for a SoC ("8.5.0" for 950PR), empty when unknown.
  std::string_view first_cann(Soc soc) const;

  // The files as they are, for what has no accessor.
  const Json& versions_json() const { return versions_json_; }
  const Json& names_json() const { return names_json_; }
  const Json& operators_json() const { return operators_json_; }
  const std::string& generated() const { return generated_; }  // the date of the versions file

 private:
  Status read(std::string_view file, std::string_view text);
  Json versions_json_, names_json_, operators_json_;
  std::vector<std::string> operator_names_, module_names_;
  std::map<std::string, std::string, std::less<>> deprecated_;
  std::map<std::string, Operator, std::less<>> operators_;
  std::vector<VersionRow> versions_;
  VersionRow recommended_;
  std::map<Soc, std::string> first_cann_;
  std::string generated_;
};

// Up to `count` of the sorted `names` that are nearest to `name`: by edit distance, shared words ("sparse", "memory") and prefix;
// none that is plainly something else.
std::vector<std::string> nearest_names(std::string_view name, const std::vector<std::string>& names, size_t count = 3);

}  // namespace pointsman::audit
