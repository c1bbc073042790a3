// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>

#include "audit/config/scan.h"

namespace pointsman::audit::config {
namespace {

class Toml {
 public:
  explicit Toml(Document& d) : d_(d), text_(d.unit->text) {}

  void run() {
    while (!d_.truncated) {
      skip_blank(true);
      if (pos_ >= text_.size()) return;
      const size_t before = pos_;
      if (text_[pos_] == '[') {
        header();
      } else {
        key_value(table_, 0);
        // Whatever follows on the line was not understood.
        pos_ = std::min(text_.find('\n', pos_), text_.size());
      }
      if (pos_ == before) ++pos_;
    }
  }

 private:
  char at(size_t i) const { return i < text_.size() ? text_[i] : '\0'; }

  void skip_blank(bool lines) {
    while (pos_ < text_.size()) {
      if (is_blank(text_[pos_]) || (lines && text_[pos_] == '\n')) {
        ++pos_;
      } else if (text_[pos_] == '#' && lines) {
        pos_ = std::min(text_.find('\n', pos_), text_.size());
      } else {
        return;
      }
    }
  }

  void header() {
    const bool array = at(pos_ + 1) == '[';
    pos_ += array ? 2 : 1;
    table_ = dotted_key();
    if (array) table_ = index_path(table_, arrays_[table_]++);
    pos_ = std::min(text_.find('\n', pos_), text_.size());
  }

  std::string dotted_key() {
    std::string path;
    while (pos_ < text_.size()) {
      skip_blank(false);
      std::string part;
      if (at(pos_) == '"' || at(pos_) == '\'') {
        part = string();
      } else {
        while (pos_ < text_.size() && (is_word(text_[pos_]))) part += text_[pos_++];
      }
      if (part.empty()) break;
      last_key_ = part;
      path = child_path(path, part);
      skip_blank(false);
      if (at(pos_) != '.') break;
      ++pos_;
    }
    return path;
  }
  static bool is_word(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' || static_cast<uint8_t>(c) >= 0x80;
  }

  std::string string() {
    const char q = text_[pos_];
    const bool multi = at(pos_ + 1) == q && at(pos_ + 2) == q;
    std::string out;
    pos_ += multi ? 3 : 1;
    while (pos_ < text_.size()) {
      if (q == '"' && text_[pos_] == '\\' && pos_ + 1 < text_.size()) {
        const char c = text_[pos_ + 1];
        out += c == 'n' ? '\n' : c == 't' ? '\t' : c;
        pos_ += 2;
      } else if (text_[pos_] == q && (!multi || (at(pos_ + 1) == q && at(pos_ + 2) == q))) {
        pos_ += multi ? 3 : 1;
        return out;
      } else if (text_[pos_] == '\n' && !multi) {
        return out;
      } else {
        out += text_[pos_++];
      }
    }
    return out;
  }

  void key_value(const std::string& table, int depth) {
    const size_t begin = pos_;
    const std::string name = dotted_key();
    const std::string key = last_key_;
    if (name.empty()) return;
    Span span{static_cast<uint32_t>(begin), static_cast<uint32_t>(pos_)};
    while (span.end > span.begin && is_blank(text_[span.end - 1])) --span.end;
    skip_blank(false);
    if (at(pos_) != '=') return;
    ++pos_;
    value(child_path(table, name), key, span, depth);
  }

  void value(const std::string& path, const std::string& key, Span key_span, int depth) {
    skip_blank(false);
    const char c = at(pos_);
    const size_t begin = pos_;
    if ((c == '[' || c == '{') && depth < kMaxDepth) {
      ++pos_;
      size_t n = 0;
      while (!d_.truncated) {
        skip_blank(true);
        if (pos_ >= text_.size()) return;
        const size_t before = pos_;
        if (text_[pos_] == ']' || text_[pos_] == '}') {
          ++pos_;
          return;
        }
        if (text_[pos_] == ',') {
          ++pos_;
        } else if (c == '[') {
          value(index_path(path, n++), "", {}, depth + 1);
        } else {
          key_value(path, depth + 1);
        }
        if (pos_ == before) ++pos_;
      }
    } else if (c == '"' || c == '\'') {
      std::string s = string();
      add(d_, path, key, std::move(s), key_span, {static_cast<uint32_t>(begin), static_cast<uint32_t>(pos_)});
    } else {
      while (pos_ < text_.size() && std::string_view(",]}#\n").find(text_[pos_]) == std::string_view::npos) ++pos_;
      const std::string_view s = trim(text_.substr(begin, pos_ - begin));
      if (!s.empty()) add(d_, path, key, std::string(s), key_span, span_of(d_, s));
    }
  }

  Document& d_;
  std::string_view text_;
  size_t pos_ = 0;
  std::string table_, last_key_;
  std::map<std::string, size_t> arrays_;
};

}  // namespace

void scan_toml(Document& document) { Toml(document).run(); }

}  // namespace pointsman::audit::config
