// SPDX-License-Identifier: Apache-2.0
//
// Code inside other files: cells of notebooks, code blocks of documents (fenced, indented, or standing unmarked between lines
// of prose, as web pages copied to text have them).
//
// The units carry text, kind, label and their lines in the file; path and the rest are the caller's.
#pragma once

#include <string_view>
#include <vector>

#include "audit/source.h"

namespace pointsman::audit {

// All code cells become one Python unit (names imported in one cell are known in the next); "!command" lines and "%%bash" cells
// become one shell unit.
std::vector<Unit> notebook_units(std::string_view json);

// One unit per block.
std::vector<Unit> document_units(std::string_view text);

// The language of a block from its lines: kPython, kShell, kCpp, kYaml, kJson, kDockerfile, or kUnknown.
FileKind guess_language(std::string_view block);

}  // namespace pointsman::audit
