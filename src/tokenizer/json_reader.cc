// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/json_reader.h"

#include <algorithm>
#include <charconv>
#include <cstring>

#include "base/log.h"
#include "tokenizer/utf8.h"

namespace pointsman {

Status TextSource::read(std::span<char> out, uint64_t offset) {
  if (!out.empty()) std::memcpy(out.data(), text_.data() + offset, out.size());
  return ok_status();
}

Status FileSource::read(std::span<char> out, uint64_t offset) {
  return read_exact(file_, std::as_writable_bytes(out), offset);
}

JsonReader::JsonReader(ByteSource& source) : source_(source), buffer_(std::min<uint64_t>(kBufferBytes, source.size())) {}

bool JsonReader::fail(std::string_view what) {
  if (status_.ok()) status_ = error(StatusCode::kCorrupt, "JSON, byte {}: {}", buffer_offset_ + position_, what);
  // Nothing more to read: every loop ends.
  buffer_offset_ = source_.size();
  position_ = limit_ = 0;
  return false;
}

bool JsonReader::refill() {
  if (failed()) return false;
  buffer_offset_ += limit_;
  position_ = limit_ = 0;
  const uint64_t left = source_.size() - buffer_offset_;
  if (left == 0) return false;
  const size_t n = static_cast<size_t>(std::min<uint64_t>(left, buffer_.size()));
  if (Status s = source_.read(std::span(buffer_.data(), n), buffer_offset_); !s.ok()) {
    status_ = std::move(s);
    buffer_offset_ = source_.size();
    return false;
  }
  limit_ = n;
  return true;
}

void JsonReader::skip_space() {
  for (int c = look(); c == ' ' || c == '\n' || c == '\r' || c == '\t'; c = look()) ++position_;
}

uint64_t JsonReader::offset() {
  skip_space();
  return buffer_offset_ + position_;
}

void JsonReader::seek(uint64_t offset) {
  if (failed()) return;
  buffer_offset_ = offset;
  position_ = limit_ = 0;
  first_.clear();
}

char JsonReader::peek() {
  skip_space();
  const int c = look();
  return c < 0 ? '\0' : static_cast<char>(c);
}

bool JsonReader::expect(char c) {
  skip_space();
  const int found = look();
  if (found != static_cast<unsigned char>(c)) {
    return fail(found < 0 ? format("the text ends where '{}' is expected", c) : format("'{}' expected", c));
  }
  ++position_;
  return true;
}

bool JsonReader::open(char c) {
  if (first_.size() >= kMaxDepth) return fail(format("nested deeper than {} levels", kMaxDepth));
  if (!expect(c)) return false;
  first_.push_back(1);
  return true;
}

bool JsonReader::begin_object() {
  return open('{');
}
bool JsonReader::begin_array() {
  return open('[');
}

bool JsonReader::next_key(std::string& key) {
  if (failed() || first_.empty()) return false;
  skip_space();
  if (look() == '}') {
    ++position_;
    first_.pop_back();
    return false;
  }
  if (!first_.back() && !expect(',')) return false;
  first_.back() = 0;
  return read_string(key) && expect(':');
}

bool JsonReader::next_element() {
  if (failed() || first_.empty()) return false;
  skip_space();
  if (look() == ']') {
    ++position_;
    first_.pop_back();
    return false;
  }
  if (!first_.back() && !expect(',')) return false;
  first_.back() = 0;
  skip_space();
  return look() >= 0 ? true : fail("the text ends inside an array");
}

bool JsonReader::read_hex4(uint32_t& out) {
  out = 0;
  for (int i = 0; i < 4; ++i) {
    const int c = get();
    if (c >= '0' && c <= '9') {
      out = out * 16 + static_cast<uint32_t>(c - '0');
    } else if ((c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F')) {
      out = out * 16 + static_cast<uint32_t>((c | 0x20) - 'a' + 10);
    } else {
      return fail("\\u without four hexadecimal digits");
    }
  }
  return true;
}

bool JsonReader::read_escape(std::string& out) {
  const int c = get();
  switch (c) {
    case '"':
    case '\\':
    case '/': out += static_cast<char>(c); return true;
    case 'b': out += '\b'; return true;
    case 'f': out += '\f'; return true;
    case 'n': out += '\n'; return true;
    case 'r': out += '\r'; return true;
    case 't': out += '\t'; return true;
    case 'u': {
      uint32_t cp;
      if (!read_hex4(cp)) return false;
      if (cp >= 0xD800 && cp < 0xDC00) {
        uint32_t low = 0;
        if (get() != '\\' || get() != 'u') return fail("a lone surrogate");
        if (!read_hex4(low)) return false;
        if (low < 0xDC00 || low > 0xDFFF) return fail("a lone surrogate");
        cp = 0x10000 + ((cp - 0xD800) << 10) + (low - 0xDC00);
      } else if (cp >= 0xDC00 && cp <= 0xDFFF) {
        return fail("a lone surrogate");
      }
      append_utf8(out, cp);
      return true;
    }
    default: return fail("an unknown escape");
  }
}

bool JsonReader::read_string(std::string& out) {
  out.clear();
  if (!expect('"')) return false;
  bool ascii = true;
  while (true) {
    if (position_ >= limit_ && !refill()) return fail("the text ends inside a string");
    size_t i = position_;
    while (i < limit_) {
      const auto c = static_cast<unsigned char>(buffer_[i]);
      if (c == '"' || c == '\\' || c < 0x20) break;
      ascii = ascii && c < 0x80;
      ++i;
    }
    out.append(buffer_.data() + position_, i - position_);
    position_ = i;
    if (i >= limit_) continue;
    const char c = buffer_[position_++];
    if (c == '"') break;
    if (c != '\\') return fail("a control character in a string");
    if (!read_escape(out)) return false;
  }
  if (!ascii && utf8_valid_prefix(out) != out.size()) return fail("a string that is not UTF-8");
  return true;
}

bool JsonReader::read_number(std::string& out) {
  out.clear();
  const auto digits = [&] {
    const size_t before = out.size();
    for (int c = look(); c >= '0' && c <= '9' && out.size() < 400; c = look()) out += static_cast<char>(get());
    return out.size() > before;
  };
  skip_space();
  if (look() == '-') out += static_cast<char>(get());
  if (look() == '0') {
    out += static_cast<char>(get());
  } else if (!digits()) {
    return fail("a value expected");
  }
  if (look() == '.') {
    out += static_cast<char>(get());
    if (!digits()) return fail("a number without digits after its point");
  }
  if (look() == 'e' || look() == 'E') {
    out += static_cast<char>(get());
    if (look() == '+' || look() == '-') out += static_cast<char>(get());
    if (!digits()) return fail("a number without digits in its exponent");
  }
  return !failed();
}

bool JsonReader::read_int(int64_t& out) {
  if (!read_number(scratch_)) return false;
  const auto [end, ec] = std::from_chars(scratch_.data(), scratch_.data() + scratch_.size(), out);
  if (ec != std::errc() || end != scratch_.data() + scratch_.size()) return fail(format("{} is no 64-bit integer", scratch_));
  return true;
}

bool JsonReader::skip_value() {
  std::string text;
  switch (peek()) {
    case '{':
      if (!begin_object()) return false;
      while (next_key(text)) {
        if (!skip_value()) return false;
      }
      return !failed();
    case '[':
      if (!begin_array()) return false;
      while (next_element()) {
        if (!skip_value()) return false;
      }
      return !failed();
    case '"': return read_string(text);
    case 't':
    case 'f':
    case 'n': {
      const std::string_view word = peek() == 't' ? "true" : peek() == 'f' ? "false" : "null";
      for (const char c : word) {
        if (get() != static_cast<unsigned char>(c)) return fail("a value expected");
      }
      return true;
    }
    case '\0': return fail("the text ends where a value is expected");
    default: return read_number(text);
  }
}

bool JsonReader::read_raw(std::string& out, uint64_t max_bytes) {
  const uint64_t begin = offset();
  if (!skip_value()) return false;
  const uint64_t end = buffer_offset_ + position_;
  if (end - begin > max_bytes) {
    fail("too large");
    status_ =
        error(StatusCode::kUnsupported, "JSON, byte {}: a section of {} bytes, more than {}", begin, end - begin, max_bytes);
    return false;
  }
  out.resize(end - begin);
  if (Status s = source_.read(std::span(out.data(), out.size()), begin); !s.ok()) {
    status_ = std::move(s);
    return false;
  }
  return true;
}

bool JsonReader::at_end() {
  skip_space();
  return !failed() && look() < 0 && !failed();
}

}  // namespace pointsman
