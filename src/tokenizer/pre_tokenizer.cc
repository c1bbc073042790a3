// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/pre_tokenizer.h"

#include <algorithm>

#include "base/log.h"
#include "tokenizer/byte_level.h"
#include "tokenizer/spec.h"
#include "tokenizer/unicode.h"
#include "tokenizer/utf8.h"

namespace pointsman {
namespace {

// GPT-2's, which ByteLevel with use_regex applies.
constexpr std::string_view kByteLevelPattern = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view kWhitespacePattern =
    R"([\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\p{Join_Control}]+|[^\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\p{Join_Control}\s]+)";
constexpr size_t kMaxText = size_t{1} << 31;

}  // namespace

// Turns the sequence of matches and gaps of one piece into spans.
class PreTokenizer::Cutter {
 public:
  Cutter(const Step& step, std::vector<Pieces::Span>& out) : behavior_(step.behavior), invert_(step.invert), out_(out) {}

  void begin_piece() {
    first_ = out_.size();
    previous_match_ = false;
  }
  void event(size_t begin, size_t end, bool is_match) {
    if (invert_) is_match = !is_match;
    const Pieces::Span span{static_cast<uint32_t>(begin), static_cast<uint32_t>(end)};
    const bool has_last = out_.size() > first_;
    switch (behavior_) {
      case Behavior::kRemoved:
        if (!is_match) push(span);
        return;
      case Behavior::kIsolated: push(span); return;
      case Behavior::kContiguous:
        if (is_match == previous_match_ && has_last) {
          out_.back().end = span.end;
        } else {
          push(span);
        }
        break;
      case Behavior::kMergedWithPrevious:
        if (is_match && !previous_match_ && has_last) {
          out_.back().end = span.end;
        } else {
          push(span);
        }
        break;
      case Behavior::kMergedWithNext: pending_.push_back({span, is_match}); return;
    }
    previous_match_ = is_match;
  }
  void end_piece() {
    if (behavior_ != Behavior::kMergedWithNext) return;
    // A match joins the event after it unless that one is a match as well: decided from the end.
    bool next_match = false;
    size_t kept = pending_.size();
    for (size_t i = pending_.size(); i-- > 0;) {
      const bool is_match = pending_[i].is_match;
      if (is_match && !next_match && kept < pending_.size()) {
        pending_[kept].span.begin = pending_[i].span.begin;
      } else {
        pending_[--kept] = pending_[i];
      }
      next_match = is_match;
    }
    for (size_t i = kept; i < pending_.size(); ++i) push(pending_[i].span);
    pending_.clear();
  }

