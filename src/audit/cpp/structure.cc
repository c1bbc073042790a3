// SPDX-License-Identifier: Apache-2.0
//
// From tokens to functions, loops, calls and launches, by matching brackets.
#include <algorithm>

#include "audit/cpp/file.h"
#include "audit/cpp/lexer.h"

namespace pointsman::audit::cpp {

class Structure {
 public:
  explicit Structure(File& file) : f_(file), n_(static_cast<uint32_t>(file.tokens_.size())) {}

  void run() {
    match_brackets();
    bodies();
    for (uint32_t i = 0; i < n_; ++i) {
      if (f_.tokens_[i].kind == TokenKind::kIdentifier) call_at(i);
    }
  }

 private:
  bool is(uint32_t i, std::string_view s) const { return i < n_ && f_.text(i) == s; }
  bool is_identifier(uint32_t i) const { return i < n_ && f_.tokens_[i].kind == TokenKind::kIdentifier; }

  static bool is_keyword(std::string_view w) {
    constexpr std::string_view kWords[] = {"if",     "for",   "while",    "switch", "return", "sizeof", "catch",         "alignof", "decltype", "defined",
                                           "static_assert", "new", "delete", "throw", "else",   "do",     "case",          "and",     "or",       "not",
                                           "alignas", "noexcept", "constexpr", "const", "operator", "typeid", "__attribute__", "asm", "__asm__", "requires"};
    return std::find(std::begin(kWords), std::end(kWords), w) != std::end(kWords);
  }

  // partner_[i]: the token that closes (or opens) the bracket i, or n_.
  void match_brackets() {
    partner_.assign(n_, n_);
    std::vector<uint32_t> open;
    for (uint32_t i = 0; i < n_; ++i) {
      if (f_.tokens_[i].kind != TokenKind::kPunctuation) continue;
      const char c = f_.text(i).front();
      if (f_.text(i).size() != 1) continue;
      if (c == '(' || c == '[' || c == '{') {
        open.push_back(i);
      } else if (c == ')' || c == ']' || c == '}') {
        const char wanted = c == ')' ? '(' : c == ']' ? '[' : '{';
        // A brace closes whatever round brackets were left open in it.
        while (!open.empty() && f_.text(open.back()).front() != wanted && wanted == '{') open.pop_back();
        if (!open.empty() && f_.text(open.back()).front() == wanted) {
          partner_[i] = open.back();
          partner_[open.back()] = i;
          open.pop_back();
        }
      }
    }
  }

  // Braces of functions and loops, in one pass.
  void bodies() {
    struct Open {
      uint32_t end;
      int function, loop;
    };
    std::vector<Open> stack;
    int function = -1, loop = -1;
    uint32_t statement = 0;  // first token of the current declaration or statement
    for (uint32_t i = 0; i < n_; ++i) {
      while (!stack.empty() && i >= stack.back().end) {
        function = stack.back().function;
        loop = stack.back().loop;
        stack.pop_back();
        statement = i;
      }
      Token& t = f_.tokens_[i];
      t.function = function;
      t.loop = loop;
      const std::string_view s = f_.text(i);
      if (s == "{" && function < 0 && partner_[i] < n_) {
        if (const uint32_t name = function_name(statement, i); name < n_) {
          stack.push_back({partner_[i] + 1, function, loop});
          function = static_cast<int>(f_.functions_.size());
          add_function(statement, name, i);
          t.function = function;
        }
        statement = i + 1;
      } else if ((s == ";" || s == "}" || s == "{") && function < 0) {
        statement = i + 1;
      } else if (function >= 0 && (s == "for" || s == "while" || s == "do") && t.kind == TokenKind::kIdentifier) {
        const uint32_t body = s == "do" ? i + 1 : is(i + 1, "(") && partner_[i + 1] < n_ ? partner_[i + 1] + 1 : n_;
        if (body < n_ && !is(body, ";")) {
          f_.loops_.push_back({{t.span.begin, f_.tokens_[body - 1].span.end}, loop});
          stack.push_back({is(body, "{") && partner_[body] < n_ ? partner_[body] + 1 : end_of_statement(body), function, loop});
          loop = static_cast<int>(f_.loops_.size()) - 1;
          // Inner scopes must not outlive outer ones.
          if (stack.size() > 1) stack.back().end = std::min(stack.back().end, stack[stack.size() - 2].end);
        }
      }
    }
  }

