// SPDX-License-Identifier: Apache-2.0
#include "audit/baseline.h"

#include <set>

#include "base/json.h"
#include "base/log.h"

namespace pointsman::audit {

std::string baseline_text(const AuditResult& result) {
  Json list = Json::array();
  for (const Finding& f : result.findings) {
    if (f.suppressed) continue;
    Json j = Json::object();
    j.set("fingerprint", f.fingerprint);
    j.set("rule", f.rule);
    j.set("path", f.location.path);
    list.push_back(std::move(j));
  }
  Json file = Json::object();
  file.set("schema_version", 1);
  file.set("findings", std::move(list));
  return file.dump(2) + "\n";
}

Result<size_t> apply_baseline(std::string_view text, AuditResult& result) {
  PM_ASSIGN_OR_RETURN(const Json file, parse_json(text));
  const Json* version = file.find("schema_version");
  const Json* list = file.find("findings");
  if (!version || !version->is_int() || !list || !list->is_array())
    return error(StatusCode::kCorrupt, "no baseline: expected an object with 'schema_version' and a list 'findings'; write one with --write-baseline");
  if (version->as_int() != 1) return error(StatusCode::kUnsupported, "baseline of schema {}, this program reads schema 1; write a new one with --write-baseline", version->as_int());
  std::set<std::string, std::less<>> known;
  for (const Json& j : list->as_array()) {
    const Json* fingerprint = j.find("fingerprint");
    if (!fingerprint || !fingerprint->is_string()) return error(StatusCode::kCorrupt, "an entry of the baseline has no 'fingerprint'");
    known.insert(fingerprint->as_string());
  }
  std::set<std::string_view> met;
  for (size_t& n : result.summary.by_severity) n = 0;
  result.summary.baselined = 0;
  for (Finding& f : result.findings) {
    f.baselined = !f.suppressed && known.find(f.fingerprint) != known.end();
    if (f.baselined) {
      met.insert(f.fingerprint);
      ++result.summary.baselined;
    }
    if (!f.suppressed && !f.baselined) ++result.summary.by_severity[static_cast<size_t>(f.severity)];
  }
  return known.size() - met.size();
}

}  // namespace pointsman::audit
