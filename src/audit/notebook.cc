// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <charconv>

#include "audit/blocks.h"
#include "audit/config/document.h"

namespace pointsman::audit {
namespace {

struct CellLine {
  std::string text;
  int file_line;
};
struct Cell {
  bool is_code = false;
  std::vector<CellLine> lines;
};

// "cells[12].source[3]" -> 12 and "source[3]"; also "worksheets[0].cells[12].input" of the third format.
bool cell_path(std::string_view path, size_t& cell, std::string_view& rest) {
  const size_t at = path.find("cells[");
  if (at == path.npos || (at != 0 && path[at - 1] != '.')) return false;
  const char* begin = path.data() + at + 6;
  const auto r = std::from_chars(begin, path.data() + path.size(), cell);
  if (r.ec != std::errc() || r.ptr + 1 >= path.data() + path.size() || *r.ptr != ']' || r.ptr[1] != '.') return false;
  rest = path.substr(static_cast<size_t>(r.ptr - path.data()) + 2);
  return true;
}

void append_lines(std::string_view source, int file_line, Cell& cell, bool& open) {
  while (!source.empty()) {
    const size_t end = source.find('\n');
    const std::string_view line = source.substr(0, end);
    if (open && !cell.lines.empty()) {
      cell.lines.back().text += line;
    } else {
      cell.lines.push_back({std::string(line), file_line});
    }
    open = end == source.npos;
    source = end == source.npos ? std::string_view() : source.substr(end + 1);
  }
}

void add_line(Unit& unit, std::string_view text, int file_line, int cell) {
  unit.text += text;
  unit.text += '\n';
  unit.file_lines.push_back(file_line);
  unit.cells.push_back(cell);
}

void emit(const Cell& cell, int number, Unit& python, Unit& shell) {
  const std::string_view first = cell.lines.empty() ? std::string_view() : std::string_view(cell.lines[0].text);
  const bool magic = first.starts_with("%%");
  const bool is_shell = magic && (first.starts_with("%%bash") || first.starts_with("%%sh") || first.starts_with("%%script"));
  const bool is_python = !magic || first.starts_with("%%time") || first.starts_with("%%capture") || first.starts_with("%%prun");
  for (size_t i = 0; i < cell.lines.size(); ++i) {
    const std::string& line = cell.lines[i].text;
    if (i == 0 && magic) continue;
    if (is_shell) {
      add_line(shell, line, cell.lines[i].file_line, number);
      continue;
    }
    if (!is_python) continue;
    const size_t begin = std::min(line.find_first_not_of(" \t"), line.size());
    const char c = begin < line.size() ? line[begin] : '\0';
    if (c == '!' || line.compare(begin, 5, "%pip ") == 0 || line.compare(begin, 7, "%conda ") == 0) {
      add_line(shell, line.substr(begin + 1), cell.lines[i].file_line, number);
      add_line(python, line.substr(0, begin) + "pass", cell.lines[i].file_line, number);
    } else if (c == '%') {
      add_line(python, line.substr(0, begin) + "pass", cell.lines[i].file_line, number);
    } else {
      add_line(python, line, cell.lines[i].file_line, number);
    }
  }
}

}  // namespace

std::vector<Unit> notebook_units(std::string_view json) {
  Unit file;
  file.kind = FileKind::kJson;
  file.text = std::string(json);
  index_lines(file);
  const auto document = config::parse(file);
  std::vector<Cell> cells;
  std::vector<bool> open;  // the last line goes on
  for (const config::Entry& e : document->entries) {
    size_t n = 0;
    std::string_view rest;
    if (!cell_path(e.path, n, rest) || n > 100'000) continue;
    if (cells.size() <= n) {
      cells.resize(n + 1);
      open.resize(n + 1);
    }
    if (rest == "cell_type") {
      cells[n].is_code = e.value == "code";
    } else if (rest == "source" || rest.starts_with("source[") || rest == "input" || rest.starts_with("input[")) {
      bool o = open[n];
      append_lines(e.value, file.file_line(file.line_index(e.value_span.begin)), cells[n], o);
      open[n] = o;
    }
  }
  Unit python, shell;
  python.kind = FileKind::kPython;
  shell.kind = FileKind::kShell;
  for (size_t i = 0; i < cells.size(); ++i) {
    if (cells[i].is_code) emit(cells[i], static_cast<int>(i) + 1, python, shell);
  }
  std::vector<Unit> units;
  if (!python.text.empty()) units.push_back(std::move(python));
  if (!shell.text.empty()) units.push_back(std::move(shell));
  return units;
}

}  // namespace pointsman::audit
