// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <time.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include "base/log.h"
#include "tokenizer/utf8.h"

namespace pointsman {
namespace {

constexpr size_t kMaxPatternBytes = 16384;
// Per attempt, with 16 more for every byte of the subject: a run of a million spaces is legitimate and takes one step each.
constexpr uint32_t kMatchLimit = 10'000'000;
constexpr uint32_t kHeapLimitKib = 16384;

struct NewerCharacters {
  uint32_t first;
  uint32_t last;
  uint32_t stand_in;
};
constexpr NewerCharacters kNewer[] = {
#include "tokenizer/newer_characters.inc"
};

uint32_t stand_in(uint32_t cp) {
  const auto* it = std::upper_bound(std::begin(kNewer), std::end(kNewer), cp,
                                    [](uint32_t value, const NewerCharacters& range) { return value < range.first; });
  if (it == std::begin(kNewer)) return cp;
  --it;
  return cp <= it->last ? it->stand_in : cp;
}

int64_t thread_cpu_ns() {
  timespec t;
  if (::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t) != 0) return 0;
  return t.tv_sec * 1'000'000'000LL + t.tv_nsec;
}

// Ruby syntax in, PCRE2 syntax out.
class Translator {
 public:
  explicit Translator(std::string_view pattern) : in_(pattern) {}

  Status run() {
    while (at_ < in_.size()) {
      const char c = in_[at_];
      if (c == '\\') {
        PM_RETURN_IF_ERROR(escape(false));
      } else if (c == '[') {
        PM_RETURN_IF_ERROR(character_class());
      } else if (c == '(') {
        PM_RETURN_IF_ERROR(group());
      } else if (c == ')') {
        if (groups_.empty()) return refuse("an unmatched ')'");
        atom_ = groups_.back();
        groups_.pop_back();
        take(1);
      } else if (c == '{') {
        interval();
      } else if (std::strchr("*+?|^$", c) != nullptr) {
        take(1);
      } else {
        atom_ = out_.size();
        take(1);
        while (at_ < in_.size() && is_utf8_continuation(in_[at_])) take(1);
      }
    }
    return ok_status();
  }
  std::string result() { return std::move(out_); }

 private:
  static constexpr std::string_view kWord = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}";

  void take(size_t n) {
    out_ += in_.substr(at_, n);
    at_ += n;
  }
  Status refuse(std::string_view what) const {
    return error(StatusCode::kUnsupported, "regular expression {}: {} at byte {} is not supported", json_like(in_), what, at_);
  }
  static std::string json_like(std::string_view text) {
    return "\"" + std::string(text.substr(0, 200)) + (text.size() > 200 ? "...\"" : "\"");
  }

  Status escape(bool in_class) {
    if (at_ + 1 >= in_.size()) return refuse("a trailing backslash");
    if (!in_class) atom_ = out_.size();
    const char c = in_[at_ + 1];
    const auto replace = [&](std::string_view text) {
      out_ += text;
      at_ += 2;
      return ok_status();
    };
    switch (c) {
      case 's': return replace("\\p{White_Space}");
      case 'S': return replace("\\P{White_Space}");
      case 'w': return replace(in_class ? std::string(kWord) : format("[{}]", kWord));
      case 'W':
        if (in_class) return refuse("\\W inside a class");
        return replace(format("[^{}]", kWord));
      case 'h': return replace(in_class ? "0-9a-fA-F" : "[0-9a-fA-F]");
      case 'H':
        if (in_class) return refuse("\\H inside a class");
        return replace("[^0-9a-fA-F]");
      case 'u': {
        uint32_t cp = 0;
        size_t digits = 0;
        for (; digits < 4 && at_ + 2 + digits < in_.size(); ++digits) {
          const char d = in_[at_ + 2 + digits];
          const bool hex = (d >= '0' && d <= '9') || (d >= 'a' && d <= 'f') || (d >= 'A' && d <= 'F');
          if (!hex) break;
          cp = cp * 16 + static_cast<uint32_t>(d <= '9' ? d - '0' : (d | 0x20) - 'a' + 10);
        }
        if (digits != 4) return refuse("\\u without four digits");
        out_ += format("\\x{{{:x}}}", cp);
        at_ += 6;
        return ok_status();
      }
      case 'x':
        if (at_ + 2 < in_.size() && in_[at_ + 2] >= '8' && in_[at_ + 2] != '{') return refuse("a byte above 7F");
        take(2);
        return ok_status();
      case 'g':
      case 'k':
      case 'C':
      case 'N': return refuse(format("\\{}", c));
      case 'p':
      case 'P': {
        const size_t close = in_.find('}', at_);
        if (at_ + 2 < in_.size() && in_[at_ + 2] == '{' && close != std::string_view::npos) {
          take(close + 1 - at_);
        } else {
          take(2);
        }
        return ok_status();
      }
      default: {
        take(2);
        while (at_ < in_.size() && is_utf8_continuation(in_[at_])) take(1);
        return ok_status();
      }
    }
  }