 private:
  struct Event {
    Pieces::Span span;
    bool is_match;
  };
  void push(Pieces::Span span) {
    if (span.begin < span.end) out_.push_back(span);
  }
  Behavior behavior_;
  bool invert_;
  std::vector<Pieces::Span>& out_;
  size_t first_ = 0;
  bool previous_match_ = false;
  std::vector<Event> pending_;
};

Result<PreTokenizer> PreTokenizer::parse(const Json* section) {
  PreTokenizer pre_tokenizer;
  if (section != nullptr && !section->is_null()) PM_RETURN_IF_ERROR(pre_tokenizer.add(*section));
  std::vector<Step>& steps = pre_tokenizer.steps_;
  for (size_t i = 0; i < steps.size(); ++i) steps[i].map_bytes = steps[i].kind == Kind::kByteLevel && i + 1 < steps.size();
  pre_tokenizer.ends_in_byte_level_ = !steps.empty() && steps.back().kind == Kind::kByteLevel;
  return pre_tokenizer;
}

Status PreTokenizer::add(const Json& component) {
  PM_ASSIGN_OR_RETURN(const std::string type, spec::type_of(component, "pre_tokenizer"));
  if (type == "Sequence") {
    PM_ASSIGN_OR_RETURN(const Json::Array* parts, spec::get_array(component, "pretokenizers"));
    for (const Json& part : *parts) PM_RETURN_IF_ERROR(add(part));
    return ok_status();
  }
  if (type == "Metaspace") return add_metaspace(component);
  Step step{.kind = Kind::kRegex};
  std::string pattern;
  if (type == "Split") {
    PM_ASSIGN_OR_RETURN(spec::Pattern p, spec::get_pattern(component));
    pattern = p.is_regex ? p.text : Regex::escape(p.text);
    PM_ASSIGN_OR_RETURN(step.invert, spec::get_bool(component, "invert", false));
  } else if (type == "ByteLevel") {
    step.kind = Kind::kByteLevel;
    PM_ASSIGN_OR_RETURN(step.add_prefix_space, spec::get_bool(component, "add_prefix_space", true));
    PM_ASSIGN_OR_RETURN(const bool use_regex, spec::get_bool(component, "use_regex", true));
    if (use_regex) pattern = kByteLevelPattern;
  } else if (type == "Whitespace") {
    pattern = kWhitespacePattern;
    step.invert = true;
    step.behavior = Behavior::kRemoved;
  } else if (type == "WhitespaceSplit") {
    step.kind = Kind::kWhitespaceSplit;
    step.behavior = Behavior::kRemoved;
  } else if (type == "Digits") {
    step.kind = Kind::kDigits;
    PM_ASSIGN_OR_RETURN(const bool individual, spec::get_bool(component, "individual_digits", false));
    step.behavior = individual ? Behavior::kIsolated : Behavior::kContiguous;
  } else if (type == "CharDelimiterSplit") {
    PM_ASSIGN_OR_RETURN(const std::string delimiter, spec::get_string(component, "delimiter"));
    if (delimiter.empty()) return error(StatusCode::kCorrupt, "tokenizer.json: CharDelimiterSplit without its character");
    pattern = Regex::escape(delimiter);
    step.behavior = Behavior::kRemoved;
  } else if (type == "Punctuation") {
    step.kind = Kind::kPunctuation;
  } else {
    return error(StatusCode::kUnsupported, "tokenizer.json: pre_tokenizer \"{}\" is not supported", type);
  }
  if (type == "Split" || (type == "Punctuation" && component.find("behavior") != nullptr)) {
    PM_ASSIGN_OR_RETURN(const std::string name, spec::get_string(component, "behavior"));
    if (name == "Removed") {
      step.behavior = Behavior::kRemoved;
    } else if (name == "Isolated") {
      step.behavior = Behavior::kIsolated;
    } else if (name == "MergedWithPrevious") {
      step.behavior = Behavior::kMergedWithPrevious;
    } else if (name == "MergedWithNext") {
      step.behavior = Behavior::kMergedWithNext;
    } else if (name == "Contiguous") {
      step.behavior = Behavior::kContiguous;
    } else {
      return error(StatusCode::kUnsupported, "tokenizer.json: split behavior \"{}\" is not supported", name);
    }
  }
  if (step.kind == Kind::kRegex || !pattern.empty()) {
    PM_ASSIGN_OR_RETURN(Regex regex, Regex::compile(pattern));
    step.regex = std::make_unique<Regex>(std::move(regex));
  }
  steps_.push_back(std::move(step));
  return ok_status();
}

Status PreTokenizer::add_metaspace(const Json& component) {
  Step step{.kind = Kind::kMetaspace, .behavior = Behavior::kMergedWithNext};
  PM_ASSIGN_OR_RETURN(step.replacement, spec::get_string(component, "replacement"));
  if (step.replacement.empty() || utf8_length(step.replacement) != 1) {
    return error(StatusCode::kCorrupt, "tokenizer.json: Metaspace replacement is not one character");
  }
  PM_ASSIGN_OR_RETURN(step.split, spec::get_bool(component, "split", true));
  if (component.find("prepend_scheme") != nullptr) {
    PM_ASSIGN_OR_RETURN(const std::string scheme, spec::get_string(component, "prepend_scheme"));
    if (scheme == "always") {
      step.prepend = Prepend::kAlways;
    } else if (scheme == "first") {
      step.prepend = Prepend::kFirst;
    } else if (scheme == "never") {
      step.prepend = Prepend::kNever;
    } else {
      return error(StatusCode::kUnsupported, "tokenizer.json: prepend_scheme \"{}\" is not supported", scheme);
    }
  }
  // The older spelling.
  PM_ASSIGN_OR_RETURN(const bool add_prefix_space, spec::get_bool(component, "add_prefix_space", true));
  if (!add_prefix_space) step.prepend = Prepend::kNever;
  steps_.push_back(std::move(step));
  return ok_status();
}

Status PreTokenizer::split(std::string_view text, bool at_start, RegexMatcher& matcher, Pieces& pieces) const {
  pieces.text = text;
  pieces.spans.clear();
  if (text.empty()) return ok_status();
  pieces.spans.push_back({0, static_cast<uint32_t>(text.size())});
  // A chain of cuts and prefixes doubles the text with each step; no known file does so more than once.
  const size_t limit = std::min(kMaxText, (size_t{64} << 10) + 64 * text.size());
  for (const Step& step : steps_) PM_RETURN_IF_ERROR(run(step, at_start, limit, matcher, pieces));
  return ok_status();
}

Status PreTokenizer::run(const Step& step, bool at_start, size_t limit, RegexMatcher& matcher, Pieces& pieces) const {
  // Steps that change the text write all pieces anew, one after the other.
  const auto rewrite = [&](auto&& write) -> Status {
    std::string fresh;
    fresh.reserve(pieces.text.size() + pieces.spans.size());
    for (size_t i = 0; i < pieces.spans.size(); ++i) {
      const size_t begin = fresh.size();
      write(i, pieces[i], fresh);
      if (fresh.size() > limit) {
        return error(StatusCode::kInvalidArgument, "tokenizer.json: the pre-tokenizer makes more than {} bytes of this text", limit);
      }
      pieces.spans[i] = {static_cast<uint32_t>(begin), static_cast<uint32_t>(fresh.size())};
    }
    pieces.storage = std::move(fresh);
    pieces.text = pieces.storage;
    return ok_status();
  };

  if (step.kind == Kind::kByteLevel && step.add_prefix_space) {
    PM_RETURN_IF_ERROR(rewrite([](size_t, std::string_view piece, std::string& out) {
      if (!piece.starts_with(' ')) out += ' ';
      out += piece;
    }));
  } else if (step.kind == Kind::kMetaspace) {
    PM_RETURN_IF_ERROR(rewrite([&](size_t i, std::string_view piece, std::string& out) {
      const bool starts = piece.starts_with(' ') || piece.starts_with(step.replacement);
      if (!starts && (step.prepend == Prepend::kAlways || (step.prepend == Prepend::kFirst && at_start && i == 0))) {
        out += step.replacement;
      }
      for (const char c : piece) {
        if (c == ' ') {
          out += step.replacement;
        } else {
          out += c;
        }
      }
    }));
  }

  const bool cuts = step.regex != nullptr || step.kind == Kind::kDigits || step.kind == Kind::kPunctuation ||
                    step.kind == Kind::kWhitespaceSplit || (step.kind == Kind::kMetaspace && step.split);
  if (cuts) {
    pieces.scratch.clear();
    Cutter cutter(step, pieces.scratch);
    for (const Pieces::Span span : pieces.spans) {
      const std::string_view piece = pieces.text.substr(span.begin, span.end - span.begin);
      cutter.begin_piece();
      size_t done = 0;
      if (step.regex != nullptr) {
        matcher.set_subject(piece);
        size_t begin = 0;
        size_t end = 0;
        for (size_t at = 0; matcher.next(*step.regex, at, begin, end); at = end) {
          if (done != begin) cutter.event(span.begin + done, span.begin + begin, false);
          cutter.event(span.begin + begin, span.begin + end, true);
          done = end;
        }
        PM_RETURN_IF_ERROR(matcher.status());
      } else {
        for (size_t i = 0; i < piece.size();) {
          const size_t begin = i;
          const uint32_t cp = utf8_decode_valid(piece, i);
          const bool is_match = step.kind == Kind::kDigits            ? is_numeric(cp)
                                : step.kind == Kind::kPunctuation     ? is_punctuation(cp)
                                : step.kind == Kind::kWhitespaceSplit ? is_white_space(cp)
                                                                      : piece.substr(begin, i - begin) == step.replacement;
          if (!is_match) continue;
          if (done != begin) cutter.event(span.begin + done, span.begin + begin, false);
          cutter.event(span.begin + begin, span.begin + i, true);
          done = i;
        }
      }
      if (done != piece.size()) cutter.event(span.begin + done, span.end, false);
      cutter.end_piece();
    }
    std::swap(pieces.spans, pieces.scratch);
  }
  if (step.map_bytes) {
    PM_RETURN_IF_ERROR(rewrite([](size_t, std::string_view piece, std::string& out) { out += bytes_to_alphabet(piece); }));
  }
  return ok_status();
}

uint64_t PreTokenizer::memory_bytes() const {
  uint64_t total = steps_.capacity() * sizeof(Step);
  for (const Step& step : steps_) {
    total += step.replacement.capacity() + (step.regex != nullptr ? step.regex->memory_bytes() : 0);
  }
  return total;
}

}  // namespace pointsman
