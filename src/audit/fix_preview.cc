// SPDX-License-Identifier: Apache-2.0
#include "audit/fix_preview.h"

#include <algorithm>
#include <map>

#include "base/log.h"

namespace pointsman::audit {
namespace {

constexpr size_t kContext = 3;
constexpr std::string_view kImport = "import torch_npu  # registers device 'npu' and backend 'hccl'";

struct Line {
  std::string_view before;
  std::string after;
  bool changed = false;
  std::string inserted;  // a line that follows it; empty: none
};

std::vector<Line> split(std::string_view text) {
  std::vector<Line> lines;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    lines.push_back({text.substr(0, end), std::string(text.substr(0, end)), false, {}});
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

// Edits of one file, right to left in each line.
size_t apply(std::vector<const Edit*> edits, std::vector<Line>& lines, size_t& left_out) {
  std::sort(edits.begin(), edits.end(), [](const Edit* a, const Edit* b) { return std::pair(a->location.line, a->location.column) > std::pair(b->location.line, b->location.column); });
  size_t done = 0;
  int line = 0, limit = 0;
  for (const Edit* e : edits) {
    const Location& l = e->location;
    if (l.line < 1 || static_cast<size_t>(l.line) > lines.size() || l.line != l.end_line) {
      ++left_out;
      continue;
    }
    Line& target = lines[static_cast<size_t>(l.line) - 1];
    if (l.line != line) {
      line = l.line;
      limit = static_cast<int>(target.before.size()) + 1;
    }
    const bool same_place = l.column == limit && l.end_column > limit;
    if (l.column < 1 || l.end_column < l.column || l.end_column > limit) {
      left_out += !same_place;
      continue;
    }
    target.after.replace(static_cast<size_t>(l.column) - 1, static_cast<size_t>(l.end_column - l.column), e->text);
    target.changed = true;
    limit = l.column;
    ++done;
  }
  return done;
}

void add_import(std::string_view text, std::vector<Line>& lines) {
  if (text.find("import torch_npu") != text.npos || text.find("from torch_npu") != text.npos) return;
  for (Line& l : lines) {
    const std::string_view s = l.before;
    if (s == "import torch" || s.starts_with("import torch ") || s.starts_with("import torch.") || s.starts_with("import torch,")) {
      l.inserted = kImport;
      return;
    }
  }
}

std::string diff(const std::string& path, const std::vector<Line>& lines, bool crlf) {
  const char* end = crlf ? "\r\n" : "\n";
  std::string out = format("--- a/{}\n+++ b/{}\n", path, path);
  long shift = 0;
  for (size_t i = 0; i < lines.size();) {
    if (!lines[i].changed && lines[i].inserted.empty()) {
      ++i;
      continue;
    }
    // The hunk goes on while the next change is near.
    const size_t first = i > kContext ? i - kContext : 0;
    size_t last = i;
    for (size_t k = i; k < lines.size() && k <= last + 2 * kContext; ++k) {
      if (lines[k].changed || !lines[k].inserted.empty()) last = k;
    }
    const size_t stop = std::min(lines.size(), last + kContext + 1);
    long added = 0;
    std::string body;
    for (size_t k = first; k < stop; ++k) {
      if (lines[k].changed) {
        body += format("-{}{}", lines[k].before, end);
        body += format("+{}{}", lines[k].after, end);
      } else {
        body += format(" {}{}", lines[k].before, end);
      }
      if (!lines[k].inserted.empty()) {
        body += format("+{}{}", lines[k].inserted, end);
        ++added;
      }
    }
    out += format("@@ -{},{} +{},{} @@\n", first + 1, stop - first, static_cast<long>(first) + 1 + shift, static_cast<long>(stop - first) + added);
    out += body;
    shift += added;
    i = stop;
  }
  return out;
}

}  // namespace

Result<FixPreview> fix_preview(FileSystem& fs, const AuditResult& result) {
  std::map<std::string, std::vector<const Edit*>> by_path;
  for (const Finding& f : result.findings) {
    if (f.suppressed || f.baselined) continue;
    for (const Edit& e : f.edits) by_path[e.location.path].push_back(&e);
  }
  FixPreview preview;
  PM_ASSIGN_OR_RETURN(const FileInfo root, fs.stat(result.root));
  for (auto& [path, edits] : by_path) {
    const std::string full = root.is_regular ? result.root : join_path(result.root, path);
    PM_ASSIGN_OR_RETURN(const std::string bytes, read_text_file(fs, full, result.options.walk.max_file_bytes));
    const Decoded decoded = decode(bytes);
    const FileKind kind = kind_of_file(path, bytes);
    // A patch is about bytes: files that were re-encoded, end without a newline or have mixed line ends are left to people.
    const bool mark = bytes.starts_with("\xEF\xBB\xBF");
    const auto newlines = static_cast<size_t>(std::count(decoded.text.begin(), decoded.text.end(), '\n'));
    const bool mixed = decoded.has_crlf && bytes.size() - decoded.text.size() != newlines;
    if (kind == FileKind::kNotebook || !decoded.is_exact || mark || mixed || !decoded.text.ends_with('\n')) {
      preview.left_out += edits.size();
      continue;
    }
    std::vector<Line> lines = split(decoded.text);
    const size_t done = apply(edits, lines, preview.left_out);
    if (done == 0) continue;
    const bool devices = std::any_of(edits.begin(), edits.end(), [](const Edit* e) { return e->text == "npu" || e->text == "hccl"; });
    if (kind == FileKind::kPython && devices) add_import(decoded.text, lines);
    preview.edits += done;
    preview.patch += diff(path, lines, decoded.has_crlf);
  }
  return preview;
}

}  // namespace pointsman::audit