  Status character_class() {
    atom_ = out_.size();
    take(1);
    if (at_ < in_.size() && in_[at_] == '^') take(1);
    if (at_ < in_.size() && in_[at_] == ']') {
      out_ += "\\]";
      ++at_;
    }
    while (true) {
      if (at_ >= in_.size()) return refuse("a class without ']'");
      const char c = in_[at_];
      if (c == ']') {
        take(1);
        return ok_status();
      }
      if (c == '\\') {
        PM_RETURN_IF_ERROR(escape(true));
      } else if (c == '[') {
        const size_t close = in_.find(":]", at_);
        if (at_ + 1 >= in_.size() || in_[at_ + 1] != ':' || close == std::string_view::npos)
          return refuse("a class in a class");
        take(close + 2 - at_);
      } else if (c == '&' && at_ + 1 < in_.size() && in_[at_ + 1] == '&') {
        return refuse("class intersection");
      } else {
        take(1);
      }
    }
  }

  Status group() {
    groups_.push_back(out_.size());
    if (at_ + 1 < in_.size() && in_[at_ + 1] == '*') return refuse("a verb");
    take(1);
    if (at_ >= in_.size() || in_[at_] != '?') return ok_status();
    take(1);
    if (at_ >= in_.size()) return refuse("an unfinished group");
    const char c = in_[at_];
    if (c == ':' || c == '=' || c == '!' || c == '>') return take(1), ok_status();
    if (c == '<') return take(2), ok_status();  // look-behind or a name; PCRE2 checks the rest
    while (at_ < in_.size() && std::strchr("imx-", in_[at_]) != nullptr) {
      out_ += in_[at_] == 'm' ? 's' : in_[at_];
      ++at_;
    }
    if (at_ < in_.size() && in_[at_] == ')') {
      take(1);
      groups_.pop_back();
      return ok_status();
    }
    if (at_ < in_.size() && in_[at_] == ':') return take(1), ok_status();
    return refuse("this kind of group");
  }

  // {n} {n,} {,m} {n,m}; anything else is literal in both syntaxes.
  void interval() {
    size_t i = at_ + 1;
    const auto digits = [&] {
      const size_t begin = i;
      while (i < in_.size() && in_[i] >= '0' && in_[i] <= '9') ++i;
      return in_.substr(begin, i - begin);
    };
    const std::string_view low = digits();
    std::string_view high;
    bool comma = false;
    if (i < in_.size() && in_[i] == ',') {
      comma = true;
      ++i;
      high = digits();
    }
    if (i >= in_.size() || in_[i] != '}' || (low.empty() && high.empty())) {
      atom_ = out_.size();
      out_ += "\\{";
      ++at_;
      return;
    }
    out_ += '{';
    out_ += low.empty() ? "0" : low;
    if (comma) out_ += ',';
    out_ += high;
    out_ += '}';
    at_ = i + 1;
    if (at_ < in_.size() && in_[at_] == '+') {
      out_.insert(atom_, "(?:");
      out_ += ")+";
      ++at_;
    }
  }

  std::string_view in_;
  size_t at_ = 0;
  std::string out_;
  size_t atom_ = 0;             // where the latest atom begins in out_
  std::vector<size_t> groups_;  // where the open groups begin in out_
};

}  // namespace

std::string Regex::escape(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (static_cast<unsigned char>(c) < 0x80 && std::strchr("\\^$.[]|()?*+{}-&~#", c) != nullptr && c != '\0') out += '\\';
    out += c;
  }
  return out;
}

Result<Regex> Regex::compile(std::string_view pattern) {
  if (pattern.size() > kMaxPatternBytes) {
    return error(StatusCode::kUnsupported, "regular expression of {} bytes, more than {}", pattern.size(), kMaxPatternBytes);
  }
  if (utf8_valid_prefix(pattern) != pattern.size()) return error(StatusCode::kCorrupt, "regular expression is not UTF-8");
  Translator translator(pattern);
  PM_RETURN_IF_ERROR(translator.run());
  const std::string translated = translator.result();

  std::unique_ptr<pcre2_compile_context, decltype(&pcre2_compile_context_free)> context(pcre2_compile_context_create(nullptr),
                                                                                        &pcre2_compile_context_free);
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  pcre2_set_parens_nest_limit(context.get(), 100);
  int code = 0;
  PCRE2_SIZE where = 0;
  pcre2_code* compiled = pcre2_compile(
      reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
      PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_USE_OFFSET_LIMIT | PCRE2_NEVER_BACKSLASH_C, &code, &where, context.get());
  if (compiled == nullptr) {
    PCRE2_UCHAR text[160] = {};
    pcre2_get_error_message(code, text, sizeof text);
    return error(StatusCode::kUnsupported, "regular expression \"{}\": {} (at {} of its PCRE2 form)", pattern,
                 reinterpret_cast<const char*>(text), where);
  }
  // Without JIT memory (some hardened systems) the interpreter does the same work, five times slower.
  pcre2_jit_compile(compiled, PCRE2_JIT_COMPLETE);
  Regex regex;
  regex.code_ = std::shared_ptr<const void>(compiled, [](void* p) { pcre2_code_free(static_cast<pcre2_code*>(p)); });
  regex.pattern_ = std::string(pattern);
  return regex;
}

