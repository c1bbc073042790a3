// SPDX-License-Identifier: Apache-2.0
//
// Code blocks of documents.
#include "audit/blocks.h"

#include <algorithm>

namespace pointsman::audit {
namespace {

bool is_word_char(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_'; }

std::string_view trimmed(std::string_view s) {
  while (!s.empty() && (s.front() == ' ' || s.front() == '\t')) s.remove_prefix(1);
  while (!s.empty() && (s.back() == ' ' || s.back() == '\t')) s.remove_suffix(1);
  return s;
}

std::string_view first_word(std::string_view s) {
  size_t i = 0;
  while (i < s.size() && is_word_char(s[i])) ++i;
  return s.substr(0, i);
}

bool one_of(std::string_view s, std::initializer_list<std::string_view> list) { return std::find(list.begin(), list.end(), s) != list.end(); }

// Letters outside ASCII stand in comments and strings of code, anywhere in prose.
bool is_prose(std::string_view s) {
  for (size_t i = 0; i < s.size(); ++i) {
    if (s[i] == '#' || s[i] == '"' || s[i] == '\'') return false;
    if (static_cast<uint8_t>(s[i]) >= 0x80) return true;
  }
  return false;
}

// Could `s` (no indentation) be a line of Python on its own?
bool python_line(std::string_view s) {
  s = trimmed(s);
  if (s.empty() || is_prose(s)) return false;
  std::string_view code = s;
  if (const size_t comment = s.find(" #"); comment != s.npos) code = trimmed(s.substr(0, comment));
  if (code.empty()) return false;
  const std::string_view word = first_word(code);
  const bool colon = code.ends_with(':');
  const auto has = [&](std::string_view part) { return code.find(part) != code.npos; };
  if (word == "import") return code.size() > 7 && code.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_., ", 7) == code.npos && (!has(" ") || std::count(code.begin(), code.end(), ' ') <= 1 || has(" as ") || has(","));
  if (word == "from") return has(" import ");
  if (word == "def") return has("(");
  if (word == "class") return colon || has("(");
  if (code[0] == '@') return code.size() > 1 && is_word_char(code[1]) && !has(" ");
  if (one_of(word, {"else", "try", "finally"})) return code.size() == word.size() + 1 && colon;
  if (word == "except") return colon;
  if (word == "for") return colon && has(" in ");
  if (word == "with") return colon && (has("(") || has(" as "));
  if (one_of(word, {"if", "elif", "while"})) return colon && (has("(") || has("=") || has(".") || has("_") || has(" in ") || has("<") || has(">"));
  if (one_of(word, {"return", "raise", "assert", "yield", "del"})) return !has(". ") && std::count(code.begin(), code.end(), ' ') <= 12 && (has("(") || has("_") || has(".") || std::count(code.begin(), code.end(), ' ') <= 2);
  if (word.empty()) return false;
  // A target and '=': a, b.c[d] = ...
  size_t i = word.size();
  while (i < code.size() && (is_word_char(code[i]) || code[i] == '.' || (code[i] == ',' && i + 1 < code.size() && code[i + 1] == ' '))) i += code[i] == ',' ? 2 : 1;
  if (i < code.size() && code[i] == '[') {
    const size_t close = code.find(']', i);
    if (close != code.npos) i = close + 1;
  }
  std::string_view rest = trimmed(code.substr(std::min(i, code.size())));
  if (rest.size() > 1 && rest[0] == '=' && rest[1] != '=') return i < code.size() && (code[i] == ' ' || has("("));
  if (rest.starts_with("+= ") || rest.starts_with("-= ") || rest.starts_with("*= ") || rest.starts_with("/= ")) return true;
  // A call.
  if (rest.starts_with("(") && code[i] == '(') return code.ends_with(")") || code.ends_with("(") || code.ends_with(",") || code.ends_with("[") || code.ends_with("{") || code.ends_with(")]");
  return false;
}

bool shell_line(std::string_view s) {
  s = trimmed(s);
  if (s.starts_with("$ ")) s = trimmed(s.substr(2));
  if (s.empty() || is_prose(s)) return false;
  std::string_view program, second;
  bool option = false, assigned = false;
  for (std::string_view rest = s; !rest.empty();) {
    const size_t end = std::min(rest.find(' '), rest.size());
    const std::string_view w = rest.substr(0, end);
    rest = trimmed(rest.substr(end));
    const size_t equals = w.find('=');
    const bool assignment = equals != w.npos && equals > 2 && std::all_of(w.begin(), w.begin() + static_cast<long>(equals), [](char c) { return (c >= 'A' && c <= 'Z') || c == '_' || (c >= '0' && c <= '9'); });
    if (program.empty() && assignment) {
      assigned = true;
    } else if (program.empty() && w != "sudo") {
      program = w;
    } else if (!program.empty()) {
      if (second.empty()) second = w;
      option |= w.starts_with('-') || w.find('/') != w.npos || w.find('=') != w.npos || w.ends_with(".py") || w.ends_with(".sh");
    }
  }
  if (program.empty()) return assigned;
  if (one_of(program, {"pip", "pip3", "conda", "apt", "apt-get", "yum", "dnf", "docker", "systemctl"}))
    return one_of(second, {"install", "uninstall", "create", "update", "run", "build", "pull", "stop", "start", "activate", "remove", "exec"});
  if (program == "export" || program == "unset") return option || program == "unset";
  if (one_of(program, {"npu-smi", "nvidia-smi", "hccn_tool", "msnpureport", "lscpu"})) return true;
  if (one_of(program, {"python", "python3", "torchrun", "torch_npu_run", "deepspeed", "accelerate", "mpirun", "srun", "git", "cd", "source", "bash", "sh", "wget", "curl", "make",
                       "cmake", "ssh", "chmod", "mkdir", "pkill", "kill", "vllm", "numactl", "taskset", "echo", "nvcc"}))
    return option;
  return assigned && option;
}

FileKind language_of_fence(std::string_view info) {
  info = trimmed(info);
  if (info.starts_with('{')) info = trimmed(info.substr(1));
  if (info.starts_with('.')) info.remove_prefix(1);
  std::string name;
  for (const char c : info) {
    if (!is_word_char(c) && c != '+' && c != '-') break;
    name += c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  }
  if (one_of(name, {"python", "py", "python3", "ipython", "py3", "pycon"})) return FileKind::kPython;
  if (one_of(name, {"bash", "sh", "shell", "zsh", "console", "shell-session", "terminal"})) return FileKind::kShell;
  if (one_of(name, {"c", "cpp", "c++", "cuda", "cu", "cc", "cxx", "h", "hpp"})) return FileKind::kCpp;
  if (one_of(name, {"yaml", "yml"})) return FileKind::kYaml;
  if (one_of(name, {"json", "jsonc", "json5"})) return FileKind::kJson;
  if (name == "toml") return FileKind::kToml;
  if (one_of(name, {"ini", "cfg", "properties", "dotenv"})) return FileKind::kIni;
  if (one_of(name, {"dockerfile", "docker"})) return FileKind::kDockerfile;
  return FileKind::kUnknown;
}

class Blocks {
 public:
  explicit Blocks(std::string_view text) {
    for (size_t i = 0; i <= text.size();) {
      const size_t end = std::min(text.find('\n', i), text.size());
      lines_.push_back(text.substr(i, end - i));
      i = end + 1;
    }
  }

  std::vector<Unit> run() {
    for (size_t i = 0; i < lines_.size();) {
      const std::string_view s = trimmed(lines_[i]);
      if (s.starts_with("```") || s.starts_with("~~~")) {
        i = fenced(i, s);
      } else if (s.starts_with(".. code-block::") || s.starts_with(".. code::")) {
        i = directive(i, s.substr(s.find("::") + 2));
      } else {
        i = unmarked(i);
      }
    }
    return std::move(units_);
  }

 private:
  // Lines [first, last).
  void add(size_t first, size_t last, FileKind kind, size_t indent) {
    Unit u;
    u.label = "code block";
    u.first_line = static_cast<int>(first) + 1;
    for (size_t i = first; i < last; ++i) {
      // Blocks inside lists are indented as a whole.
      const size_t blank = std::min(lines_[i].find_first_not_of(" \t"), lines_[i].size());
      size_t taken = std::min(blank, indent);
      if (kind == FileKind::kShell && lines_[i].substr(taken).starts_with("$ ")) taken += 2;
      const std::string_view line = lines_[i].substr(taken);
      u.column_shifts.push_back(static_cast<int>(taken));
      u.text += line;
      u.text += '\n';
    }
    if (trimmed(u.text).empty()) return;
    u.kind = kind == FileKind::kUnknown ? guess_language(u.text) : kind;
    if (u.kind != FileKind::kUnknown) units_.push_back(std::move(u));
  }

  size_t fenced(size_t i, std::string_view s) {
    const char mark = s[0];
    size_t width = 0;
    while (width < s.size() && s[width] == mark) ++width;
    const std::string_view info = trimmed(s.substr(width));
    if (info.find(mark) != info.npos) return i + 1;  // ```code``` within one line
    size_t end = i + 1;
    for (; end < lines_.size(); ++end) {
      const std::string_view t = trimmed(lines_[end]);
      if (t.size() >= width && t.find_first_not_of(mark) == t.npos) break;
    }
    const FileKind kind = language_of_fence(info);
    const bool named = !info.empty() && info[0] != '{' && kind == FileKind::kUnknown;
    const size_t indent = static_cast<size_t>(s.data() - lines_[i].data());
    if (!named) add(i + 1, end, kind, indent);  // a language that is none of ours is left alone
    return end + 1;
  }

  size_t directive(size_t i, std::string_view info) {
    const size_t outer = std::min(lines_[i].find_first_not_of(" \t"), lines_[i].size());
    size_t first = i + 1;
    while (first < lines_.size() && (trimmed(lines_[first]).empty() || trimmed(lines_[first]).starts_with(':'))) ++first;
    if (first >= lines_.size()) return first;
    const size_t indent = lines_[first].find_first_not_of(" \t");
    if (indent <= outer) return first;
    size_t end = first;
    while (end < lines_.size() && (trimmed(lines_[end]).empty() || lines_[end].find_first_not_of(" \t") >= indent)) ++end;
    add(first, end, language_of_fence(info), indent);
    return end;
  }

  // Code that nothing marks: it starts with a line that is plainly code and goes on while lines are code, indented, inside brackets
  // or strings.
  size_t unmarked(size_t i) {
    const std::string_view line = lines_[i];
    if (line.empty() || line[0] == ' ' || line[0] == '\t') return i + 1;
    const bool shell = shell_line(line), python = !shell && python_line(line);
    // A comment may open a block when code follows at once.
    const bool comment = !shell && !python && line[0] == '#' && (line.size() < 2 || line[1] == ' ') && i + 1 < lines_.size() && !lines_[i + 1].empty() && lines_[i + 1][0] != '#';
    const bool shell_after = comment && shell_line(lines_[i + 1]), python_after = comment && !shell_after && python_line(lines_[i + 1]) && lines_[i + 1].find('(') != std::string_view::npos;
    if (!shell && !python && !shell_after && !python_after) return i + 1;
    const size_t end = shell || shell_after ? shell_end(i) : python_end(i);
    add(i, end, shell || shell_after ? FileKind::kShell : FileKind::kPython, 0);
    return end;
  }

  size_t shell_end(size_t i) const {
    size_t end = i + 1;
    bool continued = trimmed(lines_[i]).ends_with('\\');
    for (; end < lines_.size(); ++end) {
      const std::string_view s = lines_[end];
      if (!continued && !shell_line(s)) break;
      continued = trimmed(s).ends_with('\\');
    }
    return end;
  }

  size_t python_end(size_t i) const {
    size_t end = i, blank_from = 0;
    int depth = 0;
    std::string_view quote;  // of an open triple-quoted string
    bool blank = false;
    for (size_t k = i; k < lines_.size(); ++k) {
      const std::string_view s = lines_[k];
      const std::string_view t = trimmed(s);
      if (quote.empty() && depth == 0 && k > i) {
        if (t.empty()) {
          if (!blank) blank_from = k;
          blank = true;
          if (k - blank_from > 2) break;
          continue;
        }
        const bool indented = s[0] == ' ' || s[0] == '\t';
        const bool closes = std::string_view(")]}").find(t[0]) != std::string_view::npos;
        const bool comment = t[0] == '#';
        if (!indented && !closes && !comment && !(python_line(s) && !shell_line(s))) break;
      }
      blank = false;
      end = k + 1;
      scan(t, depth, quote);
      if (depth > 0 && k - i > 400) break;
    }
    return end;
  }

  static void scan(std::string_view s, int& depth, std::string_view& quote) {
    for (size_t i = 0; i < s.size(); ++i) {
      if (!quote.empty()) {
        if (s.substr(i, 3) == quote) {
          quote = {};
          i += 2;
        }
        continue;
      }
      const char c = s[i];
      if (c == '#') return;
      if (s.substr(i, 3) == "\"\"\"" || s.substr(i, 3) == "'''") {
        quote = c == '"' ? "\"\"\"" : "'''";
        i += 2;
      } else if (c == '"' || c == '\'') {
        size_t k = i + 1;
        while (k < s.size() && s[k] != c) k += s[k] == '\\' ? 2 : 1;
        i = k;
      } else if (c == '(' || c == '[' || c == '{') {
        ++depth;
      } else if (c == ')' || c == ']' || c == '}') {
        depth = std::max(0, depth - 1);
      }
    }
  }

  std::vector<std::string_view> lines_;
  std::vector<Unit> units_;
};

}  // namespace

FileKind guess_language(std::string_view block) {
  int python = 0, shell = 0, cpp = 0, yaml = 0, docker = 0;
  const std::string_view start = trimmed(block.substr(std::min(block.find_first_not_of(" \t\n"), block.size())));
  if (start.starts_with("{\n") || start.starts_with("{\"") || start.starts_with("[\n") || start.starts_with("{ \"")) return FileKind::kJson;
  for (size_t i = 0; i < block.size();) {
    const size_t end = std::min(block.find('\n', i), block.size());
    const std::string_view s = trimmed(block.substr(i, end - i));
    i = end + 1;
    if (s.empty()) continue;
    if (shell_line(s)) {
      ++shell;
    } else if (python_line(s)) {
      ++python;
    }
    if (s.starts_with("#include") || s.ends_with(';') || s.find("__global__") != s.npos || s.find("<<<") != s.npos || s.ends_with("};")) ++cpp;
    if (s.starts_with("FROM ") || s.starts_with("RUN ") || s.starts_with("ENV ")) ++docker;
    const size_t colon = s.find(": ");
    if ((colon != s.npos && first_word(s).size() == colon) || s.starts_with("- ")) ++yaml;
  }
  const int best = std::max({python, shell, cpp, yaml, docker});
  if (best == 0) return FileKind::kUnknown;
  if (best == docker) return FileKind::kDockerfile;
  if (best == cpp && cpp > python) return FileKind::kCpp;
  if (best == python) return FileKind::kPython;
  if (best == shell) return FileKind::kShell;
  return best == cpp ? FileKind::kCpp : FileKind::kYaml;
}

std::vector<Unit> document_units(std::string_view text) { return Blocks(text).run(); }

}  // namespace pointsman::audit
