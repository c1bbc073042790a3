// SPDX-License-Identifier: Apache-2.0
#include "audit/config/document.h"

#include <algorithm>

#include "audit/config/scan.h"

namespace pointsman::audit::config {

bool Command::has_argument(std::string_view word) const {
  for (size_t i = program_index + 1; i < words.size(); ++i) {
    if (words[i].text == word) return true;
  }
  return false;
}

std::string_view Command::option(std::string_view name) const {
  for (size_t i = program_index + 1; i < words.size(); ++i) {
    const std::string_view w = words[i].text;
    if (w == name) return i + 1 < words.size() ? std::string_view(words[i + 1].text) : std::string_view();
    if (w.starts_with(name) && w.size() > name.size() && w[name.size()] == '=') return w.substr(name.size() + 1);
  }
  return {};
}

const Entry* Document::find(std::string_view path) const {
  const auto it = std::find_if(entries.begin(), entries.end(), [&](const Entry& e) { return e.path == path; });
  return it == entries.end() ? nullptr : &*it;
}

std::unique_ptr<Document> parse(const Unit& unit) {
  auto d = std::make_unique<Document>();
  d->unit = &unit;
  switch (unit.kind) {
    case FileKind::kYaml: scan_yaml(*d); break;
    case FileKind::kJson: scan_json(*d); break;
    case FileKind::kToml: scan_toml(*d); break;
    case FileKind::kIni: scan_ini(*d); break;
    case FileKind::kRequirements: scan_requirements(*d); break;
    case FileKind::kDockerfile: scan_dockerfile(*d); break;
    case FileKind::kShell: scan_shell(*d, {0, static_cast<uint32_t>(unit.text.size())}); break;
    default: return d;
  }
  collect(*d);
  return d;
}

std::string_view trim(std::string_view s) {
  while (!s.empty() && (is_blank(s.front()) || s.front() == '\n')) s.remove_prefix(1);
  while (!s.empty() && (is_blank(s.back()) || s.back() == '\n')) s.remove_suffix(1);
  return s;
}

Span span_of(const Document& document, std::string_view part) {
  const auto begin = static_cast<uint32_t>(part.data() - document.unit->text.data());
  return {begin, begin + static_cast<uint32_t>(part.size())};
}

void add(Document& document, std::string path, std::string_view key, std::string value, Span key_span, Span value_span) {
  if (document.entries.size() >= kMaxEntries) {
    document.truncated = true;
    return;
  }
  document.entries.push_back({std::move(path), std::string(key), std::move(value), key_span, value_span});
}

bool is_variable_name(std::string_view name) {
  if (name.size() < 4 || !(name[0] >= 'A' && name[0] <= 'Z')) return false;
  return std::all_of(name.begin(), name.end(), [](char c) { return (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_'; });
}

std::string child_path(const std::string& parent, std::string_view key) {
  std::string path = parent.empty() ? std::string(key) : parent + "." + std::string(key);
  if (path.size() > kMaxPath) path = path.substr(path.size() - kMaxPath);
  return path;
}

std::string index_path(const std::string& parent, size_t index) {
  std::string path = parent + "[" + std::to_string(index) + "]";
  if (path.size() > kMaxPath) path = path.substr(path.size() - kMaxPath);
  return path;
}

bool add_pin(Document& document, std::string_view text, Span span, std::string_view source) {
  Pin pin;
  if (!parse_requirement(text, pin)) return false;
  pin.span = span;
  pin.source = source;
  document.pins.push_back(std::move(pin));
  return true;
}

bool parse_requirement(std::string_view text, Pin& out) {
  text = trim(text);
  size_t i = 0;
  const auto name_part = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' || c == '.'; };
  while (i < text.size() && name_part(text[i])) ++i;
  if (i == 0 || !((text[0] | 32) >= 'a' && (text[0] | 32) <= 'z')) return false;
  Pin pin;
  for (const char c : text.substr(0, i)) pin.package += c == '_' ? '-' : c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  std::string_view rest = trim(text.substr(i));
  if (rest.starts_with('[')) {
    const size_t close = rest.find(']');
    if (close == rest.npos) return false;
    rest = trim(rest.substr(close + 1));
  }
  if (rest.starts_with('@')) {  // name @ url
    pin.spec = std::string(trim(rest.substr(0, rest.find(';'))));
  } else {
    rest = trim(rest.substr(0, rest.find(';')));
    if (rest.starts_with('(') && rest.ends_with(')')) rest = rest.substr(1, rest.size() - 2);
    if (!rest.empty() && std::string_view("=<>!~^").find(rest.front()) == std::string_view::npos) return false;
    for (const char c : rest) {
      if (!is_blank(c)) pin.spec += c;
    }
    if (pin.spec.starts_with("==") && pin.spec.find(',') == std::string::npos) pin.version = pin.spec.substr(pin.spec.starts_with("===") ? 3 : 2);
  }
  out = std::move(pin);
  return true;
}

bool parse_image(std::string_view text, Image& out) {
  text = trim(text);
  if (text.empty() || text.find_first_of(" \t\n\"'{}") != text.npos || text.size() > 300) return false;
  Image image;
  if (const size_t at = text.find('@'); at != text.npos) {
    image.digest = std::string(text.substr(at + 1));
    text = text.substr(0, at);
  }
  const size_t slash = text.rfind('/');
  if (const size_t colon = text.find(':', slash == text.npos ? 0 : slash); colon != text.npos) {
    image.tag = std::string(text.substr(colon + 1));
    text = text.substr(0, colon);
  }
  image.name = std::string(text);
  out = std::move(image);
  return !out.name.empty();
}

}  // namespace pointsman::audit::config
