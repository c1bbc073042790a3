// SPDX-License-Identifier: Apache-2.0
//
// Simple commands of shell text: words, quotes, assignments, substitutions, here-documents. Control words are stepped over, so that
// the commands of every branch are seen.
#include <algorithm>

#include "audit/config/scan.h"

namespace pointsman::audit::config {
namespace {

class Shell {
 public:
  Shell(Document& d, Span range, int depth) : d_(d), text_(std::string_view(d.unit->text).substr(0, range.end)), pos_(range.begin), depth_(depth) {}

  void run() {
    while (pos_ < text_.size() && d_.commands.size() < kMaxEntries) {
      const char c = text_[pos_];
      if (c == '\n') {
        end_command();
        ++pos_;
        skip_here_documents();
      } else if (is_blank(c)) {
        ++pos_;
      } else if (c == '\\' && at(pos_ + 1) == '\n') {
        pos_ += 2;
        skip_comment_lines();
      } else if (c == '#') {
        pos_ = std::min(text_.find('\n', pos_), text_.size());
      } else if (c == ';' || c == '|' || c == '&' || c == '(' || c == ')') {
        end_command();
        ++pos_;
      } else if (c == '<' || c == '>') {
        redirection();
      } else {
        word();
      }
    }
    end_command();
  }

 private:
  char at(size_t i) const { return i < text_.size() ? text_[i] : '\0'; }

  // Inside a continued command of a Dockerfile, whole-line comments are no words.
  void skip_comment_lines() {
    while (true) {
      size_t i = pos_;
      while (is_blank(at(i))) ++i;
      if (at(i) != '#' || words_.empty()) return;
      const size_t end = text_.find('\n', i);
      pos_ = end == text_.npos ? text_.size() : end + 1;
      if (pos_ >= text_.size()) return;
    }
  }

  void redirection() {
    const char c = text_[pos_];
    if (c == '<' && at(pos_ + 1) == '<' && at(pos_ + 2) != '<') {  // here-document
      pos_ += 2;
      if (at(pos_) == '-') ++pos_;
      while (is_blank(at(pos_))) ++pos_;
      std::string mark;
      while (pos_ < text_.size() && !is_blank(text_[pos_]) && text_[pos_] != '\n' && text_[pos_] != ';' && text_[pos_] != '|' && text_[pos_] != ')') {
        if (text_[pos_] != '"' && text_[pos_] != '\'' && text_[pos_] != '\\') mark += text_[pos_];
        ++pos_;
      }
      if (!mark.empty() && here_.size() < 16) here_.push_back(mark);
      return;
    }
    if ((c == '<' || c == '>') && at(pos_ + 1) == '(') {  // process substitution
      pos_ += 2;
      end_command();
      return;
    }
    // Also in front of a file descriptor: 2>&1 leaves a word "2" behind; drop it.
    if (!words_.empty() && words_.back().span.end == pos_ && words_.back().text.size() == 1 && words_.back().text[0] >= '0' && words_.back().text[0] <= '9') words_.pop_back();
    while (at(pos_) == '<' || at(pos_) == '>' || at(pos_) == '&' || at(pos_) == '|') ++pos_;
    skip_word_ = true;
  }

  void skip_here_documents() {
    for (const std::string& mark : here_) {
      while (pos_ < text_.size()) {
        const size_t end = std::min(text_.find('\n', pos_), text_.size());
        const std::string_view line = trim(text_.substr(pos_, end - pos_));
        pos_ = std::min(end + 1, text_.size());
        if (line == mark) break;
      }
    }
    here_.clear();
  }

