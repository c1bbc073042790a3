// SPDX-License-Identifier: Apache-2.0
//
// SARIF 2.1.0 (OASIS). Columns count UTF-16 units; paths are relative to SRCROOT; fingerprints are our own, because a service that
// gets the file through its programming interface does not make any.
#include <algorithm>
#include <map>

#include "audit/report/report.h"

namespace pointsman::audit {
namespace {

constexpr size_t kMaxResults = 25'000;  // what code-scanning services accept in a run

const char* level(Severity s) {
  switch (s) {
    case Severity::kBlocks:
    case Severity::kWrongNumbers: return "error";
    case Severity::kPerformance:
    case Severity::kVersion: return "warning";
    case Severity::kInfo: return "note";
  }
  return "none";
}

Json text_object(std::string_view text) {
  Json j = Json::object();
  j.set("text", text);
  return j;
}

Json rule_json(const Rule& r) {
  Json j = Json::object();
  j.set("id", r.id);
  j.set("name", r.name);
  j.set("shortDescription", text_object(r.title));
  j.set("fullDescription", text_object(r.why));
  Json help = text_object(std::string(r.why) + "\n\nFix: " + std::string(r.fix));
  help.set("markdown", std::string(r.why) + "\n\n**Fix.** " + std::string(r.fix) + "\n\n*Versions: " + std::string(r.versions) + ". Source: " + std::string(r.source) + ".*");
  j.set("help", std::move(help));
  Json configuration = Json::object();
  configuration.set("level", level(r.severity));
  j.set("defaultConfiguration", std::move(configuration));
  Json properties = Json::object();
  properties.set("tags", Json(Json::Array{Json("porting"), Json("ascend"), Json(severity_name(r.severity))}));
  const std::string_view l = level(r.severity);
  properties.set("problem.severity", l == "note" ? "recommendation" : l);
  properties.set("precision", "high");
  j.set("properties", std::move(properties));
  return j;
}

// RFC 3986: everything but unreserved characters and '/' is escaped.
std::string uri(std::string_view path) {
  std::string out;
  for (const char c : path) {
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '.' || c == '_' || c == '~' || c == '/') {
      out += c;
    } else {
      constexpr const char* kHex = "0123456789ABCDEF";
      out += '%';
      out += kHex[static_cast<uint8_t>(c) >> 4];
      out += kHex[static_cast<uint8_t>(c) & 15];
    }
  }
  return out;
}

Json artifact(std::string_view path) {
  Json j = Json::object();
  j.set("uri", uri(path));
  j.set("uriBaseId", "SRCROOT");
  return j;
}

Json region(const Location& l, bool with_columns) {
  Json j = Json::object();
  j.set("startLine", std::max(1, l.line));
  if (with_columns && l.utf16_column > 0) j.set("startColumn", l.utf16_column);
  j.set("endLine", std::max(l.line, l.end_line));
  if (with_columns && l.utf16_column > 0 && (l.end_line > l.line || l.utf16_end_column >= l.utf16_column)) j.set("endColumn", l.utf16_end_column);
  return j;
}

Json physical(const Location& l, bool with_columns) {
  Json place = Json::object();
  place.set("artifactLocation", artifact(l.path));
  place.set("region", region(l, with_columns));
  return place;
}

Json location_json(const Location& l, bool with_columns) {
  Json j = Json::object();
  j.set("physicalLocation", physical(l, with_columns));
  return j;
}

Json fix_json(const Finding& f) {
  // One artifact change per file, in order of appearance.
  std::vector<std::pair<std::string_view, Json>> files;
  for (const Edit& e : f.edits) {
    Json replacement = Json::object();
    replacement.set("deletedRegion", region(e.location, true));
    replacement.set("insertedContent", text_object(e.text));
    auto it = std::find_if(files.begin(), files.end(), [&](const auto& p) { return p.first == e.location.path; });
    if (it == files.end()) it = files.insert(files.end(), {e.location.path, Json::array()});
    it->second.push_back(std::move(replacement));
  }
  Json changes = Json::array();
  for (auto& [path, replacements] : files) {
    Json change = Json::object();
    change.set("artifactLocation", artifact(path));
    change.set("replacements", std::move(replacements));
    changes.push_back(std::move(change));
  }
  Json j = Json::object();
  j.set("description", text_object("use the name of the NPU"));
  j.set("artifactChanges", std::move(changes));
  return j;
}

Json result_json(const Finding& f, size_t rule_index) {
  Json j = Json::object();
  j.set("ruleId", f.rule);
  j.set("ruleIndex", static_cast<uint64_t>(rule_index));
  j.set("level", level(f.severity));
  const Rule* rule = find_rule(f.rule);
  const std::string_view fix = f.fix.empty() && rule ? rule->fix : std::string_view(f.fix);
  j.set("message", text_object(f.message + (f.label.empty() ? "" : " (" + f.label + ")") + (fix.empty() ? "" : ". Fix: " + std::string(fix))));
  // Lines of a notebook are those of its JSON; the columns are the cell's.
  const bool with_columns = f.label.rfind("cell ", 0) != 0;
  j.set("locations", Json(Json::Array{location_json(f.location, with_columns)}));
  if (!f.related.empty()) {
    Json list = Json::array();
    int id = 0;
    for (const Related& r : f.related) {
      Json l = location_json(r.location, with_columns);
      l.set("id", id++);
      l.set("message", text_object(r.message));
      list.push_back(std::move(l));
    }
    j.set("relatedLocations", std::move(list));
  }
  Json fingerprints = Json::object();
  fingerprints.set("primaryLocationLineHash", f.fingerprint + ":1");
  j.set("partialFingerprints", std::move(fingerprints));
  if (!f.edits.empty() && with_columns) j.set("fixes", Json(Json::Array{fix_json(f)}));
  if (f.suppressed) {
    Json s = Json::object();
    s.set("kind", "inSource");
    if (!f.justification.empty()) s.set("justification", f.justification);
    j.set("suppressions", Json(Json::Array{std::move(s)}));
  }
  if (f.baselined) j.set("baselineState", "unchanged");
  Json properties = Json::object();
  properties.set("severity", severity_name(f.severity));
  properties.set("confidence", confidence_name(f.confidence));
  j.set("properties", std::move(properties));
  return j;
}

}  // namespace

