// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/added_tokens.h"

#include <algorithm>

#include "tokenizer/unicode.h"
#include "tokenizer/utf8.h"

namespace pointsman {
namespace {

bool ends_with_word(std::string_view text) {
  if (text.empty()) return false;
  size_t at = utf8_last_start(text);
  return is_word_character(utf8_decode_valid(text, at));
}

bool starts_with_word(std::string_view text) {
  size_t at = 0;
  return !text.empty() && is_word_character(utf8_decode_valid(text, at));
}

// Start of the white space that ends `text`, but not before `floor`.
size_t space_before(std::string_view text, size_t floor) {
  size_t start = text.size();
  while (start > floor) {
    const size_t last = utf8_last_start(text.substr(0, start));
    size_t at = last;
    if (!is_white_space(utf8_decode_valid(text, at))) break;
    start = last;
  }
  return std::max(start, floor);
}

size_t space_after(std::string_view text, size_t from) {
  while (from < text.size()) {
    size_t next = from;
    if (!is_white_space(utf8_decode_valid(text, next))) break;
    from = next;
  }
  return from;
}

}  // namespace

void TokenMatcher::build(std::vector<Pattern> patterns) {
  std::erase_if(patterns, [](const Pattern& p) { return p.text.empty(); });
  std::stable_sort(patterns.begin(), patterns.end(), [](const Pattern& a, const Pattern& b) { return a.text < b.text; });
  patterns.erase(
      std::unique(patterns.begin(), patterns.end(), [](const Pattern& a, const Pattern& b) { return a.text == b.text; }),
      patterns.end());
  patterns.shrink_to_fit();
  patterns_ = std::move(patterns);
  first_byte_.assign(257, 0);
  for (const Pattern& p : patterns_) ++first_byte_[static_cast<unsigned char>(p.text[0]) + size_t{1}];
  for (size_t b = 1; b < first_byte_.size(); ++b) first_byte_[b] += first_byte_[b - 1];
}

const TokenMatcher::Pattern* TokenMatcher::longest_at(std::string_view text) const {
  const auto first = static_cast<unsigned char>(text[0]);
  auto low = patterns_.begin() + first_byte_[first];
  auto high = patterns_.begin() + first_byte_[first + size_t{1}];
  const Pattern* best = nullptr;
  // All patterns in [low, high) begin with text[0, depth).
  for (size_t depth = 1; low != high; ++depth) {
    if (low->text.size() == depth) {
      best = &*low;
      ++low;
    }
    if (depth >= text.size()) break;
    const auto byte = static_cast<unsigned char>(text[depth]);
    const auto at = [depth](const Pattern& p) { return static_cast<unsigned char>(p.text[depth]); };
    low = std::lower_bound(low, high, byte, [&](const Pattern& p, unsigned char b) { return at(p) < b; });
    high = std::upper_bound(low, high, byte, [&](unsigned char b, const Pattern& p) { return b < at(p); });
  }
  return best;
}

void TokenMatcher::split(std::string_view text, bool parse_special, std::vector<Segment>& out) const {
  size_t done = 0;
  for (size_t i = 0; i < text.size() && !patterns_.empty();) {
    const auto b = static_cast<unsigned char>(text[i]);
    const Pattern* found = first_byte_[b] == first_byte_[b + size_t{1}] ? nullptr : longest_at(text.substr(i));
    if (found == nullptr) {
      ++i;
      continue;
    }
    size_t begin = i;
    size_t end = i + found->text.size();
    // A match that is refused is not tried again in part.
    i = end;
    const AddedToken& token = *found->token;
    if (token.special && !parse_special) continue;
    if (token.single_word && (ends_with_word(text.substr(0, begin)) || starts_with_word(text.substr(end)))) continue;
    if (token.lstrip) begin = space_before(text.substr(0, begin), std::min(done, begin));
    if (token.rstrip) end = space_after(text, end);
    if (done < begin) out.push_back({done, begin, -1});
    out.push_back({begin, end, token.id});
    done = end;
  }
  if (done < text.size()) out.push_back({done, text.size(), -1});
}

uint64_t TokenMatcher::memory_bytes() const {
  uint64_t total = patterns_.capacity() * sizeof(Pattern) + first_byte_.capacity() * sizeof(uint32_t);
  for (const Pattern& p : patterns_) total += p.text.capacity() + 1;
  return total;
}

}  // namespace pointsman
