// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/decoder.h"

#include <algorithm>

#include "base/log.h"
#include "tokenizer/byte_level.h"
#include "tokenizer/spec.h"
#include "tokenizer/utf8.h"

namespace pointsman {
namespace {

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size()))
    text.replace(at, from.size(), to);
}

// Per token, which is short. Text that the expression cannot deal with stays as it is.
void replace_matches(std::string& text, const Regex& regex, std::string_view to) {
  if (text.empty() || utf8_valid_prefix(text) != text.size()) return;
  RegexMatcher matcher;
  matcher.set_subject(text);
  std::string out;
  size_t done = 0;
  size_t begin = 0;
  size_t end = 0;
  for (size_t at = 0; matcher.next(regex, at, begin, end); at = end) {
    out += std::string_view(text).substr(done, begin - done);
    out += to;
    done = end;
  }
  if (!matcher.status().ok()) return;
  text = out + text.substr(done);
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// Cuts up to `left` copies of `c` from the beginning and up to `right` from the end.
void strip(std::string& text, std::string_view c, size_t left, size_t right) {
  size_t begin = 0;
  for (; left > 0 && std::string_view(text).substr(begin).starts_with(c); --left) begin += c.size();
  text.erase(0, begin);
  for (; right > 0 && text.ends_with(c); --right) text.resize(text.size() - c.size());
}

// Length of the longest proper prefix of `pattern` that ends `text`.
size_t possible_prefix(std::string_view text, std::string_view pattern) {
  for (size_t n = std::min(text.size(), pattern.size() - 1); n > 0; --n) {
    if (text.ends_with(pattern.substr(0, n))) return n;
  }
  return 0;
}

}  // namespace

Result<Decoder> Decoder::parse(const Json* section) {
  Decoder decoder;
  if (section != nullptr && !section->is_null()) {
    PM_RETURN_IF_ERROR(decoder.add(*section));
  } else {
    decoder.join_with_space_ = true;
  }
  return decoder;
}

Status Decoder::add(const Json& component) {
  PM_ASSIGN_OR_RETURN(const std::string type, spec::type_of(component, "decoder"));
  if (type == "Sequence") {
    PM_ASSIGN_OR_RETURN(const Json::Array* parts, spec::get_array(component, "decoders"));
    for (const Json& part : *parts) PM_RETURN_IF_ERROR(add(part));
    return ok_status();
  }
  if (type == "Fuse") {
    is_fused_ = true;
    return ok_status();
  }
  Step step{.kind = Kind::kByteLevel};
  if (type == "ByteLevel" || type == "ByteFallback" || type == "Metaspace") {
    if (is_fused_) return error(StatusCode::kUnsupported, "tokenizer.json: decoder \"{}\" after Fuse or ByteLevel", type);
    if (type == "ByteFallback") {
      step.kind = Kind::kByteFallback;
    } else if (type == "Metaspace") {
      step.kind = Kind::kMetaspace;
      PM_ASSIGN_OR_RETURN(step.text, spec::get_string(component, "replacement"));
      if (step.text.empty()) return error(StatusCode::kCorrupt, "tokenizer.json: Metaspace without a replacement");
      PM_ASSIGN_OR_RETURN(step.drop_first, spec::get_bool(component, "add_prefix_space", true));
      if (const Json* scheme = component.find("prepend_scheme"); scheme != nullptr && scheme->is_string()) {
        step.drop_first = step.drop_first && scheme->as_string() != "never";
      }
    } else {
      is_byte_level_ = per_token_.empty();
      is_fused_ = true;
    }
    per_token_.push_back(std::move(step));
    return ok_status();
  }
  if (type == "Strip") {
    step.kind = Kind::kStrip;
    PM_ASSIGN_OR_RETURN(step.text, spec::get_string(component, "content"));
    PM_ASSIGN_OR_RETURN(const int64_t left, spec::get_count(component, "start"));
    PM_ASSIGN_OR_RETURN(const int64_t right, spec::get_count(component, "stop"));
    step.left = static_cast<size_t>(left);
    step.right = static_cast<size_t>(std::min<int64_t>(right, 4096));
  } else if (type == "Replace") {
    step.kind = Kind::kReplace;
    PM_ASSIGN_OR_RETURN(spec::Pattern pattern, spec::get_pattern(component));
    if (pattern.is_regex) {
      if (is_fused_)
        return error(StatusCode::kUnsupported, "tokenizer.json: decoder Replace by expression after Fuse or ByteLevel");
      PM_ASSIGN_OR_RETURN(step.regex, Regex::compile(pattern.text));
    }
    step.text = std::move(pattern.text);
    PM_ASSIGN_OR_RETURN(step.content, spec::get_string(component, "content"));
  } else {
    return error(StatusCode::kUnsupported, "tokenizer.json: decoder \"{}\" is not supported", type);
  }
  if (step.text.empty() || step.text.size() > 256 || step.content.size() > 256) {
    return error(StatusCode::kUnsupported, "tokenizer.json: decoder \"{}\" with empty or very long text", type);
  }
  if (step.kind == Kind::kReplace) {
    // An expression may match between any two bytes.
    growth_ *= step.regex ? step.content.size() + 1 : std::max<size_t>(1, (step.content.size() + step.text.size() - 1) / step.text.size());
    if (growth_ > kMaxGrowth) return error(StatusCode::kUnsupported, "tokenizer.json: the decoder's replacements multiply a token's length by up to {}", growth_);
  }
  (is_fused_ ? fused_ : per_token_).push_back(std::move(step));
  return ok_status();
}

