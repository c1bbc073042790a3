// SPDX-License-Identifier: Apache-2.0
#include "doctor/version.h"

#include <algorithm>
#include <cctype>

#include "doctor/text.h"

namespace pointsman::doctor {
namespace {

constexpr size_t kMaxParts = 12;
constexpr long kAlpha = -3'000'000, kBeta = -2'000'000, kRc = -1'000'000;

std::vector<long> parse(std::string_view text) {
  std::vector<long> parts;
  const std::string low = lower(text.substr(0, text.find('+')));
  for (size_t at = 0; at < low.size() && parts.size() < kMaxParts;) {
    const auto c = static_cast<unsigned char>(low[at]);
    size_t end = at;
    if (std::isdigit(c)) {
      long n = 0;
      for (; end < low.size() && std::isdigit(static_cast<unsigned char>(low[end])); ++end) {
        n = std::min(n * 10 + (low[end] - '0'), 999'999L);
      }
      parts.push_back(n);
    } else if (std::isalpha(c)) {
      while (end < low.size() && std::isalpha(static_cast<unsigned char>(low[end]))) ++end;
      const std::string_view word = std::string_view(low).substr(at, end - at);
      long base = 0;
      bool known = true;
      if (word == "alpha" || word == "a") {
        base = kAlpha;
      } else if (word == "beta" || word == "b") {
        base = kBeta;
      } else if (word == "rc") {
        base = kRc;
      } else if (word == "post" || word == "p") {
        base = 0;
      } else {
        known = word == "v";
      }
      if (!known) break;
      if (word != "v") {
        // "rc1" and "beta.2": the number belongs to the word.
        size_t digits = end;
        if (digits < low.size() && low[digits] == '.' && word != "post") ++digits;
        long n = 0;
        size_t stop = digits;
        for (; stop < low.size() && std::isdigit(static_cast<unsigned char>(low[stop])); ++stop) {
          n = std::min(n * 10 + (low[stop] - '0'), 999'999L);
        }
        if (stop > digits) end = stop;
        parts.push_back(base + n);
      }
    } else {
      ++end;
    }
    at = end;
  }
  return parts;
}

}  // namespace

Version::Version(std::string_view text) : text_(printable(trim(text), 64)), parts_(parse(trim(text))) {}

Version Version::base() const {
  const std::string low = lower(text_);
  return Version(std::string_view(text_).substr(0, std::min(low.find(".post"), low.find('+'))));
}

int Version::compare(const Version& other) const {
  const size_t n = std::max(parts_.size(), other.parts_.size());
  for (size_t i = 0; i < n; ++i) {
    const long a = i < parts_.size() ? parts_[i] : 0, b = i < other.parts_.size() ? other.parts_[i] : 0;
    if (a != b) return a < b ? -1 : 1;
  }
  return 0;
}

bool Version::matches(std::string_view pattern) const {
  const std::string low = lower(pattern);
  std::string_view wanted = low;
  if (wanted.ends_with(".x")) wanted.remove_suffix(2);
  const std::vector<long> prefix = parse(wanted);
  return !prefix.empty() && prefix.size() <= parts_.size() && std::equal(prefix.begin(), prefix.end(), parts_.begin());
}

}  // namespace pointsman::doctor
