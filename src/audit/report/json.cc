// SPDX-License-Identifier: Apache-2.0
#include "audit/report/report.h"
#include "audit/verdict.h"

namespace pointsman::audit {
namespace {

Json location_json(const Location& l) {
  Json j = Json::object();
  j.set("path", l.path);
  j.set("line", l.line);
  j.set("column", l.column);
  j.set("end_line", l.end_line);
  j.set("end_column", l.end_column);
  return j;
}

Json finding_json(const Finding& f) {
  const Rule* rule = find_rule(f.rule);
  Json j = Json::object();
  j.set("rule", f.rule);
  j.set("severity", severity_name(f.severity));
  j.set("confidence", confidence_name(f.confidence));
  j.set("location", location_json(f.location));
  if (!f.label.empty()) j.set("label", f.label);
  j.set("message", f.message);
  j.set("fix", f.fix.empty() && rule ? std::string(rule->fix) : f.fix);
  Json related = Json::array();
  for (const Related& r : f.related) {
    Json x = location_json(r.location);
    x.set("message", r.message);
    related.push_back(std::move(x));
  }
  j.set("related", std::move(related));
  Json edits = Json::array();
  for (const Edit& e : f.edits) {
    Json x = location_json(e.location);
    x.set("text", e.text);
    edits.push_back(std::move(x));
  }
  j.set("edits", std::move(edits));
  j.set("excerpt", f.excerpt);
  j.set("fingerprint", f.fingerprint);
  j.set("suppressed", f.suppressed);
  if (f.suppressed) j.set("justification", f.justification);
  j.set("baselined", f.baselined);
  return j;
}

Json verdict_json(const AuditResult& result) {
  const Verdict v = make_verdict(result.findings, result.api, result.signs);
  Json j = Json::object();
  j.set("uses", static_cast<uint64_t>(v.uses));
  j.set("direct", static_cast<uint64_t>(v.direct));
  j.set("direct_percent", direct_percent(v));
  Json places = Json::object();
  for (size_t i = 0; i < std::size(v.places); ++i) places.set(work_words(static_cast<Work>(i)), static_cast<uint64_t>(v.places[i]));
  j.set("places", std::move(places));
  Json classes = Json::array(), work = Json::array();
  for (const ClassVerdict& c : v.classes) {
    Json x = Json::object();
    x.set("class", model_class_words(c.model_class));
    x.set("signs", static_cast<uint64_t>(c.signs));
    x.set("findings", static_cast<uint64_t>(c.findings));
    x.set("text", c.text);
    classes.push_back(std::move(x));
  }
  for (const WorkItem& w : v.work) {
    Json x = Json::object();
    x.set("work", work_words(w.work));
    x.set("rule", w.rule);
    x.set("severity", severity_name(w.severity));
    x.set("findings", static_cast<uint64_t>(w.findings));
    x.set("files", static_cast<uint64_t>(w.files));
    x.set("first", location_json(w.first));
    x.set("fix", w.fix);
    work.push_back(std::move(x));
  }
  j.set("classes", std::move(classes));
  j.set("work", std::move(work));
  const ApiUse& a = result.api;
  Json api = Json::object();
  for (const auto& [name, n] : {std::pair("torch", a.torch), std::pair("torch_cuda", a.torch_cuda), std::pair("torch_distributed", a.torch_distributed), std::pair("torch_npu", a.torch_npu),
                                std::pair("extensions", a.extensions), std::pair("cuda_runtime", a.cuda_runtime), std::pair("cuda_libraries", a.cuda_libraries), std::pair("kernels", a.kernels),
                                std::pair("launches", a.launches)})
    api.set(name, static_cast<uint64_t>(n));
  j.set("api_uses", std::move(api));
  return j;
}

Json rule_json(const Rule& r) {
  Json j = Json::object();
  j.set("id", r.id);
  j.set("name", r.name);
  j.set("title", r.title);
  j.set("severity", severity_name(r.severity));
  j.set("why", r.why);
  j.set("fix", r.fix);
  j.set("versions", r.versions);
  j.set("source", r.source);
  return j;
}

}  // namespace

Json json_report(const AuditResult& result) {
  Json j = Json::object();
  j.set("schema_version", 1);
  j.set("root", result.root);
  j.set("soc", soc_name(result.options.soc));
  j.set("data", result.data_generated);
  const AuditSummary& s = result.summary;
  Json summary = Json::object();
  summary.set("files", static_cast<uint64_t>(s.files));
  summary.set("bytes", s.bytes);
  summary.set("lines", s.lines);
  Json kinds = Json::object();
  for (size_t i = 1; i < std::size(s.files_by_kind); ++i) {
    if (s.files_by_kind[i] > 0) kinds.set(file_kind_name(static_cast<FileKind>(i)), static_cast<uint64_t>(s.files_by_kind[i]));
  }
  summary.set("files_by_kind", std::move(kinds));
  Json severities = Json::object();
  for (size_t i = std::size(s.by_severity); i-- > 0;) severities.set(severity_name(static_cast<Severity>(i)), static_cast<uint64_t>(s.by_severity[i]));
  summary.set("by_severity", std::move(severities));
  summary.set("baselined", static_cast<uint64_t>(s.baselined));
  summary.set("suppressed", static_cast<uint64_t>(s.suppressed));
  summary.set("not_listed", static_cast<uint64_t>(s.dropped));
  j.set("summary", std::move(summary));
  Json findings = Json::array(), rules = Json::array(), skipped = Json::array(), unused = Json::array();
  for (const Finding& f : result.findings) findings.push_back(finding_json(f));
  for (const Rule* r : all_rules()) {
    for (const Finding& f : result.findings) {
      if (f.rule != r->id) continue;
      rules.push_back(rule_json(*r));
      break;
    }
  }
  for (const SkippedPath& p : result.skipped) {
    Json x = Json::object();
    x.set("path", p.path);
    x.set("reason", p.reason);
    skipped.push_back(std::move(x));
  }
  for (const auto& u : result.unused_suppressions) unused.push_back(location_json(u.location));
  j.set("verdict", verdict_json(result));
  j.set("findings", std::move(findings));
  j.set("rules", std::move(rules));
  j.set("skipped", std::move(skipped));
  j.set("unused_suppressions", std::move(unused));
  return j;
}

}  // namespace pointsman::audit