  void word() {
    Word w;
    w.span.begin = static_cast<uint32_t>(pos_);
    while (pos_ < text_.size()) {
      const char c = text_[pos_];
      if (c == '\\' && at(pos_ + 1) == '\n') {
        pos_ += 2;
        break;
      }
      if (is_blank(c) || c == '\n' || c == ';' || c == '|' || c == '&' || c == '(' || c == ')' || c == '<' || c == '>') {
        // f(), arr=(...): the bracket ends the word and the list is read as words.
        break;
      }
      if (c == '\\' && pos_ + 1 < text_.size()) {
        w.text += text_[pos_ + 1];
        pos_ += 2;
      } else if (c == '\'') {
        const size_t end = std::min(text_.find('\'', pos_ + 1), text_.size());
        w.text += text_.substr(pos_ + 1, end - pos_ - 1);
        pos_ = std::min(end + 1, text_.size());
      } else if (c == '"') {
        double_quoted(w);
      } else if (c == '$' && (at(pos_ + 1) == '(' || at(pos_ + 1) == '{')) {
        substitution(w);
      } else if (c == '`') {
        const size_t end = std::min(text_.find('`', pos_ + 1), text_.size());
        inner(pos_ + 1, end);
        w.text += text_.substr(pos_, std::min(end + 1, text_.size()) - pos_);
        pos_ = std::min(end + 1, text_.size());
      } else {
        w.text += c;
        ++pos_;
      }
    }
    w.span.end = static_cast<uint32_t>(std::min(pos_, text_.size()));
    while (w.span.end > w.span.begin && (text_[w.span.end - 1] == '\n' || text_[w.span.end - 1] == '\\')) --w.span.end;
    if (skip_word_) {
      skip_word_ = false;
      return;
    }
    if (words_.size() < 4000) words_.push_back(std::move(w));
  }

  void double_quoted(Word& w) {
    ++pos_;
    while (pos_ < text_.size() && text_[pos_] != '"') {
      if (text_[pos_] == '\\' && pos_ + 1 < text_.size()) {
        if (text_[pos_ + 1] != '\n') w.text += text_[pos_ + 1];
        pos_ += 2;
      } else if (text_[pos_] == '$' && at(pos_ + 1) == '(') {
        substitution(w);
      } else {
        w.text += text_[pos_++];
      }
    }
    if (pos_ < text_.size()) ++pos_;
  }

  // $( ... ) and ${ ... }: part of the word; commands inside are read, too.
  void substitution(Word& w) {
    const size_t begin = pos_;
    const char open = text_[pos_ + 1], close = open == '(' ? ')' : '}';
    pos_ += 2;
    int level = 1;
    char quote = '\0';
    for (; pos_ < text_.size() && level > 0; ++pos_) {
      const char c = text_[pos_];
      if (c == '\\') {
        ++pos_;
      } else if (quote != '\0') {
        if (c == quote) quote = '\0';
      } else if (c == '\'' || c == '"') {
        quote = c;
      } else if (c == open) {
        ++level;
      } else if (c == close) {
        --level;
      } else if (c == '\n' && open == '{') {
        break;
      }
    }
    pos_ = std::min(pos_, text_.size());
    if (open == '(' && pos_ > begin + 3) inner(begin + 2, pos_ - 1);
    w.text += text_.substr(begin, pos_ - begin);
  }

  void inner(size_t begin, size_t end) {
    if (depth_ >= 4 || end <= begin) return;
    Shell(d_, {static_cast<uint32_t>(begin), static_cast<uint32_t>(end)}, depth_ + 1).run();
  }

  static bool assignment(const Word& w, Environment& out) {
    const size_t equals = w.text.find('=');
    if (equals == std::string::npos || equals == 0) return false;
    std::string_view name = std::string_view(w.text).substr(0, equals);
    if (name.ends_with('+')) name.remove_suffix(1);
    if (name.empty() || (name[0] >= '0' && name[0] <= '9')) return false;
    for (const char c : name) {
      if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_')) return false;
    }
    out = {std::string(name), w.text.substr(equals + 1), false, w.span};
    return true;
  }