  uint32_t end_of_statement(uint32_t i) const {
    for (uint32_t k = i; k < n_ && k < i + 2000; ++k) {
      if (is(k, ";")) return k + 1;
      if (is(k, "{") && partner_[k] < n_) return partner_[k] + 1;
    }
    return i;
  }

  // The token that names the function whose body opens at `brace`, n_ when it is no function: `name ( ... ) const noexcept {`,
  // also with initialisers (`: a(b), c{d}`) and a trailing return type.
  uint32_t function_name(uint32_t begin, uint32_t brace) const {
    for (uint32_t k = begin; k < brace && k < begin + 400; ++k) {
      const std::string_view s = f_.text(k);
      if (s == "namespace" || s == "struct" || s == "class" || s == "enum" || s == "union" || s == "=") {
        // `struct X f() {` is a function; `struct X {` is not: there is no round bracket.
        if (s == "=" || s == "namespace" || s == "enum") return n_;
      }
      if (s == "(" && partner_[k] < brace && k > begin && is_identifier(k - 1)) {
        const std::string_view name = f_.text(k - 1);
        if (name == "__launch_bounds__" || name == "__attribute__" || name == "alignas" || name == "__align__" || name == "decltype" || name == "requires" || name == "explicit") {
          k = partner_[k];
          continue;
        }
        return is_keyword(name) ? n_ : k - 1;
      }
      if (s == "operator") return k;
      if ((s == "(" || s == "[") && partner_[k] < n_) k = partner_[k];
    }
    return n_;
  }

  void add_function(uint32_t begin, uint32_t name, uint32_t brace) {
    Function fn;
    uint32_t first = name;
    while (first >= 2 + begin && is(first - 1, "::") && is_identifier(first - 2)) first -= 2;
    for (uint32_t k = first; k <= name; ++k) fn.name += f_.text(k);
    fn.name_span = {f_.tokens_[first].span.begin, f_.tokens_[name].span.end};
    fn.head = {f_.tokens_[begin].span.begin, f_.tokens_[brace - 1].span.end};
    fn.first = brace;
    fn.last = partner_[brace] + 1;
    for (uint32_t k = begin; k < name; ++k) {
      fn.is_kernel |= is(k, "__global__");
      fn.is_device |= is(k, "__device__");
    }
    f_.functions_.push_back(std::move(fn));
  }

  std::vector<TokenRange> split(uint32_t open, uint32_t close) const {
    std::vector<TokenRange> out;
    uint32_t from = open + 1;
    for (uint32_t k = open + 1; k < close; ++k) {
      if ((is(k, "(") || is(k, "[") || is(k, "{")) && partner_[k] < close) {
        k = partner_[k];
      } else if (is(k, ",")) {
        out.push_back({from, k});
        from = k + 1;
      }
    }
    if (from < close || !out.empty()) out.push_back({from, close});
    return out;
  }

  // Past `< ... >` of template arguments that start at i, or i.
  uint32_t skip_template(uint32_t i) const {
    if (!is(i, "<")) return i;
    int depth = 0;
    for (uint32_t k = i; k < n_ && k < i + 200; ++k) {
      const std::string_view s = f_.text(k);
      if (s == "<") ++depth;
      if (s == ">" && --depth == 0) return k + 1;
      if (s == ">>>") return i;
      if (s == "(" && partner_[k] < n_) k = partner_[k];
      if (s == ";" || s == "{" || s == "&&" || s == "||" || s == ")") return i;
    }
    return i;
  }

