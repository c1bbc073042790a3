// SPDX-License-Identifier: Apache-2.0
//
// Files of the audited tree and the pieces of code in them.
//
// A Unit is one text in one language: a whole file, the code cells of a notebook, or one code block of a document. Its text is
// always valid UTF-8 with '\n' ends, whatever the bytes of the file were; offsets into the text are what parsers and rules
// work with, and position() turns them into lines of the file.
//
// Nothing here fails on what a file holds; only an operating-system failure is an error. Immutable once made: any number of
// threads may read.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "audit/finding.h"

namespace pointsman::audit {

enum class FileKind : uint8_t {
  kUnknown,
  kPython,
  kCpp,  // C, C++, CUDA
  kYaml,
  kJson,
  kToml,
  kIni,           // also .cfg, .conf, .properties, .env
  kRequirements,  // requirements*.txt, constraints*.txt
  kDockerfile,
  kShell,
  kNotebook,  // expands to Python and shell units
  kDocument,  // Markdown and plain text: expands to units of its code blocks
};

const char* file_kind_name(FileKind kind);

// Bytes [begin, end) of Unit::text.
struct Span {
  uint32_t begin = 0;
  uint32_t end = 0;
  friend bool operator==(const Span&, const Span&) = default;
};

struct Unit {
  std::string path;                          // relative to the root, '/' between folders
  FileKind kind = FileKind::kUnknown;        // the language of this text
  FileKind container = FileKind::kUnknown;   // the file: kNotebook, kDocument, or the same as `kind`
  std::string label;                         // "code block", or empty
  std::string text;
  std::vector<uint32_t> line_starts;         // offset of each line
  std::vector<int> file_lines;               // line of the file (from 1) of each line of `text`; empty: first_line, +1, ...
  std::vector<int> column_shifts;            // bytes that were taken off the front of each line of `text`; empty: none
  int first_line = 1;
  std::vector<int> cells;                    // of a notebook: the cell (from 1) of each line of `text`
  bool has_crlf = false;                     // the file's lines end in "\r\n"
  bool is_exact = true;                      // the text is the file's bytes, but for line ends and a UTF-8 mark

  std::string_view slice(Span s) const { return std::string_view(text).substr(s.begin, s.end - s.begin); }
  // Index of the line of `text` that holds `offset`, from 0.
  size_t line_index(uint32_t offset) const;
  std::string_view line_text(size_t line) const;
  // The line as findings show it: at most 400 bytes around `offset`, whole characters.
  struct Excerpt {
    std::string text;
    int column = 1;  // of its first byte
  };
  Excerpt excerpt(uint32_t offset) const;
  Location location(Span span) const;
  // "cell 3", "code block", or empty: where in its container the offset is.
  std::string label_at(uint32_t offset) const;
  int file_line(size_t line) const { return file_lines.empty() ? first_line + static_cast<int>(line) : file_lines[line]; }
};

// Fills line_starts from text.
void index_lines(Unit& unit);

// `bytes` of any encoding as UTF-8: byte-order marks of UTF-8 and UTF-16 are honoured, UTF-16 without one is recognised by its
// zero bytes; every other invalid byte stands for the Latin-1 character. Zero bytes become spaces, "\r\n" and '\r' become '\n'.
struct Decoded {
  std::string text;
  bool has_crlf = false;
  bool is_exact = true;
};
Decoded decode(std::string_view bytes);

// What a file is, from its name and, without a known ending, its first bytes (a "#!" line). `head` may be empty.
FileKind kind_of_file(std::string_view path, std::string_view head);

// The units of one file. `text` is decoded already.
std::vector<Unit> split_units(const std::string& path, FileKind kind, Decoded decoded);

}  // namespace pointsman::audit
