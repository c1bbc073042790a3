// SPDX-License-Identifier: Apache-2.0
//
// JSON with positions, which base/json does not keep; comments and trailing commas are accepted as editors' settings have them.
#include <algorithm>

#include "audit/config/scan.h"

namespace pointsman::audit::config {
namespace {

class JsonScanner {
 public:
  explicit JsonScanner(Document& d) : d_(d), text_(d.unit->text) {}
  void run() { value("", "", {}, 0); }

 private:
  char at(size_t i) const { return i < text_.size() ? text_[i] : '\0'; }

  void skip_blank() {
    while (pos_ < text_.size()) {
      const char c = text_[pos_];
      if (is_blank(c) || c == '\n') {
        ++pos_;
      } else if (c == '/' && at(pos_ + 1) == '/') {
        pos_ = std::min(text_.find('\n', pos_), text_.size());
      } else if (c == '/' && at(pos_ + 1) == '*') {
        const size_t end = text_.find("*/", pos_ + 2);
        pos_ = end == text_.npos ? text_.size() : end + 2;
      } else {
        break;
      }
    }
  }

  std::string string() {
    std::string out;
    ++pos_;
    while (pos_ < text_.size() && text_[pos_] != '"' && text_[pos_] != '\n') {
      if (text_[pos_] == '\\' && pos_ + 1 < text_.size()) {
        const char c = text_[pos_ + 1];
        out += c == 'n' ? '\n' : c == 't' ? '\t' : c == 'r' ? '\r' : c;
        pos_ += 2;
      } else {
        out += text_[pos_++];
      }
    }
    if (at(pos_) == '"') ++pos_;
    return out;
  }

  void value(const std::string& path, const std::string& key, Span key_span, int depth) {
    skip_blank();
    if (pos_ >= text_.size()) return;
    const char c = text_[pos_];
    const size_t begin = pos_;
    if (c == '{' || c == '[') {
      if (depth >= kMaxDepth) {
        d_.truncated = true;
        pos_ = text_.size();
        return;
      }
      container(path, c, depth);
    } else if (c == '"') {
      std::string s = string();
      add(d_, path, key, std::move(s), key_span, {static_cast<uint32_t>(begin), static_cast<uint32_t>(pos_)});
    } else {
      while (pos_ < text_.size() && std::string_view(",]}\n").find(text_[pos_]) == std::string_view::npos) ++pos_;
      const std::string_view s = trim(text_.substr(begin, pos_ - begin));
      if (!s.empty()) add(d_, path, key, std::string(s), key_span, span_of(d_, s));
    }
  }

  void container(const std::string& path, char open, int depth) {
    const char close = open == '{' ? '}' : ']';
    ++pos_;
    size_t index = 0;
    while (!d_.truncated) {
      skip_blank();
      if (pos_ >= text_.size()) return;
      const size_t before = pos_;
      const char c = text_[pos_];
      if (c == close || c == '}' || c == ']') {
        ++pos_;
        return;
      }
      if (c == ',') {
        ++pos_;
        continue;
      }
      if (open == '[') {
        value(index_path(path, index++), "", {}, depth + 1);
      } else if (c == '"') {
        std::string key = string();
        const Span span{static_cast<uint32_t>(before), static_cast<uint32_t>(pos_)};
        skip_blank();
        if (at(pos_) == ':') {
          ++pos_;
          value(child_path(path, key), key, span, depth + 1);
        }
      }
      if (pos_ == before) ++pos_;
    }
  }

  Document& d_;
  std::string_view text_;
  size_t pos_ = 0;
};

}  // namespace

void scan_json(Document& document) { JsonScanner(document).run(); }

}  // namespace pointsman::audit::config
