// SPDX-License-Identifier: Apache-2.0
//
// Formats of one thing per line: INI and .env, requirements lists, Dockerfiles.
#include <algorithm>

#include "audit/config/scan.h"

namespace pointsman::audit::config {
namespace {

std::string unquote(std::string_view s) {
  if (s.size() >= 2 && (s.front() == '"' || s.front() == '\'') && s.back() == s.front()) s = s.substr(1, s.size() - 2);
  return std::string(s);
}

// Calls fn(line) for each line of the unit, without its end.
template <class F>
void each_line(const Document& d, F fn) {
  for (size_t i = 0; i < d.unit->line_starts.size(); ++i) fn(d.unit->line_text(i));
}

}  // namespace

void scan_ini(Document& d) {
  std::string section, key;
  Span key_span;
  each_line(d, [&](std::string_view line) {
    const std::string_view s = trim(line);
    if (s.empty() || s[0] == '#' || s[0] == ';') return;
    const bool indented = is_blank(line[0]);
    if (s[0] == '[' && !indented) {
      section = std::string(trim(s.substr(1, s.find(']') == s.npos ? s.npos : s.find(']') - 1)));
      key.clear();
      return;
    }
    if (indented && !key.empty()) {  // one more line of the value before
      add(d, child_path(section, key), key, std::string(s), key_span, span_of(d, s));
      return;
    }
    std::string_view rest = s;
    if (rest.starts_with("export ")) rest = trim(rest.substr(7));
    const size_t equals = rest.find_first_of("=:");
    if (equals == rest.npos) return;
    const std::string_view name = trim(rest.substr(0, equals));
    std::string_view value = trim(rest.substr(equals + 1));
    key = std::string(name);
    key_span = span_of(d, name);
    if (value.empty()) return;
    // Comments after a value need white space in front.
    for (size_t i = 1; i < value.size(); ++i) {
      if ((value[i] == '#' || value[i] == ';') && is_blank(value[i - 1]) && value.front() != '"' && value.front() != '\'') {
        value = trim(value.substr(0, i));
        break;
      }
    }
    add(d, child_path(section, key), key, unquote(value), key_span, span_of(d, value));
  });
}

void scan_requirements(Document& d) {
  // Lines that end in '\' go on; their comments and hashes belong to the first.
  size_t n = d.unit->line_starts.size();
  for (size_t i = 0; i < n; ++i) {
    const std::string_view first = trim(d.unit->line_text(i));
    std::string joined(first);
    while (joined.ends_with('\\') && i + 1 < n) {
      joined.pop_back();
      joined += ' ';
      joined += trim(d.unit->line_text(++i));
    }
    std::string_view s = trim(joined);
    for (size_t k = 1; k < s.size(); ++k) {
      if (s[k] == '#' && is_blank(s[k - 1])) {
        s = trim(s.substr(0, k));
        break;
      }
    }
    if (s.empty() || s[0] == '#') continue;
    std::string_view shown = first.substr(0, first.find(" #"));
    while (shown.ends_with('\\')) shown = trim(shown.substr(0, shown.size() - 1));
    const Span span = span_of(d, trim(shown));
    if (s[0] == '-') {
      const size_t blank = s.find_first_of(" =");
      add(d, std::string(s.substr(0, blank)), s.substr(0, blank), blank == s.npos ? std::string() : std::string(trim(s.substr(blank + 1))), span, span);
      continue;
    }
    add(d, "requirement", "requirement", std::string(s), span, span);
    const size_t option = s.find(" --");
    if (add_pin(d, s.substr(0, option), span, "requirements")) d.pins.back().has_hash = s.find("--hash") != s.npos;
  }
}

void scan_dockerfile(Document& d) {
  const std::string_view text = d.unit->text;
  const size_t n = d.unit->line_starts.size();
  for (size_t i = 0; i < n;) {
    const size_t first_line = i;
    std::string_view line = d.unit->line_text(i++);
    const std::string_view s = trim(line);
    if (s.empty() || s[0] == '#') continue;
    const size_t blank = s.find_first_of(" \t");
    std::string instruction;
    for (const char c : s.substr(0, blank)) instruction += c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c;
    // Continuation lines; comment lines between them are left out by the builder and by scan_shell().
    while (i < n && (trim(line).ends_with('\\') || (i > first_line + 1 && trim(line).starts_with('#')))) line = d.unit->line_text(i++);
    const std::string_view shown = trim(line);
    const uint32_t end = std::max(span_of(d, s).end, span_of(d, shown).end);
    const uint32_t begin = blank == s.npos ? end : span_of(d, s.substr(blank)).begin + 1;
    if (begin >= end) continue;
    std::string_view rest = text.substr(begin, end - begin);
    // Here-documents of RUN: the lines up to the mark are the script.
    if (const size_t here = rest.find("<<"); here != rest.npos && (instruction == "RUN" || instruction == "COPY")) {
      std::string mark;
      for (size_t k = here + 2; k < rest.size() && !is_blank(rest[k]) && rest[k] != '\n'; ++k) {
        if (rest[k] != '-' && rest[k] != '"' && rest[k] != '\'') mark += rest[k];
      }
      const size_t body = i;
      while (i < n && trim(d.unit->line_text(i)) != mark) ++i;
      if (i > body && instruction == "RUN" && i < n) scan_shell(d, {d.unit->line_starts[body], d.unit->line_starts[i]});
      ++i;
      continue;
    }
    add(d, instruction, instruction, std::string(trim(rest)), span_of(d, s.substr(0, blank)), span_of(d, trim(rest)));
    if (instruction == "FROM") {
      std::string_view image = trim(rest);
      while (image.starts_with("--")) image = trim(image.substr(std::min(image.find(' '), image.size())));
      image = image.substr(0, image.find_first_of(" \t"));
      Image parsed;
      if (image != "scratch" && parse_image(image, parsed)) {
        parsed.span = span_of(d, image);
        d.images.push_back(std::move(parsed));
      }
    } else if (instruction == "ENV") {
      const std::string_view pairs = trim(rest);
      const size_t name_end = pairs.find_first_of(" \t=");
      if (name_end != pairs.npos && pairs[name_end] != '=') {  // ENV NAME value
        d.environment.push_back({std::string(pairs.substr(0, name_end)), unquote(trim(pairs.substr(name_end))), false, span_of(d, pairs)});
      } else {
        scan_shell(d, span_of(d, rest));  // NAME=value NAME=value: assignments of a shell
      }
    } else if (instruction == "RUN" || instruction == "CMD" || instruction == "ENTRYPOINT") {
      std::string_view command = trim(rest);
      while (command.starts_with("--")) command = trim(command.substr(std::min(command.find_first_of(" \t\n"), command.size())));
      if (command.starts_with('[')) {  // JSON form: one command
        Command c;
        for (size_t k = 0; k < command.size(); ++k) {
          if (command[k] != '"') continue;
          const size_t close = std::min(command.find('"', k + 1), command.size());
          const std::string_view w = command.substr(k + 1, close - k - 1);
          c.words.push_back({std::string(w), span_of(d, w)});
          k = close;
        }
        c.span = span_of(d, command);
        if (!c.words.empty()) d.commands.push_back(std::move(c));
      } else {
        scan_shell(d, span_of(d, command));
      }
    }
  }
}

}  // namespace pointsman::audit::config