uint64_t Regex::memory_bytes() const {
  if (code_ == nullptr) return 0;
  const auto* code = static_cast<const pcre2_code*>(code_.get());
  size_t size = 0;
  size_t jit_size = 0;
  pcre2_pattern_info(code, PCRE2_INFO_SIZE, &size);
  pcre2_pattern_info(code, PCRE2_INFO_JITSIZE, &jit_size);
  return size + jit_size + pattern_.capacity();
}

RegexMatcher::RegexMatcher() {
  match_data_ = pcre2_match_data_create(1, nullptr);
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  pcre2_set_heap_limit(context, kHeapLimitKib);
  context_ = context;
}

RegexMatcher::~RegexMatcher() {
  pcre2_match_data_free(static_cast<pcre2_match_data*>(match_data_));
  pcre2_match_context_free(static_cast<pcre2_match_context*>(context_));
}

void RegexMatcher::set_subject(std::string_view subject) {
  subject_ = subject;
  shadow_.clear();
  last_end_ = SIZE_MAX;
  cpu_limit_ns_ += 2000LL * static_cast<int64_t>(subject.size());
  const auto steps = static_cast<uint32_t>(std::min<uint64_t>(kMatchLimit + 16 * uint64_t{subject.size()}, UINT32_MAX));
  pcre2_set_match_limit(static_cast<pcre2_match_context*>(context_), steps);
  pcre2_set_depth_limit(static_cast<pcre2_match_context*>(context_), steps);
  // One call tries at most this many starting points, so that the clock is looked at between calls.
  window_ = std::clamp<size_t>((size_t{64} << 20) / (subject.size() + 1), 64, 4096);
  for (size_t i = 0; i < subject.size(); ++i) {
    // All newer characters begin with one of these bytes.
    const auto b = static_cast<unsigned char>(subject[i]);
    if (b < 0xE0 || (b > 0xE3 && b != 0xEA && b != 0xF0)) continue;
    size_t end = i;
    const uint32_t cp = utf8_decode_valid(subject, end);
    const uint32_t other = stand_in(cp);
    if (other != cp) {
      if (shadow_.empty()) shadow_ = std::string(subject);
      std::string text;
      append_utf8(text, other);
      shadow_.replace(i, end - i, text);
    }
    i = end - 1;
  }
}

bool RegexMatcher::fail(const Regex& regex, int code) {
  PCRE2_UCHAR text[160] = {};
  pcre2_get_error_message(code, text, sizeof text);
  status_ = error(StatusCode::kUnsupported, "regular expression \"{}\" on {} bytes of text: {}", regex.pattern(),
                  subject_.size(), reinterpret_cast<const char*>(text));
  return false;
}

bool RegexMatcher::out_of_time(const Regex& regex) {
  const int64_t now = thread_cpu_ns();
  if (cpu_start_ns_ < 0) cpu_start_ns_ = now;
  if (now - cpu_start_ns_ <= cpu_limit_ns_) return false;
  status_ = error(StatusCode::kDeadlineExceeded, "regular expression \"{}\" used up the {} ms of this text", regex.pattern(),
                  cpu_limit_ns_ / 1'000'000);
  return true;
}

bool RegexMatcher::next(const Regex& regex, size_t from, size_t& begin, size_t& end) {
  if (!status_.ok()) return false;
  const auto* code = static_cast<const pcre2_code*>(regex.code_.get());
  auto* data = static_cast<pcre2_match_data*>(match_data_);
  auto* context = static_cast<pcre2_match_context*>(context_);
  const std::string_view text = shadow_.empty() ? subject_ : std::string_view(shadow_);
  while (from <= text.size()) {
    if ((++calls_ & 63) == 0 && out_of_time(regex)) return false;
    const size_t limit = from + window_;
    pcre2_set_offset_limit(context, limit);
    int rc = pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from, PCRE2_NO_UTF_CHECK, data, context);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) {
      rc = pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                       data, context);
    }
    if (rc == PCRE2_ERROR_NOMATCH) {
      if (limit >= text.size()) return false;
      from = limit + 1;
      while (from < text.size() && is_utf8_continuation(text[from])) ++from;
      continue;
    }
    if (rc < 0) return fail(regex, rc);
    const PCRE2_SIZE* span = pcre2_get_ovector_pointer(data);
    begin = span[0];
    end = span[1];
    // \K in a look-around can report an end before the start.
    if (end < begin) return fail(regex, PCRE2_ERROR_INTERNAL);
    if (begin == end && begin == last_end_) {
      from = begin + 1;
      while (from < text.size() && is_utf8_continuation(text[from])) ++from;
      continue;
    }
    last_end_ = end;
    return true;
  }
  return false;
}

}  // namespace pointsman