  void end_command() {
    skip_word_ = false;
    if (words_.empty()) return;
    std::vector<Word> words;
    words.swap(words_);
    size_t first = 0;
    constexpr std::string_view kControl[] = {"if", "then", "else", "elif", "fi", "do", "done", "while", "until", "{", "}", "!", "time", "esac", "[[", "function"};
    while (first < words.size() && std::find(std::begin(kControl), std::end(kControl), words[first].text) != std::end(kControl)) ++first;
    if (first < words.size() && (words[first].text == "for" || words[first].text == "case" || words[first].text == "select")) return;
    Command c;
    Environment e;
    for (; first < words.size() && assignment(words[first], e); ++first) c.environment.push_back(e);
    if (first == words.size()) {  // NAME=value alone
      d_.environment.insert(d_.environment.end(), c.environment.begin(), c.environment.end());
      return;
    }
    c.words.assign(std::make_move_iterator(words.begin() + static_cast<long>(first)), std::make_move_iterator(words.end()));
    c.span = {c.words.front().span.begin, c.words.back().span.end};
    find_program(c);
    d_.environment.insert(d_.environment.end(), c.environment.begin(), c.environment.end());
    const std::string& program = c.program();
    if (program == "export" || program == "declare" || program == "setenv" || program == "unset") {
      for (size_t i = c.program_index + 1; i < c.words.size(); ++i) {
        if (assignment(c.words[i], e)) {
          d_.environment.push_back(e);
        } else if (program == "unset") {
          d_.environment.push_back({c.words[i].text, "", true, c.words[i].span});
        } else if (program == "setenv" && i + 1 < c.words.size()) {
          d_.environment.push_back({c.words[i].text, c.words[i + 1].text, false, {c.words[i].span.begin, c.words[i + 1].span.end}});
          ++i;
        }
      }
    }
    pins(c);
    d_.commands.push_back(std::move(c));
  }

  static void find_program(Command& c) {
    size_t i = 0;
    Environment e;
    while (i + 1 < c.words.size()) {
      const std::string& w = c.words[i].text;
      if (w == "sudo" || w == "env" || w == "nohup" || w == "time" || w == "exec" || w == "command" || w == "stdbuf" || w == "eval") {
        ++i;
        while (i + 1 < c.words.size() && c.words[i].text.starts_with('-')) ++i;
        while (i + 1 < c.words.size() && assignment(c.words[i], e)) {
          c.environment.push_back(e);
          ++i;
        }
      } else {
        break;
      }
    }
    c.program_index = i;
  }

  // pip install ..., conda install ...
  void pins(const Command& c) {
    size_t i = c.program_index;
    std::string program = c.words[i].text.substr(c.words[i].text.rfind('/') + 1);
    if (program.starts_with("python") && c.words.size() > i + 2 && c.words[i + 1].text == "-m") {
      program = c.words[i + 2].text;
      i += 2;
    }
    if (program == "uv" && c.words.size() > i + 1 && c.words[i + 1].text == "pip") {
      program = "pip";
      ++i;
    }
    const bool pip = program.starts_with("pip"), conda = program == "conda" || program == "mamba" || program == "micromamba";
    if (!pip && !conda) return;
    if (i + 1 >= c.words.size() || (c.words[i + 1].text != "install" && !(conda && c.words[i + 1].text == "create"))) return;
    for (i += 2; i < c.words.size(); ++i) {
      const std::string& w = c.words[i].text;
      if (w == "-r" || w == "-c" || w == "-f" || w == "-i" || w == "-t" || w == "-e" || w == "-n" || w == "--index-url" || w == "--extra-index-url" || w == "--find-links" ||
          w == "--channel" || w == "--requirement" || w == "--target") {
        ++i;
      } else if (!w.starts_with('-') && w.find('/') == std::string::npos && w.find('$') == std::string::npos && w != ".") {
        add_pin(d_, w, c.words[i].span, pip ? "pip" : "conda");
      }
    }
  }

  Document& d_;
  std::string_view text_;
  size_t pos_;
  int depth_;
  bool skip_word_ = false;
  std::vector<Word> words_;
  std::vector<std::string> here_;
};

}  // namespace

void scan_shell(Document& document, Span range) { Shell(document, range, 0).run(); }

}  // namespace pointsman::audit::config
