// SPDX-License-Identifier: Apache-2.0
#include "audit/audit.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <thread>

#include "audit/suppression.h"
#include "base/log.h"
#include "base/thread.h"

namespace pointsman::audit {
namespace {

// What came of one file.
struct FileResult {
  std::vector<Finding> findings;
  Tree facts;
  std::vector<Suppression> suppressions;
  std::string failure;
  FileKind kind = FileKind::kUnknown;
  uint64_t bytes = 0, lines = 0;
  size_t dropped = 0;
};

class Audit {
 public:
  Audit(FileSystem& fs, const AuditOptions& options, const Facts& facts, std::vector<const Rule*> rules)
      : fs_(fs), options_(options), facts_(facts), rules_(std::move(rules)) {}

  void file(const WalkEntry& entry, FileResult& out) const {
    Result<std::string> bytes = read_text_file(fs_, entry.full_path, options_.walk.max_file_bytes);
    if (!bytes.ok()) {
      out.failure = bytes.status().message();
      return;
    }
    out.kind = entry.kind != FileKind::kUnknown ? entry.kind : kind_of_file(entry.path, *bytes);
    if (out.kind == FileKind::kUnknown) return;
    out.bytes = bytes->size();
    Decoded decoded = decode(*bytes);
    bytes = std::string();
    out.lines = static_cast<uint64_t>(std::count(decoded.text.begin(), decoded.text.end(), '\n')) + (!decoded.text.empty() && decoded.text.back() != '\n');
    if (out.kind == FileKind::kDocument) prose(entry.path, decoded, out);
    for (const Unit& u : split_units(entry.path, out.kind, std::move(decoded))) unit(u, out);
    std::stable_sort(out.findings.begin(), out.findings.end(), finding_before);
  }

  // Rules about the whole tree: the callback `part` (Rule::tree, Rule::verdict) of each.
  std::vector<Finding> tree(const Tree& tree, void (*Rule::*part)(const Tree&, Report&)) const {
    std::vector<Finding> findings;
    std::vector<Located<Note>> notes;
    for (const Rule* r : rules_) {
      if (r->*part == nullptr) continue;
      Report report(*r, facts_, options_.soc, nullptr, findings, notes);
      (r->*part)(tree, report);
    }
    return findings;
  }

 private:
  void prose(const std::string& path, const Decoded& decoded, FileResult& out) const {
    Unit u;
    u.path = path;
    u.kind = u.container = FileKind::kDocument;
    u.text = decoded.text;
    index_lines(u);
    for (const Rule* r : rules_) {
      if (r->prose) run(*r, u, out, [&](Report& report) { r->prose(u, report); });
    }
  }

  void unit(const Unit& u, FileResult& out) const {
    std::vector<Suppression> s = find_suppressions(u);
    std::move(s.begin(), s.end(), std::back_inserter(out.suppressions));
    if (u.kind == FileKind::kPython) {
      const auto module = python::parse(u);
      collect_facts(*module, out.facts);
      for (const Rule* r : rules_) {
        if (r->python) run(*r, u, out, [&](Report& report) { r->python(*module, report); });
      }
    } else if (u.kind == FileKind::kCpp) {
      const auto file = cpp::parse(u);
      collect_facts(*file, out.facts);
      for (const Rule* r : rules_) {
        if (r->cpp) run(*r, u, out, [&](Report& report) { r->cpp(*file, report); });
      }
    } else {
      const auto document = config::parse(u);
      collect_facts(*document, out.facts);
      for (const Rule* r : rules_) {
        if (r->config) run(*r, u, out, [&](Report& report) { r->config(*document, report); });
      }
    }
  }

  template <class F>
  void run(const Rule& rule, const Unit& u, FileResult& out, F callback) const {
    const size_t before = out.findings.size();
    Report report(rule, facts_, options_.soc, &u, out.findings, out.facts.notes);
    callback(report);
    const size_t most = before + options_.max_findings_per_file_and_rule;
    if (out.findings.size() > most) {
      out.dropped += out.findings.size() - most;
      out.findings.resize(most);
    }
  }

