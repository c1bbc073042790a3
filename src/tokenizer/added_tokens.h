// SPDX-License-Identifier: Apache-2.0
//
// Tokens that are found in the text before anything else happens to it: control tokens ("special") and chat markup.
//
// Matching is leftmost-longest. Tokens with normalized=false are sought in the raw text; those with normalized=true in each
// normalised piece between them, by their own normalised content.
//
// Immutable and thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "pointsman/status.h"

namespace pointsman {

struct AddedToken {
  int32_t id = -1;
  std::string content;
  bool special = false;
  bool normalized = false;
  bool lstrip = false;       // takes the white space before it along
  bool rstrip = false;       // and after it
  bool single_word = false;  // only where no word character touches it
};

// A part of the text: an added token (id >= 0) or text to encode.
struct Segment {
  size_t begin;
  size_t end;
  int32_t id;
};

// One set of contents to look for.
class TokenMatcher {
 public:
  struct Pattern {
    std::string text;
    const AddedToken* token;
  };
  // Empty patterns are dropped; of two equal ones the first counts.
  void build(std::vector<Pattern> patterns);
  bool empty() const { return patterns_.empty(); }
  // Appends segments that cover `text`. Special tokens stay text when `parse_special` is false.
  void split(std::string_view text, bool parse_special, std::vector<Segment>& out) const;
  uint64_t memory_bytes() const;

 private:
  const Pattern* longest_at(std::string_view text) const;

  std::vector<Pattern> patterns_;     // sorted by text
  std::vector<uint32_t> first_byte_;  // where the patterns of each first byte begin; 257 entries
};

}  // namespace pointsman
