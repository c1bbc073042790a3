// SPDX-License-Identifier: Apache-2.0
//
// YAML by lines: block mappings and sequences by indentation, plain and quoted scalars, block scalars, flow collections. Anchors,
// tags and merge keys are stepped over; documents of one file follow one another.
#include <algorithm>

#include "audit/config/scan.h"

namespace pointsman::audit::config {
namespace {

// The text of a quoted scalar at the start of `s`, and its length with quotes; length 0 when it is not closed on the line.
size_t quoted(std::string_view s, std::string& out) {
  const char q = s.front();
  for (size_t i = 1; i < s.size(); ++i) {
    if (q == '"' && s[i] == '\\' && i + 1 < s.size()) {
      const char c = s[++i];
      out += c == 'n' ? '\n' : c == 't' ? '\t' : c;
    } else if (s[i] == q) {
      if (q == '\'' && i + 1 < s.size() && s[i + 1] == '\'') {
        out += q;
        ++i;
      } else {
        return i + 1;
      }
    } else {
      out += s[i];
    }
  }
  return 0;
}

// Position of the ':' that ends a key at the start of `s`, npos without one.
size_t key_end(std::string_view s) {
  size_t i = 0;
  if (!s.empty() && (s[0] == '"' || s[0] == '\'')) {
    std::string ignored;
    i = quoted(s, ignored);
    if (i == 0) return s.npos;
    while (i < s.size() && is_blank(s[i])) ++i;
    return i < s.size() && s[i] == ':' ? i : s.npos;
  }
  if (s.empty() || s[0] == '{' || s[0] == '[' || s[0] == '#' || s[0] == '&' || s[0] == '*' || s[0] == '!') return s.npos;
  for (; i < s.size(); ++i) {
    if (s[i] == ':' && (i + 1 == s.size() || is_blank(s[i + 1]))) return i;
    if (s[i] == '#' && i > 0 && is_blank(s[i - 1])) return s.npos;
  }
  return s.npos;
}

std::string_view without_comment(std::string_view s) {
  for (size_t i = 0; i < s.size(); ++i) {
    if (s[i] == '#' && (i == 0 || is_blank(s[i - 1]))) return trim(s.substr(0, i));
  }
  return trim(s);
}

class Yaml {
 public:
  explicit Yaml(Document& d) : d_(d), text_(d.unit->text) {}

  void run() {
    while (pos_ < text_.size() && !d_.truncated) {
      std::string_view line = next_line();
      size_t indent = 0;
      while (indent < line.size() && line[indent] == ' ') ++indent;
      std::string_view s = line.substr(indent);
      if (s.empty() || trim(s).empty() || s[0] == '#') continue;
      if (indent == 0 && (s.starts_with("---") || s.starts_with("..."))) {
        levels_.clear();
        s = trim(s.substr(3));
        if (s.empty()) continue;
      }
      if (indent == 0 && s[0] == '%') continue;
      item(s, indent);
    }
  }

 private:
  struct Level {
    size_t indent;
    std::string path;       // of the mapping's value or of the sequence
    bool is_sequence;
    size_t next_index = 0;
  };

  std::string_view next_line() {
    const size_t end = std::min(text_.find('\n', pos_), text_.size());
    const std::string_view line = text_.substr(pos_, end - pos_);
    line_begin_ = pos_;
    pos_ = std::min(end + 1, text_.size());
    return line;
  }

  const std::string& parent() const {
    static const std::string kRoot;
    return levels_.empty() ? kRoot : levels_.back().path;
  }

  void item(std::string_view s, size_t indent) {
    const bool dash = s == "-" || s.starts_with("- ");
    while (!levels_.empty() && (levels_.back().indent > indent || (levels_.back().indent == indent && levels_.back().is_sequence != dash) ||
                                (levels_.back().indent == indent && !dash)))
      levels_.pop_back();
    if (levels_.size() >= static_cast<size_t>(kMaxDepth)) return;
    if (dash) {
      if (levels_.empty() || levels_.back().indent != indent || !levels_.back().is_sequence) {
        // The path of the sequence is that of the key above it.
        levels_.push_back({indent, pending_.empty() ? parent() : pending_, true, 0});
      }
      pending_.clear();
      Level& seq = levels_.back();
      const std::string path = index_path(seq.path, seq.next_index++);
      std::string_view rest = s.substr(1);
      size_t skip = 1;
      while (!rest.empty() && rest[0] == ' ') {
        rest.remove_prefix(1);
        ++skip;
      }
      if (rest.empty() || rest[0] == '#') {
        pending_ = path;
        levels_.push_back({indent + 1, path, false, 0});
        return;
      }
      const size_t colon = key_end(rest);
      if (colon == rest.npos && !(rest == "-" || rest.starts_with("- "))) {
        value(path, "", rest, {}, indent);
        return;
      }
      // A mapping (or sequence) that starts on the line of its dash.
      levels_.push_back({indent + 1, path, false, 0});
      pending_ = path;
      item(rest, indent + skip);
      return;
    }
    const size_t colon = key_end(s);
    if (colon == s.npos) return;  // the continuation of a plain scalar
    std::string_view raw_key = trim(s.substr(0, colon));
    std::string key;
    if (!raw_key.empty() && (raw_key[0] == '"' || raw_key[0] == '\'')) {
      quoted(raw_key, key);
    } else {
      key = std::string(raw_key);
    }
    const std::string path = child_path(parent(), key);
    std::string_view rest = s.substr(colon + 1);
    while (!rest.empty() && is_blank(rest[0])) rest.remove_prefix(1);
    levels_.push_back({indent, path, false, 0});
    pending_ = path;
    if (rest.empty() || rest[0] == '#') return;
    value(path, key, rest, span_of(d_, raw_key), indent);
  }