  void call_at(uint32_t i) {
    // Only the last part of a::b::c is the call.
    if (is(i + 1, "::")) return;
    uint32_t next = skip_template(i + 1);
    if (is(next, "::")) return;
    const bool launch = is(next, "<<<");
    if (!launch && !is(next, "(")) return;
    if (is_keyword(f_.text(i))) return;
    std::string name(f_.text(i));
    uint32_t first = i;
    for (int parts = 0; parts < 8 && first >= 1 && is(first - 1, "::"); ++parts) {
      uint32_t before = first - 1;  // the "::"
      name = "::" + name;
      first = before;
      if (before >= 1 && is(before - 1, ">")) {  // a<b>::c
        int depth = 0;
        uint32_t k = before - 1;
        for (int steps = 0; k > 0 && steps < 200; --k, ++steps) {
          if (is(k, ">")) ++depth;
          if (is(k, "<") && --depth == 0) break;
        }
        if (depth == 0 && k >= 1 && is_identifier(k - 1)) before = k;
      }
      if (before < 1 || !is_identifier(before - 1)) break;
      name = std::string(f_.text(before - 1)) + name;
      first = before - 1;
    }
    if (name.starts_with("::")) name.erase(0, 2);
    const bool member = first >= 1 && (is(first - 1, ".") || is(first - 1, "->"));
    if (launch) {
      uint32_t close = next + 1;
      for (; close < n_ && close < next + 400 && !is(close, ">>>"); ++close) {
        if (is(close, "(") && partner_[close] < n_) close = partner_[close];
      }
      if (!is(close, ">>>")) return;
      Launch l;
      l.name = std::move(name);
      l.span = {f_.tokens_[first].span.begin, f_.tokens_[close].span.end};
      l.token = i;
      l.configuration = split(next, close);
      if (is(close + 1, "(") && partner_[close + 1] < n_) l.arguments = split(close + 1, partner_[close + 1]);
      f_.launches_.push_back(std::move(l));
      return;
    }
    if (partner_[next] >= n_) return;
    // `type name(...)` at the start of a definition is no call.
    const int fn = next > 0 && f_.tokens_[i].function < 0 ? 0 : 1;
    if (fn == 0 && is_definition(partner_[next])) return;
    Call c;
    c.name = std::move(name);
    c.is_member = member;
    c.name_span = {f_.tokens_[first].span.begin, f_.tokens_[i].span.end};
    c.token = i;
    c.last = f_.text(i);
    c.arguments = split(next, partner_[next]);
    f_.calls_.push_back(std::move(c));
  }

  bool is_definition(uint32_t close) const {
    for (uint32_t k = close + 1; k < n_ && k < close + 8; ++k) {
      if (is(k, "{") || is(k, ":")) return true;
      if (is(k, ";") || is(k, ",") || is(k, ")")) return false;
    }
    return false;
  }

  File& f_;
  const uint32_t n_;
  std::vector<uint32_t> partner_;
};

std::unique_ptr<File> parse(const Unit& unit) {
  std::unique_ptr<File> file(new File);
  file->unit_ = &unit;
  Lexer(*file).run();
  Structure(*file).run();
  return file;
}

std::string_view File::string_value(uint32_t token) const {
  std::string_view s = text(token);
  const size_t quote = s.find('"');
  if (quote == s.npos) return s;
  if (quote > 0 && s[quote - 1] == 'R') {
    const size_t open = s.find('('), close = s.rfind(')');
    return open == s.npos || close == s.npos || close < open ? std::string_view() : s.substr(open + 1, close - open - 1);
  }
  s.remove_prefix(quote + 1);
  if (s.ends_with('"')) s.remove_suffix(1);
  return s;
}

std::string File::text(TokenRange range) const {
  std::string out;
  for (uint32_t i = range.first; i < range.last && out.size() < 300; ++i) {
    if (i > range.first && tokens_[i].span.begin > tokens_[i - 1].span.end) out += ' ';
    out += text(i);
  }
  return out;
}

std::vector<std::string_view> File::conditions_of(int condition) const {
  std::vector<std::string_view> out;
  for (int c = condition; c >= 0; c = conditions_[static_cast<size_t>(c)].parent) out.push_back(conditions_[static_cast<size_t>(c)].text);
  return out;
}

bool File::runs_under(int condition, std::initializer_list<std::string_view> macros) const {
  for (const std::string_view text : conditions_of(condition)) {
    for (const std::string_view m : macros) {
      for (size_t at = text.find(m); at != text.npos; at = text.find(m, at + 1)) {
        const auto is_part = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_'; };
        if ((at > 0 && is_part(text[at - 1])) || (at + m.size() < text.size() && is_part(text[at + m.size()]))) continue;
        // Count the negations in front of it: !defined(X), !(defined(A) || defined(X)).
        int negations = 0;
        for (size_t k = 0; k < at; ++k) negations += text[k] == '!' && (k + 1 >= text.size() || text[k + 1] != '=');
        if (negations % 2 == 0) return true;
      }
    }
  }
  return false;
}

bool File::mentions(TokenRange range, std::string_view name) const {
  for (uint32_t i = range.first; i < range.last; ++i) {
    if (tokens_[i].kind == TokenKind::kIdentifier && text(i) == name) return true;
  }
  return false;
}

}  // namespace pointsman::audit::cpp