void Decoder::token_bytes(std::string_view text, bool is_first, std::string& out) const {
  std::string token(text);
  for (const Step& step : per_token_) {
    switch (step.kind) {
      case Kind::kByteLevel: alphabet_to_bytes(token, token); break;
      case Kind::kByteFallback:
        if (token.size() == 6 && token.starts_with("<0x") && token.back() == '>') {
          const int high = hex_digit(token[3]);
          const int low = hex_digit(token[4]);
          if (high >= 0 && low >= 0) token.assign(1, static_cast<char>(high * 16 + low));
        }
        break;
      case Kind::kReplace:
        if (step.regex) {
          replace_matches(token, *step.regex, step.content);
        } else {
          replace_all(token, step.text, step.content);
        }
        break;
      case Kind::kStrip: strip(token, step.text, step.left, step.right); break;
      case Kind::kMetaspace: replace_all(token, step.text, is_first && step.drop_first ? "" : " "); break;
    }
  }
  out += token;
}

uint64_t Decoder::memory_bytes() const {
  return (per_token_.capacity() + fused_.capacity()) * (sizeof(Step) + 64);
}

DecodeStream::DecodeStream(const Decoder& decoder) : decoder_(&decoder), states_(decoder.fused_.size()) {}

void DecodeStream::push(std::string_view token, std::string& out) {
  std::string bytes;
  if (decoder_->join_with_space_ && !is_first_) bytes += ' ';
  decoder_->token_bytes(token, is_first_, bytes);
  push_bytes(bytes, out);
}

void DecodeStream::push_bytes(std::string_view bytes, std::string& out) {
  is_first_ = false;
  std::string text;
  std::string joined;
  if (!pending_.empty()) {
    joined = std::exchange(pending_, {});
    joined += bytes;
    bytes = joined;
  }
  while (!bytes.empty()) {
    const size_t good = utf8_valid_prefix(bytes);
    text += bytes.substr(0, good);
    bytes.remove_prefix(good);
    if (bytes.empty()) break;
    const Utf8Step step = utf8_next(bytes);
    if (step.incomplete) {
      pending_ = std::string(bytes);
      break;
    }
    text += kReplacementCharacter;
    bytes.remove_prefix(step.bytes);
  }
  run_fused(0, text, false, out);
}

void DecodeStream::flush(std::string& out) {
  const std::string_view rest = pending_.empty() ? std::string_view() : kReplacementCharacter;
  pending_.clear();
  run_fused(0, rest, true, out);
  std::fill(states_.begin(), states_.end(), StepState{});
  is_first_ = true;
}

void DecodeStream::run_fused(size_t index, std::string_view text, bool at_end, std::string& out) {
  if (index == states_.size()) {
    out += text;
    return;
  }
  const Decoder::Step& step = decoder_->fused_[index];
  StepState& state = states_[index];
  state.held += text;
  std::string ready;
  if (step.kind == Decoder::Kind::kReplace) {
    size_t done = 0;
    for (size_t at = state.held.find(step.text); at != std::string::npos; at = state.held.find(step.text, done)) {
      ready += std::string_view(state.held).substr(done, at - done);
      ready += step.content;
      done = at + step.text.size();
    }
    const std::string_view rest = std::string_view(state.held).substr(done);
    const size_t hold = at_end ? 0 : possible_prefix(rest, step.text);
    ready += rest.substr(0, rest.size() - hold);
    state.held = std::string(rest.substr(rest.size() - hold));
  } else {
    std::string& held = state.held;
    size_t begin = 0;
    while (!state.left_done) {
      const std::string_view rest = std::string_view(held).substr(begin);
      if (state.stripped < step.left && rest.starts_with(step.text)) {
        begin += step.text.size();
        ++state.stripped;
      } else if (!rest.empty() || state.stripped == step.left) {
        state.left_done = true;
      } else {
        break;
      }
    }
    held.erase(0, begin);
    if (state.left_done || at_end) {
      // What could be cut from the right stays: up to `right` copies at the end.
      size_t tail = held.size();
      for (size_t n = 0; n < step.right && std::string_view(held).substr(0, tail).ends_with(step.text); ++n) {
        tail -= step.text.size();
      }
      ready = held.substr(0, tail);
      held = at_end ? "" : held.substr(tail);
    }
  }
  run_fused(index + 1, ready, at_end, out);
}

}  // namespace pointsman