  void value(const std::string& path, const std::string& key, std::string_view s, Span key_span, size_t indent) {
    while (!s.empty() && (s[0] == '&' || s[0] == '!')) {  // anchors and tags
      const size_t blank = s.find(' ');
      s = blank == s.npos ? std::string_view() : trim(s.substr(blank));
    }
    if (s.empty()) return;
    if (s[0] == '|' || s[0] == '>') {
      block_scalar(path, key, key_span, indent);
    } else if (s[0] == '{' || s[0] == '[') {
      // Flow collections may go on over lines; their end is where the brackets close.
      const size_t begin = span_of(d_, s).begin;
      const size_t end = flow(path, key, key_span, begin, 0);
      const size_t line_end = text_.find('\n', end);
      pos_ = std::max(pos_, line_end == text_.npos ? text_.size() : line_end + 1);
    } else if (s[0] == '"' || s[0] == '\'') {
      std::string text;
      const size_t n = quoted(s, text);
      add(d_, path, key, std::move(text), key_span, span_of(d_, s.substr(0, n == 0 ? s.size() : n)));
    } else {
      const std::string_view plain = without_comment(s);
      add(d_, path, key, std::string(plain), key_span, span_of(d_, plain));
    }
  }

  void block_scalar(const std::string& path, const std::string& key, Span key_span, size_t indent) {
    std::string value;
    const size_t begin = pos_;
    size_t end = pos_, width = 0;
    while (pos_ < text_.size()) {
      const size_t line = pos_;
      const std::string_view s = next_line();
      size_t n = 0;
      while (n < s.size() && s[n] == ' ') ++n;
      if (n == s.size()) {
        value += '\n';
        continue;
      }
      if (n <= indent) {
        pos_ = line;
        break;
      }
      if (width == 0) width = n;
      value += s.substr(std::min(width, n));
      value += '\n';
      end = line + s.size();
    }
    add(d_, path, key, std::move(value), key_span, {static_cast<uint32_t>(begin), static_cast<uint32_t>(std::max(begin, end))});
  }

  void skip_blank(size_t& i) const {
    while (i < text_.size()) {
      if (is_blank(text_[i]) || text_[i] == '\n') {
        ++i;
      } else if (text_[i] == '#') {
        i = std::min(text_.find('\n', i), text_.size());
      } else {
        break;
      }
    }
  }

  // A value of flow style at i; gives the position after it.
  size_t flow(const std::string& path, const std::string& key, Span key_span, size_t i, int depth) {
    skip_blank(i);
    if (i >= text_.size() || depth > kMaxDepth) return text_.size();
    const char open = text_[i];
    if (open != '{' && open != '[') {
      std::string value;
      size_t end;
      if (open == '"' || open == '\'') {
        const size_t n = quoted(text_.substr(i), value);
        end = n == 0 ? text_.size() : i + n;
      } else {
        end = i;
        while (end < text_.size() && text_[end] != ',' && text_[end] != ']' && text_[end] != '}' && text_[end] != '\n') ++end;
        value = std::string(trim(text_.substr(i, end - i)));
      }
      const size_t width = open == '"' || open == '\'' ? end - i : value.size();
      if (end > i) add(d_, path, key, value, key_span, {static_cast<uint32_t>(i), static_cast<uint32_t>(i + width)});
      return end;
    }
    const char close = open == '{' ? '}' : ']';
    size_t n = 0;
    for (++i;;) {
      skip_blank(i);
      if (i >= text_.size() || d_.truncated) return text_.size();
      const size_t before = i;
      if (text_[i] == close) return i + 1;
      if (text_[i] == ',') {
        ++i;
        continue;
      }
      if (text_[i] == '}' || text_[i] == ']') return i + 1;  // crossed brackets
      if (open == '[') {
        i = flow(index_path(path, n++), "", {}, i, depth + 1);
      } else {
        std::string name;
        const size_t begin = i;
        if (text_[i] == '"' || text_[i] == '\'') {
          const size_t length = quoted(text_.substr(i), name);
          i = length == 0 ? text_.size() : i + length;
        } else {
          while (i < text_.size() && text_[i] != ':' && text_[i] != ',' && text_[i] != '}' && text_[i] != '\n') ++i;
          name = std::string(trim(text_.substr(begin, i - begin)));
        }
        const Span span{static_cast<uint32_t>(begin), static_cast<uint32_t>(i)};
        skip_blank(i);
        if (i < text_.size() && text_[i] == ':') {
          ++i;
          skip_blank(i);
          if (i < text_.size() && text_[i] != ',' && text_[i] != '}') i = flow(child_path(path, name), name, span, i, depth + 1);
        }
      }
      if (i == before) ++i;
    }
  }

  Document& d_;
  std::string_view text_;
  size_t pos_ = 0, line_begin_ = 0;
  std::vector<Level> levels_;
  std::string pending_;  // the path of a key whose value has not come yet
};

}  // namespace

void scan_yaml(Document& document) { Yaml(document).run(); }

}  // namespace pointsman::audit::config
