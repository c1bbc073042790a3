// SPDX-License-Identifier: Apache-2.0
//
// What is known of the whole tree after every file has been read: for rules about several files at once.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "audit/config/document.h"
#include "audit/finding.h"
#include "audit/python/ast.h"

namespace pointsman::audit {

template <class T>
struct Located {
  T value;
  Location location;
  std::string excerpt;  // the line
  std::string label;
  FileKind kind = FileKind::kUnknown;  // of the unit: kPython for os.environ[...]
};

struct Note {
  std::string rule;
  std::string key;
  std::string value;
};

struct Import {
  std::string module;  // "torch.distributed"
};

// In the order of files and lines.
struct Tree {
  std::vector<std::string> files;
  std::vector<Located<config::Environment>> environment;  // also os.environ of Python
  std::vector<Located<config::Pin>> pins;                 // also install_requires of setup.py
  std::vector<Located<config::Image>> images;
  std::vector<Located<Import>> imports;
  std::vector<Located<Note>> notes;
  std::vector<Finding> findings;  // of the file callbacks, suppressed ones included

  bool imports_module(std::string_view module) const;  // the module or something below it
  // Notes of one rule with this key.
  std::vector<const Located<Note>*> notes_of(std::string_view rule, std::string_view key) const;
};

// Adds what a unit says about environment, pins, images and imports.
void collect_facts(const python::Module& module, Tree& tree);
void collect_facts(const config::Document& document, Tree& tree);

template <class T>
Located<T> locate(const Unit& unit, Span span, T value) {
  const size_t line = unit.line_index(span.begin);
  return {std::move(value), unit.location(span), unit.excerpt(line), unit.label_at(span.begin), unit.kind};
}

}  // namespace pointsman::audit
