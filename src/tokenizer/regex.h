// SPDX-License-Identifier: Apache-2.0
//
// Regular expressions of tokenizer files (PCRE2 with its just-in-time compiler inside; no other file includes it).
//
// The files are written for Oniguruma's Ruby syntax, so patterns are translated first:
//   \s \S    Unicode White_Space (PCRE2's own \s adds U+180E)
//   \w \W    Alphabetic, M, Nd, Pc and six Latin-1 numbers, as Oniguruma has it
//   \h \H    hexadecimal digit
//   ^ $      at every line
//   (?m)     dot matches newline
//   X{,n}    X{0,n};  X{m,n}+ repeats X{m,n} and is not possessive
//   \uHHHH   that code point
// What has no counterpart (class intersection and nesting, recursion, call-outs, verbs) is kUnsupported, by name.
// Characters that are newer than PCRE2's Unicode tables are matched as an older character of the same general category.
//
// Hostile patterns: compile() bounds their size; matching is bounded by PCRE2's match limit per attempt and by the thread's CPU
// time per matcher (2 s + 2 us per byte searched), and then fails by name. A real tokenizer needs some 20 ns per byte.
//
// A Regex is immutable and thread-safe; a RegexMatcher is one thread's scratch.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "pointsman/status.h"

namespace pointsman {

class Regex {
 public:
  // kUnsupported for syntax that is refused or that PCRE2 does not accept; the message holds the pattern and the place.
  static Result<Regex> compile(std::string_view pattern);
  // The pattern that matches exactly `text`.
  static std::string escape(std::string_view text);

  uint64_t memory_bytes() const;
  const std::string& pattern() const { return pattern_; }

 private:
  friend class RegexMatcher;
  Regex() = default;
  std::shared_ptr<const void> code_;  // shared: copies of a compiled step need no second compilation
  std::string pattern_;
};

class RegexMatcher {
 public:
  RegexMatcher();
  ~RegexMatcher();
  RegexMatcher(const RegexMatcher&) = delete;
  RegexMatcher& operator=(const RegexMatcher&) = delete;

  // The text to search, look-behind included. It must stay alive. REQUIRES: valid UTF-8.
  void set_subject(std::string_view subject);
  // The first match that starts at or after `from`; false when there is none, or when status() is a failure.
  // An empty match right where the previous one ended is passed over, so that loops end.
  // REQUIRES: `from` is a character boundary.
  bool next(const Regex& regex, size_t from, size_t& begin, size_t& end);
  const Status& status() const { return status_; }

 private:
  bool fail(const Regex& regex, int code);
  bool out_of_time(const Regex& regex);

  void* match_data_ = nullptr;
  void* context_ = nullptr;
  std::string_view subject_;
  std::string shadow_;  // the subject with stand-ins for newer characters; empty when there are none
  size_t window_ = 0;
  size_t last_end_ = SIZE_MAX;
  uint32_t calls_ = 0;
  int64_t cpu_limit_ns_ = 2'000'000'000;
  int64_t cpu_start_ns_ = -1;
  Status status_;
};

}  // namespace pointsman
