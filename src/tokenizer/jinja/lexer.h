// SPDX-License-Identifier: Apache-2.0
//
// Template text -> tokens, with white-space control as Jinja has it under trim_blocks and lstrip_blocks: a newline after a
// block tag and indentation before one disappear; "-" strips more, "+" keeps.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "pointsman/status.h"

namespace pointsman::jinja {

struct Token {
  enum class Kind {
    kText,
    kVariableBegin,
    kVariableEnd,
    kBlockBegin,
    kBlockEnd,
    kName,
    kString,
    kInt,
    kFloat,
    kOperator,
    kEnd
  };
  Kind kind;
  std::string text;  // strings are unescaped, numbers without underscores
  int line = 1;
};

// kCorrupt with the line number. The last token is kEnd.
Result<std::vector<Token>> tokenize(std::string_view source);

}  // namespace pointsman::jinja
