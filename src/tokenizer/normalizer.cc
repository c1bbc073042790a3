// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/normalizer.h"

#include <algorithm>

#include "base/log.h"
#include "tokenizer/byte_level.h"
#include "tokenizer/spec.h"
#include "tokenizer/utf8.h"

namespace pointsman {
namespace {

bool is_ascii(std::string_view text) {
  for (const char c : text) {
    if (static_cast<unsigned char>(c) >= 0x80) return false;
  }
  return true;
}

void strip(std::string& text, bool left, bool right, bool& at_start) {
  size_t begin = 0;
  size_t end = text.size();
  while (left && begin < end) {
    size_t next = begin;
    if (!is_white_space(utf8_decode_valid(text, next))) break;
    begin = next;
  }
  while (right && end > begin) {
    const size_t start = utf8_last_start(std::string_view(text).substr(0, end));
    size_t next = start;
    if (!is_white_space(utf8_decode_valid(text, next))) break;
    end = start;
  }
  if (begin > 0) at_start = false;
  text = text.substr(begin, end - begin);
}

// False when the result would be longer than `limit`.
bool replace_all(std::string& text, std::string_view from, std::string_view to, size_t limit) {
  size_t at = text.find(from);
  if (at == std::string::npos) return true;
  std::string out;
  size_t done = 0;
  for (; at != std::string::npos; at = text.find(from, done)) {
    out += std::string_view(text).substr(done, at - done);
    out += to;
    done = at + from.size();
    if (out.size() > limit) return false;
  }
  out += std::string_view(text).substr(done);
  text = std::move(out);
  return true;
}

}  // namespace

Result<Normalizer> Normalizer::parse(const Json* section) {
  Normalizer normalizer;
  if (section != nullptr && !section->is_null()) PM_RETURN_IF_ERROR(normalizer.add(*section));
  for (const Step& step : normalizer.steps_) {
    normalizer.keeps_ascii_ = normalizer.keeps_ascii_ && (step.kind == Kind::kNormalForm || step.kind == Kind::kStripAccents);
  }
  return normalizer;
}

Status Normalizer::add(const Json& component) {
  PM_ASSIGN_OR_RETURN(const std::string type, spec::type_of(component, "normalizer"));
  if (type == "Sequence") {
    PM_ASSIGN_OR_RETURN(const Json::Array* parts, spec::get_array(component, "normalizers"));
    for (const Json& part : *parts) PM_RETURN_IF_ERROR(add(part));
    return ok_status();
  }
  Step step{.kind = Kind::kNormalForm};
  if (type == "NFC" || type == "NFD" || type == "NFKC" || type == "NFKD") {
    step.form = type == "NFC"    ? NormalForm::kNfc
                : type == "NFD"  ? NormalForm::kNfd
                : type == "NFKC" ? NormalForm::kNfkc
                                 : NormalForm::kNfkd;
  } else if (type == "Lowercase") {
    step.kind = Kind::kLowercase;
  } else if (type == "Strip") {
    step.kind = Kind::kStrip;
    PM_ASSIGN_OR_RETURN(step.left, spec::get_bool(component, "strip_left", true));
    PM_ASSIGN_OR_RETURN(step.right, spec::get_bool(component, "strip_right", true));
  } else if (type == "StripAccents") {
    step.kind = Kind::kStripAccents;
  } else if (type == "Replace") {
    step.kind = Kind::kReplace;
    PM_ASSIGN_OR_RETURN(spec::Pattern pattern, spec::get_pattern(component));
    PM_ASSIGN_OR_RETURN(step.content, spec::get_string(component, "content"));
    if (pattern.is_regex || pattern.text.empty()) {
      PM_ASSIGN_OR_RETURN(Regex regex, Regex::compile(pattern.text));
      step.regex = std::make_unique<Regex>(std::move(regex));
    } else {
      step.text = std::move(pattern.text);
    }
  } else if (type == "Prepend") {
    step.kind = Kind::kPrepend;
    PM_ASSIGN_OR_RETURN(step.text, spec::get_string(component, "prepend"));
  } else if (type == "ByteLevel") {
    step.kind = Kind::kByteLevel;
  } else {
    return error(StatusCode::kUnsupported, "tokenizer.json: normalizer \"{}\" is not supported", type);
  }
  steps_.push_back(std::move(step));
  return ok_status();
}

Status Normalizer::apply(std::string& text, bool& at_start, RegexMatcher& matcher) const {
  if (keeps_ascii_ && is_ascii(text)) return ok_status();
  // A chain of replacements multiplies. No character of Unicode grows more than 18-fold, no known file more than that.
  const size_t limit = std::min(size_t{1} << 30, (size_t{64} << 10) + 64 * text.size());
  const auto too_long = [limit] { return error(StatusCode::kInvalidArgument, "tokenizer.json: the normalizer makes more than {} bytes of this text", limit); };
  for (const Step& step : steps_) {
    std::string out;
    switch (step.kind) {
      case Kind::kNormalForm:
        if (!is_ascii(text)) text = unicode_normalize(text, step.form);
        break;
      case Kind::kLowercase:
        out.reserve(text.size());
        for (size_t i = 0; i < text.size();) append_lower(out, utf8_decode_valid(text, i));
        text = std::move(out);
        break;
      case Kind::kStrip: strip(text, step.left, step.right, at_start); break;
      case Kind::kStripAccents:
        out.reserve(text.size());
        for (size_t i = 0; i < text.size();) {
          const uint32_t cp = utf8_decode_valid(text, i);
          if (!is_mark(cp)) append_utf8(out, cp);
        }
        text = std::move(out);
        break;
      case Kind::kReplace:
        if (step.regex != nullptr) {
          matcher.set_subject(text);
          size_t done = 0;
          size_t begin = 0;
          size_t end = 0;
          // An empty text has no match, as in the reference.
          for (size_t at = 0; !text.empty() && matcher.next(*step.regex, at, begin, end); at = end) {
            out += std::string_view(text).substr(done, begin - done);
            out += step.content;
            done = end;
            if (out.size() > limit) return too_long();
          }
          PM_RETURN_IF_ERROR(matcher.status());
          out += std::string_view(text).substr(done);
          text = std::move(out);
        } else if (!replace_all(text, step.text, step.content, limit)) {
          return too_long();
        }
        break;
      case Kind::kPrepend:
        if (!text.empty()) text.insert(0, step.text);
        break;
      case Kind::kByteLevel: text = bytes_to_alphabet(text); break;
    }
    if (text.size() > limit) return too_long();
  }
  return ok_status();
}

uint64_t Normalizer::memory_bytes() const {
  uint64_t total = steps_.capacity() * sizeof(Step);
  for (const Step& step : steps_) {
    total += step.text.capacity() + step.content.capacity() + (step.regex != nullptr ? step.regex->memory_bytes() : 0);
  }
  return total;
}

}  // namespace pointsman
