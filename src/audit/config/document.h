// SPDX-License-Identifier: Apache-2.0
//
// YAML, JSON, TOML, INI, requirements lists, Dockerfiles and shell scripts in one shape: key paths with values, and what rules ask
// about in all of them - environment variables, pinned packages, container images, commands.
//
// The scanners are tolerant: they take what they understand, line by line where a format allows it, and never fail. Bounded in
// entries and depth. A Document is immutable: any number of threads may read it.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "audit/source.h"

namespace pointsman::audit::config {

// One scalar.
struct Entry {
  std::string path;   // "train.backend", "steps[0].run"; of a Dockerfile the instruction ("FROM"); of a requirements list "requirement" or the option ("--find-links")
  std::string key;    // the last key of the path, without index
  std::string value;  // decoded; a block of several lines keeps them
  Span key_span;      // empty in lists
  Span value_span;
};

// NAME=value wherever it is said: ENV, export, NAME=value command, env: of YAML, os.environ[...] = ... in Python.
struct Environment {
  std::string name;
  std::string value;      // as written, quotes removed; may hold $OTHER
  bool is_unset = false;  // unset NAME
  Span span;              // of name and value
};

// A requirement on a package.
struct Pin {
  std::string package;    // lower case, '_' as '-': "torch-npu"
  std::string spec;       // "==2.1.0", ">=2.0,<3", "" when there is none; conda's "=2.1" and poetry's "^2.1" as written
  std::string version;    // of an exact pin ("==2.1.0", "==2.1.*" gives "2.1.*"), else empty
  bool has_hash = false;  // --hash=...
  std::string source;     // "pip", "conda", "poetry", "requirements", "setup", "project"
  Span span;
};

struct Image {
  std::string name;  // "registry/name", without tag
  std::string tag;
  std::string digest;
  Span span;
};

struct Word {
  std::string text;  // quotes and backslashes removed
  Span span;
};

// One simple command of a shell script, a RUN line, a CI step or a "!command" of a notebook.
struct Command {
  std::vector<Word> words;           // program first; variable assignments in front of it are environment
  size_t program_index = 0;          // past sudo, env, nohup, time, exec
  std::vector<Environment> environment;
  Span span;
  const std::string& program() const { return words[program_index].text; }
  // Is `word` one of the arguments?
  bool has_argument(std::string_view word) const;
  // The value of --name value or --name=value; empty when absent.
  std::string_view option(std::string_view name) const;
};

struct Document {
  const Unit* unit = nullptr;
  std::vector<Entry> entries;
  std::vector<Environment> environment;
  std::vector<Pin> pins;
  std::vector<Image> images;
  std::vector<Command> commands;  // words is never empty
  bool truncated = false;

  const Entry* find(std::string_view path) const;
};

// `unit` must outlive the document.
std::unique_ptr<Document> parse(const Unit& unit);

// --- Parts, for Python files that carry them in strings ---

// Commands of text[range] of the unit, appended to `document` with their environment and pins.
void scan_shell(Document& document, Span range);
// "torch>=2.1,<3; python_version < '3.12'"; false when it is no requirement.
bool parse_requirement(std::string_view text, Pin& out);
// "registry:5000/name:tag@sha256:..."; false when it is no image reference.
bool parse_image(std::string_view text, Image& out);

}  // namespace pointsman::audit::config
