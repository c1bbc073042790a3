// SPDX-License-Identifier: Apache-2.0
//
// The "normalizer" section: a sequence of text -> text steps. Known: Sequence, NFC, NFD, NFKC, NFKD, Lowercase, Strip,
// StripAccents, Replace, Prepend, ByteLevel.
//
// Immutable and thread-safe.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/json.h"
#include "pointsman/status.h"
#include "tokenizer/regex.h"
#include "tokenizer/unicode.h"

namespace pointsman {

class Normalizer {
 public:
  // `section` may be null or JSON null. kUnsupported names an unknown type.
  static Result<Normalizer> parse(const Json* section);

  bool is_identity() const { return steps_.empty(); }
  // Whether apply() would leave ASCII text as it is.
  bool keeps_ascii() const { return keeps_ascii_; }
  // Changes `text` in place (valid UTF-8 before and after). `at_start` becomes false when characters were cut off its
  // beginning.
  Status apply(std::string& text, bool& at_start, RegexMatcher& matcher) const;
  uint64_t memory_bytes() const;

 private:
  enum class Kind { kNormalForm, kLowercase, kStrip, kStripAccents, kReplace, kPrepend, kByteLevel };
  struct Step {
    Kind kind;
    NormalForm form = NormalForm::kNfc;
    bool left = true;
    bool right = true;
    std::string text;     // Replace: plain pattern; Prepend: what to prepend
    std::string content;  // Replace: the replacement
    std::unique_ptr<Regex> regex;
  };
  Status add(const Json& component);

  std::vector<Step> steps_;
  bool keeps_ascii_ = true;
};

}  // namespace pointsman