Json sarif_report(const AuditResult& result, std::string_view version) {
  std::map<std::string_view, size_t> index;
  Json rules = Json::array();
  for (const Rule* r : all_rules()) {
    index[r->id] = index.size();
    rules.push_back(rule_json(*r));
  }
  Json driver = Json::object();
  driver.set("name", "pointsman audit");
  driver.set("semanticVersion", version);
  driver.set("rules", std::move(rules));
  Json tool = Json::object();
  tool.set("driver", std::move(driver));

  // The worst ones when there are too many.
  std::vector<const Finding*> chosen;
  for (const Finding& f : result.findings) chosen.push_back(&f);
  const bool cut = chosen.size() > kMaxResults;
  if (cut) {
    std::stable_sort(chosen.begin(), chosen.end(), [](const Finding* a, const Finding* b) { return a->severity > b->severity; });
    chosen.resize(kMaxResults);
    std::stable_sort(chosen.begin(), chosen.end(), [](const Finding* a, const Finding* b) { return finding_before(*a, *b); });
  }
  Json results = Json::array();
  for (const Finding* f : chosen) results.push_back(result_json(*f, index[f->rule]));

  Json invocation = Json::object();
  invocation.set("executionSuccessful", true);
  Json notes = Json::array();
  const auto note = [&](const char* note_level, const std::string& text) {
    Json n = Json::object();
    n.set("level", note_level);
    n.set("message", text_object(text));
    notes.push_back(std::move(n));
  };
  if (cut) note("warning", "only the " + std::to_string(kMaxResults) + " worst of " + std::to_string(result.findings.size()) + " findings are listed");
  size_t listed = 0;
  for (const SkippedPath& p : result.skipped) {
    if (++listed > 100) break;
    note("note", "not read: " + p.path + ": " + p.reason);
  }
  if (!notes.as_array().empty()) invocation.set("toolExecutionNotifications", std::move(notes));

  Json base = Json::object(), root = Json::object();
  root.set("description", text_object("the folder that was audited"));
  base.set("SRCROOT", std::move(root));
  Json run = Json::object();
  run.set("tool", std::move(tool));
  run.set("invocations", Json(Json::Array{std::move(invocation)}));
  run.set("originalUriBaseIds", std::move(base));
  run.set("columnKind", "utf16CodeUnits");
  run.set("results", std::move(results));
  Json log = Json::object();
  log.set("$schema", "https://json.schemastore.org/sarif-2.1.0.json");
  log.set("version", "2.1.0");
  log.set("runs", Json(Json::Array{std::move(run)}));
  return log;
}

}  // namespace pointsman::audit
