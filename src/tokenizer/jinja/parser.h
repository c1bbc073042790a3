// SPDX-License-Identifier: Apache-2.0
//
// Template text -> syntax tree, by the grammar of Jinja 2 (3.1), for the constructs that chat templates use. Others (include,
// import, extends, block, call, recursive loops, *args) are kUnsupported with their line.
#pragma once

#include <memory>
#include <string_view>

#include "pointsman/status.h"
#include "tokenizer/jinja/ast.h"

namespace pointsman::jinja {

// Nesting of expressions and statements.
inline constexpr int kMaxSyntaxDepth = 100;

// kCorrupt: not a template. kUnsupported: one that uses what this interpreter does not have, or nests too deep.
Result<std::shared_ptr<const Template>> parse(std::string_view source);

}  // namespace pointsman::jinja
