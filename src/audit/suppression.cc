// SPDX-License-Identifier: Apache-2.0
#include "audit/suppression.h"

#include <algorithm>
#include <map>
#include <utility>

#include "audit/rule.h"

namespace pointsman::audit {
namespace {

constexpr std::string_view kMark = "pointsman: ignore";

std::string_view trim(std::string_view s) {
  while (!s.empty() && (s.front() == ' ' || s.front() == '\t')) s.remove_prefix(1);
  while (!s.empty() && (s.back() == ' ' || s.back() == '\t')) s.remove_suffix(1);
  return s;
}

}  // namespace

std::vector<Suppression> find_suppressions(const Unit& unit) {
  std::vector<Suppression> out;
  const std::string_view text = unit.text;
  for (size_t at = text.find(kMark); at != text.npos && out.size() < 10'000; at = text.find(kMark, at + 1)) {
    const size_t line = unit.line_index(static_cast<uint32_t>(at));
    const std::string_view s = unit.line_text(line);
    const size_t column = at - unit.line_starts[line];
    // A comment has to be open: #, //, /*, ;, <!-- in front of it.
    const std::string_view before = trim(s.substr(0, column));
    const auto opens = [&](std::string_view mark) { return before.ends_with(mark); };
    if (!opens("#") && !opens("//") && !opens("/*") && !opens(";") && !opens("<!--")) continue;
    std::string_view rest = s.substr(column + kMark.size());
    Suppression x;
    bool whole_file = false;
    if (rest.starts_with("-file")) {
      whole_file = true;
      rest.remove_prefix(5);
    }
    if (rest.starts_with("[")) {
      const size_t close = rest.find(']');
      if (close == rest.npos) continue;
      std::string_view list = rest.substr(1, close - 1);
      while (!list.empty()) {
        const size_t comma = std::min(list.find(','), list.size());
        const std::string_view id = trim(list.substr(0, comma));
        const Rule* rule = find_rule(id);
        if (!id.empty()) x.rules.push_back(rule ? std::string(rule->id) : std::string(id));
        list.remove_prefix(std::min(comma + 1, list.size()));
      }
      rest.remove_prefix(close + 1);
    }
    for (const std::string_view close : {"*/", "-->"}) {
      if (const size_t end = rest.find(close); end != rest.npos) rest = rest.substr(0, end);
    }
    x.justification = std::string(trim(rest));
    const auto begin = static_cast<uint32_t>(at);
    x.location = unit.location({begin, begin + static_cast<uint32_t>(kMark.size())});
    x.excerpt = unit.excerpt(begin).text;
    const bool alone = before == "#" || before == "//" || before == "/*" || before == ";" || before == "<!--";
    if (whole_file) {
      x.line = 0;
    } else if (!alone || line + 1 >= unit.line_starts.size()) {
      x.line = unit.file_line(line);
    } else {
      x.line = unit.file_line(line + 1);
    }
    out.push_back(std::move(x));
  }
  return out;
}

void apply(std::vector<Suppression>& suppressions, std::vector<Finding>& findings) {
  // By place; line 0 stands for the whole file.
  std::map<std::pair<std::string_view, int>, std::vector<Suppression*>> by_place;
  for (Suppression& s : suppressions) by_place[{s.location.path, s.line}].push_back(&s);
  for (Finding& f : findings) {
    for (const int line : {f.location.line, 0}) {
      const auto it = by_place.find({f.location.path, line});
      if (it == by_place.end() || f.suppressed) continue;
      for (Suppression* s : it->second) {
        if (!s->rules.empty() && std::find(s->rules.begin(), s->rules.end(), f.rule) == s->rules.end()) continue;
        f.suppressed = true;
        f.justification = s->justification;
        s->used = true;
        break;
      }
    }
  }
}

}  // namespace pointsman::audit