  FileSystem& fs_;
  const AuditOptions& options_;
  const Facts& facts_;
  const std::vector<const Rule*> rules_;
};

Result<std::vector<const Rule*>> select_rules(const AuditOptions& options) {
  std::vector<const Rule*> chosen, without;
  for (const auto& [ids, out] : {std::pair(&options.rules, &chosen), std::pair(&options.disabled, &without)}) {
    for (const std::string& id : *ids) {
      const Rule* r = find_rule(id);
      if (!r) return error(StatusCode::kInvalidArgument, "there is no rule '{}'; --list-rules has them all", id.substr(0, 40));
      out->push_back(r);
    }
  }
  std::vector<const Rule*> rules;
  for (const Rule* r : all_rules()) {
    const auto in = [&](const std::vector<const Rule*>& list) { return std::find(list.begin(), list.end(), r) != list.end(); };
    if ((chosen.empty() || in(chosen)) && !in(without)) rules.push_back(r);
  }
  return rules;
}

template <class T>
void move_to(std::vector<T>& from, std::vector<T>& to) {
  std::move(from.begin(), from.end(), std::back_inserter(to));
  from = {};
}

// Two units of one file (a document and its code block), or two callbacks of a rule, may see the same place: one finding of a rule
// per place, the surest.
void remove_duplicates(std::vector<Finding>& findings) {
  size_t kept = 0;
  for (size_t i = 0; i < findings.size(); ++i) {
    Finding& f = findings[i];
    Finding* last = kept > 0 ? &findings[kept - 1] : nullptr;
    if (last && last->rule == f.rule && last->location.path == f.location.path && last->location.line == f.location.line && last->location.column == f.location.column) {
      if (f.confidence > last->confidence) *last = std::move(f);
    } else {
      if (kept != i) findings[kept] = std::move(f);
      ++kept;
    }
  }
  findings.resize(kept);
}

}  // namespace

Result<AuditResult> audit(FileSystem& fs, const std::string& root, const AuditOptions& options) {
  PM_ASSIGN_OR_RETURN(std::vector<const Rule*> rules, select_rules(options));
  Facts loaded;
  if (!options.data_directory.empty()) {
    PM_ASSIGN_OR_RETURN(loaded, Facts::load(fs, options.data_directory));
  }
  const Facts& facts = options.data_directory.empty() ? Facts::embedded() : loaded;
  PM_ASSIGN_OR_RETURN(WalkResult walked, walk(fs, root, options.walk));

  AuditResult result;
  result.root = root;
  result.options = options;
  result.data_generated = facts.generated();
  result.skipped = std::move(walked.skipped);

  const Audit work(fs, options, facts, std::move(rules));
  std::vector<FileResult> files(walked.files.size());
  std::atomic<size_t> next{0};
  const auto worker = [&] {
    for (size_t i = next.fetch_add(1); i < files.size(); i = next.fetch_add(1)) work.file(walked.files[i], files[i]);
  };
  const int num_threads = std::min<int>(options.num_threads > 0 ? options.num_threads : usable_cpus(), 64);
  {
    // Not base/thread.h: parsers recurse, and its stacks are small.
    std::vector<std::jthread> threads;
    for (int i = 1; i < num_threads && static_cast<size_t>(i) < files.size(); ++i) threads.emplace_back(worker);
    worker();
  }

  Tree tree;
  std::vector<Suppression> suppressions;
  for (size_t i = 0; i < files.size(); ++i) {
    FileResult& f = files[i];
    if (!f.failure.empty()) result.skipped.push_back({walked.files[i].path, f.failure});
    if (f.kind == FileKind::kUnknown) continue;
    tree.files.push_back(walked.files[i].path);
    ++result.summary.files;
    ++result.summary.files_by_kind[static_cast<size_t>(f.kind)];
    result.summary.bytes += f.bytes;
    result.summary.lines += f.lines;
    result.summary.dropped += f.dropped;
    move_to(f.findings, tree.findings);
    move_to(f.facts.environment, tree.environment);
    move_to(f.facts.pins, tree.pins);
    move_to(f.facts.images, tree.images);
    move_to(f.facts.imports, tree.imports);
    move_to(f.facts.notes, tree.notes);
    move_to(f.suppressions, suppressions);
    tree.api += f.facts.api;
    tree.signs += f.facts.signs;
  }
  result.api = tree.api;
  result.signs = tree.signs;
  for (const auto part : {&Rule::tree, &Rule::verdict}) {
    std::vector<Finding> more = work.tree(tree, part);
    move_to(more, tree.findings);
    std::stable_sort(tree.findings.begin(), tree.findings.end(), finding_before);
    remove_duplicates(tree.findings);
    apply(suppressions, tree.findings);
  }
  result.findings = std::move(tree.findings);
  for (Suppression& s : suppressions) {
    if (!s.used) result.unused_suppressions.push_back({std::move(s.justification), s.location, std::move(s.excerpt), 1, "", FileKind::kUnknown});
  }
  std::erase_if(result.findings, [&](const Finding& f) { return f.confidence < options.min_confidence; });
  fingerprint_findings(result.findings);
  for (const Finding& f : result.findings) {
    result.summary.suppressed += f.suppressed;
    if (!f.suppressed) ++result.summary.by_severity[static_cast<size_t>(f.severity)];
  }
  std::sort(result.skipped.begin(), result.skipped.end(), [](const SkippedPath& a, const SkippedPath& b) { return a.path < b.path; });
  return result;
}

bool reaches(const AuditResult& result, Severity threshold) {
  return std::any_of(result.findings.begin(), result.findings.end(), [&](const Finding& f) { return !f.suppressed && !f.baselined && f.severity >= threshold; });
}

}  // namespace pointsman::audit
