// SPDX-License-Identifier: Apache-2.0
//
// Runs every rule over the fixtures and compares the findings with what the fixtures expect, line by line. Prints what differs, and
// precision and recall per rule. Usage: audit_score FIXTURES [--rule ID]. Exit 1 when anything differs.
//
// FIXTURES/<ID>/ holds files and folders named pos_* and neg_*; each is scanned on its own. audit/rule.h describes the marks.
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "audit/audit.h"
#include "base/fs.h"
#include "base/log.h"

namespace pm = pointsman;
namespace au = pointsman::audit;

namespace {

// (file below the fixture, line, rule)
using Mark = std::tuple<std::string, int, std::string>;

struct Score {
  int expected = 0, found = 0, right = 0, positives = 0, negatives = 0;
};

std::string_view trim(std::string_view s) {
  while (!s.empty() && (s.front() == ' ' || s.front() == '\t')) s.remove_prefix(1);
  while (!s.empty() && (s.back() == ' ' || s.back() == '\t')) s.remove_suffix(1);
  return s;
}

// The rule ids after "expect:": letters and digits, separated by commas; anything else ends the list.
void add_marks(std::string_view list, const std::string& file, int line, std::multiset<Mark>& out) {
  while (true) {
    list = trim(list);
    size_t n = 0;
    while (n < list.size() && ((list[n] >= '0' && list[n] <= '9') || (n == 0 && list[n] >= 'A' && list[n] <= 'Z'))) ++n;
    if (n < 2) return;
    const au::Rule* rule = au::find_rule(list.substr(0, n));
    if (rule == nullptr) std::printf("%s:%d: the mark names a rule that does not exist: %.*s\n", file.c_str(), line, static_cast<int>(n), list.data());
    out.insert({file, line, rule ? std::string(rule->id) : std::string(list.substr(0, n))});
    list = trim(list.substr(n));
    if (!list.starts_with(",")) return;
    list.remove_prefix(1);
  }
}

void read_marks(const std::string& file, std::string_view text, std::multiset<Mark>& out, au::AuditOptions& options) {
  int line = 0;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view s = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    ++line;
    if (const size_t at = s.find("expect: "); at != s.npos) add_marks(s.substr(at + 8), file, line, out);
    if (const size_t at = s.find("expect-next: "); at != s.npos) add_marks(s.substr(at + 13), file, line + 1, out);
    if (const size_t at = s.find("options: soc="); at != s.npos) {
      std::string_view name = s.substr(at + 13);
      size_t n = 0;
      while (n < name.size() && ((name[n] >= '0' && name[n] <= '9') || (name[n] >= 'a' && name[n] <= 'z'))) ++n;
      if (const auto soc = au::parse_soc(name.substr(0, n))) options.soc = *soc;
    }
  }
}

// Files of a fixture: itself, or all below it.
void collect(pm::FileSystem& fs, const std::string& full, const std::string& relative, std::vector<std::pair<std::string, std::string>>& out) {
  const auto info = fs.stat(full);
  if (info.ok() && info->is_regular) {
    out.push_back({relative, full});
    return;
  }
  const auto names = fs.list(full);
  if (!names.ok()) return;
  for (const std::string& n : *names) collect(fs, pm::join_path(full, n), relative.empty() ? n : relative + "/" + n, out);
}

