// SPDX-License-Identifier: Apache-2.0
#include "audit/source.h"

#include <algorithm>
#include <array>
#include <utility>

#include "audit/blocks.h"

namespace pointsman::audit {
namespace {

void append_utf8(std::string& out, uint32_t c) {
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else if (c < 0x800) {
    out += static_cast<char>(0xC0 | c >> 6);
    out += static_cast<char>(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    out += static_cast<char>(0xE0 | c >> 12);
    out += static_cast<char>(0x80 | (c >> 6 & 0x3F));
    out += static_cast<char>(0x80 | (c & 0x3F));
  } else {
    out += static_cast<char>(0xF0 | c >> 18);
    out += static_cast<char>(0x80 | (c >> 12 & 0x3F));
    out += static_cast<char>(0x80 | (c >> 6 & 0x3F));
    out += static_cast<char>(0x80 | (c & 0x3F));
  }
}

// Length of the well-formed sequence at s[i], 0 when there is none (RFC 3629: no overlong forms, surrogates, > U+10FFFF).
size_t utf8_length(std::string_view s, size_t i) {
  const auto byte = [&](size_t k) { return i + k < s.size() ? static_cast<uint8_t>(s[i + k]) : uint8_t{0}; };
  const auto tail = [&](size_t k) { return (byte(k) & 0xC0) == 0x80; };
  const uint8_t a = byte(0), b = byte(1);
  if (a < 0x80) return 1;
  if (a >= 0xC2 && a <= 0xDF) return tail(1) ? 2 : 0;
  if (a >= 0xE0 && a <= 0xEF) {
    if (!tail(1) || !tail(2) || (a == 0xE0 && b < 0xA0) || (a == 0xED && b > 0x9F)) return 0;
    return 3;
  }
  if (a >= 0xF0 && a <= 0xF4) {
    if (!tail(1) || !tail(2) || !tail(3) || (a == 0xF0 && b < 0x90) || (a == 0xF4 && b > 0x8F)) return 0;
    return 4;
  }
  return 0;
}

std::string from_utf16(std::string_view bytes, bool big_endian) {
  std::string out;
  const auto unit = [&](size_t i) {
    const auto hi = static_cast<uint8_t>(bytes[i + (big_endian ? 0 : 1)]), lo = static_cast<uint8_t>(bytes[i + (big_endian ? 1 : 0)]);
    return static_cast<uint32_t>(hi << 8 | lo);
  };
  for (size_t i = 0; i + 1 < bytes.size(); i += 2) {
    uint32_t c = unit(i);
    if (c >= 0xD800 && c < 0xDC00 && i + 3 < bytes.size()) {
      const uint32_t low = unit(i + 2);
      if (low >= 0xDC00 && low < 0xE000) {
        c = 0x10000 + ((c - 0xD800) << 10) + (low - 0xDC00);
        i += 2;
      }
    }
    append_utf8(out, c >= 0xD800 && c < 0xE000 ? 0xFFFD : c);
  }
  return out;
}

// UTF-16 text of mostly Latin letters has a zero in every other byte.
bool looks_utf16(std::string_view bytes, bool big_endian) {
  const size_t n = std::min<size_t>(bytes.size() & ~size_t{1}, 256);
  if (n < 8) return false;
  size_t zero = 0, other = 0;
  for (size_t i = 0; i < n; i += 2) {
    zero += bytes[i + (big_endian ? 0 : 1)] == '\0';
    other += bytes[i + (big_endian ? 1 : 0)] == '\0';
  }
  return zero >= n * 3 / 8 && other == 0;
}

// UTF-16 units of the first `bytes` bytes of a line. Beyond a length that nobody reads, bytes are counted.
int utf16_length(std::string_view line, size_t bytes) {
  int n = 0;
  const size_t exact = std::min<size_t>({bytes, line.size(), 4000});
  for (size_t i = 0; i < exact; ++i) {
    const auto c = static_cast<uint8_t>(line[i]);
    n += (c & 0xC0) != 0x80;
    n += c >= 0xF0;
  }
  return n + static_cast<int>(bytes - exact);
}

}  // namespace

Decoded decode(std::string_view bytes) {
  Decoded d;
  std::string wide;
  if (bytes.starts_with("\xEF\xBB\xBF")) {
    bytes.remove_prefix(3);
  } else {
    const bool le = bytes.starts_with("\xFF\xFE"), be = bytes.starts_with("\xFE\xFF");
    if (le || be || looks_utf16(bytes, false) || looks_utf16(bytes, true)) {
      wide = from_utf16(le || be ? bytes.substr(2) : bytes, be || (!le && looks_utf16(bytes, true)));
      bytes = wide;
      d.is_exact = false;
    }
  }
  d.text.reserve(bytes.size() + 1);
  for (size_t i = 0; i < bytes.size();) {
    const char c = bytes[i];
    if (c == '\r') {
      const bool pair = i + 1 < bytes.size() && bytes[i + 1] == '\n';
      d.has_crlf |= pair;
      d.is_exact &= pair;
      d.text += '\n';
      i += pair ? 2 : 1;
    } else if (c == '\0') {
      d.text += ' ';
      d.is_exact = false;
      ++i;
    } else if (static_cast<uint8_t>(c) < 0x80) {
      d.text += c;
      ++i;
    } else if (const size_t n = utf8_length(bytes, i); n > 0) {
      d.text.append(bytes.substr(i, n));
      i += n;
    } else {
      append_utf8(d.text, static_cast<uint8_t>(c));
      d.is_exact = false;
      ++i;
    }
  }
  return d;
}

const char* file_kind_name(FileKind kind) {
  constexpr const char* kNames[] = {"unknown",      "python",     "c++",   "yaml",     "json",    "toml", "ini",
                                    "requirements", "dockerfile", "shell", "notebook", "document"};
  return kNames[static_cast<size_t>(kind)];
}

size_t Unit::line_index(uint32_t offset) const {
  const auto after = std::upper_bound(line_starts.begin(), line_starts.end(), offset);
  return after == line_starts.begin() ? 0 : static_cast<size_t>(after - line_starts.begin()) - 1;
}

std::string_view Unit::line_text(size_t line) const {
  if (line >= line_starts.size()) return {};
  const size_t begin = line_starts[line];
  const size_t end = line + 1 < line_starts.size() ? line_starts[line + 1] - 1 : text.size();
  std::string_view s = std::string_view(text).substr(begin, end - begin);
  if (s.ends_with('\n')) s.remove_suffix(1);
  return s;
}

Unit::Excerpt Unit::excerpt(uint32_t offset) const {
  constexpr size_t kMost = 400;
  const size_t line = line_index(offset);
  const std::string_view s = line_text(line);
  const size_t column = std::min<size_t>(offset - line_starts[line], s.size());
  const auto inside = [&](size_t i) { return i > 0 && i < s.size() && (static_cast<uint8_t>(s[i]) & 0xC0) == 0x80; };
  size_t begin = s.size() <= kMost || column < kMost / 2 ? 0 : column - kMost / 2;
  while (inside(begin)) --begin;
  size_t end = std::min(s.size(), begin + kMost);
  while (inside(end)) --end;
  const int shift = line < column_shifts.size() ? column_shifts[line] : 0;
  return {std::string(s.substr(begin, end - begin)), static_cast<int>(begin) + 1 + shift};
}

Location Unit::location(Span span) const {
  const uint32_t size = static_cast<uint32_t>(text.size());
  const uint32_t begin = std::min(span.begin, size), end = std::clamp(span.end, begin, size);
  const size_t first = line_index(begin), last = line_index(end > begin ? end - 1 : end);
  const auto shift = [&](size_t line) { return line < column_shifts.size() ? column_shifts[line] : 0; };
  const uint32_t first_column = begin - line_starts[first], last_column = end - line_starts[last];
  return {path,
          file_line(first),
          static_cast<int>(first_column) + 1 + shift(first),
          file_line(last),
          static_cast<int>(last_column) + 1 + shift(last),
          utf16_length(line_text(first), first_column) + 1 + shift(first),
          utf16_length(line_text(last), last_column) + 1 + shift(last)};
}

std::string Unit::label_at(uint32_t offset) const {
  const size_t line = line_index(offset);
  return line < cells.size() ? "cell " + std::to_string(cells[line]) : label;
}

void index_lines(Unit& unit) {
  unit.line_starts.assign(1, 0);
  for (size_t i = 0; i < unit.text.size(); ++i) {
    if (unit.text[i] == '\n' && i + 1 < unit.text.size()) unit.line_starts.push_back(static_cast<uint32_t>(i + 1));
  }
}

FileKind kind_of_file(std::string_view path, std::string_view head) {
  std::string name(path.substr(path.rfind('/') == path.npos ? 0 : path.rfind('/') + 1));
  std::transform(name.begin(), name.end(), name.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  const size_t dot = name.rfind('.');
  const std::string_view ending = dot == std::string::npos ? std::string_view() : std::string_view(name).substr(dot);
  if (name == "dockerfile" || name == "containerfile" || name.starts_with("dockerfile.") || ending == ".dockerfile")
    return FileKind::kDockerfile;
  if (name == "cmakelists.txt" || ending == ".cmake") return FileKind::kUnknown;
  const auto contains = [&](std::string_view part) { return name.find(part) != std::string::npos; };
  if ((ending == ".txt" || ending == ".in") && (contains("requirement") || contains("constraint"))) return FileKind::kRequirements;
  // A folder "requirements/" of lists: base.txt, dev.txt.
  if (ending == ".txt" && path.size() > name.size() && path.substr(0, path.size() - name.size()).ends_with("requirements/"))
    return FileKind::kRequirements;
  if (name == ".env" || name.starts_with(".env.")) return FileKind::kIni;
  constexpr std::pair<std::string_view, FileKind> kEndings[] = {
      {".py", FileKind::kPython},     {".pyi", FileKind::kPython},     {".pyx", FileKind::kPython},  {".c", FileKind::kCpp},
      {".cc", FileKind::kCpp},        {".cpp", FileKind::kCpp},        {".cxx", FileKind::kCpp},     {".cu", FileKind::kCpp},
      {".cuh", FileKind::kCpp},       {".h", FileKind::kCpp},          {".hh", FileKind::kCpp},      {".hpp", FileKind::kCpp},
      {".hxx", FileKind::kCpp},       {".inl", FileKind::kCpp},        {".inc", FileKind::kCpp},     {".yaml", FileKind::kYaml},
      {".yml", FileKind::kYaml},      {".json", FileKind::kJson},      {".jsonc", FileKind::kJson},  {".toml", FileKind::kToml},
      {".ini", FileKind::kIni},       {".cfg", FileKind::kIni},        {".conf", FileKind::kIni},    {".env", FileKind::kIni},
      {".properties", FileKind::kIni}, {".sh", FileKind::kShell},      {".bash", FileKind::kShell},  {".zsh", FileKind::kShell},
      {".ksh", FileKind::kShell},     {".slurm", FileKind::kShell},    {".sbatch", FileKind::kShell}, {".ipynb", FileKind::kNotebook},
      {".md", FileKind::kDocument},   {".markdown", FileKind::kDocument}, {".rst", FileKind::kDocument}, {".txt", FileKind::kDocument},
      {".mdx", FileKind::kDocument},
  };
  for (const auto& [e, kind] : kEndings) {
    if (ending == e) return kind;
  }
  if (head.starts_with("#!")) {
    const std::string_view line = head.substr(0, head.find('\n'));
    if (line.find("python") != line.npos) return FileKind::kPython;
    if (line.ends_with("sh") || line.find("sh ") != line.npos) return FileKind::kShell;
  }
  return FileKind::kUnknown;
}

std::vector<Unit> split_units(const std::string& path, FileKind kind, Decoded decoded) {
  std::vector<Unit> units;
  if (kind == FileKind::kNotebook) {
    units = notebook_units(decoded.text);
  } else if (kind == FileKind::kDocument) {
    units = document_units(decoded.text);
  } else if (kind != FileKind::kUnknown) {
    Unit u;
    u.kind = kind;
    u.text = std::move(decoded.text);
    units.push_back(std::move(u));
  }
  for (Unit& u : units) {
    u.path = path;
    u.container = kind;
    u.has_crlf = decoded.has_crlf;
    u.is_exact = decoded.is_exact && kind != FileKind::kNotebook;
    index_lines(u);
  }
  return units;
}

}  // namespace pointsman::audit
