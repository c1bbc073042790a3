// SPDX-License-Identifier: Apache-2.0
//
// The "pre_tokenizer" section: steps that cut text into pieces; merges never cross a cut. Every step works on each piece that
// the step before it left. Known: Sequence, Split, ByteLevel, CharDelimiterSplit, Whitespace, WhitespaceSplit, Digits,
// Punctuation, Metaspace.
//
// Immutable and thread-safe.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "pointsman/status.h"
#include "tokenizer/regex.h"

namespace pointsman {

// Pieces of a text. `text` points into `storage` or into the caller's text.
struct Pieces {
  struct Span {
    uint32_t begin;
    uint32_t end;
  };
  std::string_view text;
  std::string storage;
  std::vector<Span> spans;
  std::vector<Span> scratch;

  std::string_view operator[](size_t i) const { return text.substr(spans[i].begin, spans[i].end - spans[i].begin); }
};

class PreTokenizer {
 public:
  // `section` may be null or JSON null: one piece. kUnsupported names an unknown type.
  static Result<PreTokenizer> parse(const Json* section);

  // The last step is ByteLevel: pieces are the bytes themselves, still to be read as the byte-level alphabet.
  bool ends_in_byte_level() const { return ends_in_byte_level_; }
  // Cuts `text` (valid UTF-8, at most 1 GiB), which must outlive `pieces`. `at_start`: it begins where the whole input begins.
  Status split(std::string_view text, bool at_start, RegexMatcher& matcher, Pieces& pieces) const;
  uint64_t memory_bytes() const;

 private:
  enum class Kind { kRegex, kDigits, kPunctuation, kWhitespaceSplit, kByteLevel, kMetaspace };
  enum class Behavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };
  enum class Prepend { kAlways, kFirst, kNever };
  struct Step {
    Kind kind;
    Behavior behavior = Behavior::kIsolated;
    bool invert = false;
    std::unique_ptr<Regex> regex;   // kRegex; kByteLevel with use_regex
    bool add_prefix_space = false;  // kByteLevel
    bool map_bytes = false;         // kByteLevel that is not last: write the alphabet out
    std::string replacement;        // kMetaspace
    Prepend prepend = Prepend::kAlways;
    bool split = true;
  };
  class Cutter;

  Status add(const Json& component);
  Status add_metaspace(const Json& component);
  Status run(const Step& step, bool at_start, size_t limit, RegexMatcher& matcher, Pieces& pieces) const;

  std::vector<Step> steps_;
  bool ends_in_byte_level_ = false;
};

}  // namespace pointsman