bool check(pm::FileSystem& fs, const std::string& path, const std::string& name, bool of_summary_rule, std::map<std::string, Score>& scores) {
  au::AuditOptions options;
  options.num_threads = 1;
  std::multiset<Mark> expected, found;
  std::vector<std::pair<std::string, std::string>> files;
  const auto info = fs.stat(path);
  const bool single = info.ok() && info->is_regular;
  collect(fs, path, single ? name : "", files);
  for (const auto& [relative, full] : files) {
    const auto text = pm::read_text_file(fs, full, 1 << 22);
    if (text.ok()) read_marks(relative, au::decode(*text).text, expected, options);
  }
  const auto result = au::audit(fs, path, options);
  if (!result.ok()) {
    std::printf("%s: %s\n", path.c_str(), result.status().to_string().c_str());
    return false;
  }
  for (const au::Finding& f : result->findings) {
    // The summary rules T1-T4 speak of any model; only their own fixtures ask for them.
    if (f.rule.starts_with("T") && !of_summary_rule) continue;
    if (!f.suppressed) found.insert({f.location.path, f.location.line, f.rule});
  }
  // Several findings of one rule on one line are one mark.
  const std::set<Mark> wanted(expected.begin(), expected.end()), got(found.begin(), found.end());
  bool same = true;
  for (const Mark& m : wanted) {
    Score& s = scores[std::get<2>(m)];
    ++s.expected;
    s.right += static_cast<int>(got.count(m));
    if (got.count(m) == 0) {
      std::printf("%s (%s:%d): expected %s, not found\n", path.c_str(), std::get<0>(m).c_str(), std::get<1>(m), std::get<2>(m).c_str());
      same = false;
    }
  }
  for (const Mark& m : got) {
    ++scores[std::get<2>(m)].found;
    if (wanted.count(m) != 0) continue;
    same = false;
    for (const au::Finding& f : result->findings) {
      if (Mark{f.location.path, f.location.line, f.rule} != m || f.suppressed) continue;
      std::printf("%s (%s:%d): found %s, not expected: %s\n", path.c_str(), f.location.path.c_str(), f.location.line, f.rule.c_str(), f.message.c_str());
      break;
    }
  }
  return same;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2 && !(argc == 4 && std::string_view(argv[2]) == "--rule")) {
    std::fprintf(stderr, "usage: audit_score FIXTURES [--rule ID]\n");
    return 2;
  }
  pm::FileSystem& fs = pm::FileSystem::real();
  const std::string root = argv[1];
  const auto folders = fs.list(root);
  if (!folders.ok()) {
    std::fprintf(stderr, "audit_score: %s\n", folders.status().to_string().c_str());
    return 2;
  }
  std::map<std::string, Score> scores;
  bool same = true;
  int fixtures = 0;
  for (const std::string& folder : *folders) {
    const au::Rule* rule = au::find_rule(folder);
    if (rule == nullptr) {
      std::printf("%s: no rule has this id\n", folder.c_str());
      same = false;
      continue;
    }
    if (argc == 4 && rule != au::find_rule(argv[3])) continue;
    const auto names = fs.list(pm::join_path(root, folder));
    if (!names.ok()) continue;
    for (const std::string& n : *names) {
      const bool positive = n.starts_with("pos_");
      if (!positive && !n.starts_with("neg_")) continue;
      ++fixtures;
      ++(positive ? scores[std::string(rule->id)].positives : scores[std::string(rule->id)].negatives);
      same &= check(fs, pm::join_path(pm::join_path(root, folder), n), n, rule->id.starts_with("T"), scores);
    }
  }
  std::printf("\n%-5s %9s %9s %9s %9s %10s %8s\n", "rule", "pos files", "neg files", "expected", "found", "precision", "recall");
  for (const au::Rule* r : au::all_rules()) {
    const Score& s = scores[std::string(r->id)];
    if (s.positives + s.negatives + s.expected + s.found == 0) {
      std::printf("%-5.*s no fixtures\n", static_cast<int>(r->id.size()), r->id.data());
      continue;
    }
    std::printf("%-5.*s %9d %9d %9d %9d %9.1f%% %7.1f%%\n", static_cast<int>(r->id.size()), r->id.data(), s.positives, s.negatives, s.expected, s.found,
                s.found ? 100.0 * s.right / s.found : 100.0, s.expected ? 100.0 * s.right / s.expected : 100.0);
    // Fewer than three of each is too little to trust the figures.
    if (argc == 2 && (s.positives < 3 || s.negatives < 3)) {
      std::printf("      fewer than 3 positive and 3 negative fixtures\n");
      same = false;
    }
  }
  std::printf("%d fixtures, %s\n", fixtures, same ? "all as expected" : "NOT as expected");
  return same ? 0 : 1;
}
