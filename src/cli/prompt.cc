// SPDX-License-Identifier: Apache-2.0
#include "cli/prompt.h"

#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>

#include "base/fs.h"
#include "base/log.h"
#include "tokenizer/tokenizer.h"

namespace pointsman::cli {
namespace {

constexpr uint64_t kMaxPromptBytes = uint64_t{64} << 20;

Result<std::string> read_stdin() {
  std::string text;
  char chunk[16384];
  for (;;) {
    const ssize_t n = ::read(STDIN_FILENO, chunk, sizeof chunk);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return error(StatusCode::kIo, "stdin: {}", std::strerror(errno));
    if (n == 0) return text;
    text.append(chunk, static_cast<size_t>(n));
    if (text.size() > kMaxPromptBytes)
      return error(StatusCode::kUnsupported, "stdin: a prompt of more than {} bytes", kMaxPromptBytes);
  }
}

}  // namespace

Result<std::string> read_prompt_file(const std::string& file) { return file == "-" ? read_stdin() : read_text_file(FileSystem::real(), file, kMaxPromptBytes); }

Result<std::vector<int32_t>> parse_token_list(const std::string& text) {
  std::vector<int32_t> ids;
  const char* p = text.data();
  const char* const end = p + text.size();
  const auto skip_blanks = [&] {
    while (p != end && *p == ' ') ++p;
  };
  for (;;) {
    skip_blanks();
    int32_t id = 0;
    const auto [rest, ec] = std::from_chars(p, end, id);
    if (ec != std::errc() || id < 0) {
      return error(StatusCode::kInvalidArgument, "--tokens '{}': expected ids like 1,2,3; wrong at character {}", text,
                   p - text.data() + 1);
    }
    ids.push_back(id);
    p = rest;
    skip_blanks();
    if (p == end) return ids;
    if (*p++ != ',')
      return error(StatusCode::kInvalidArgument, "--tokens '{}': expected a comma at character {}", text, p - text.data());
  }
}

void PromptFlags::declare(ArgParser& args) {
  args.option("-p,--prompt", text, "prompt text");
  args.option("-f,--file", file, "file with the prompt; - is stdin");
  args.option("--tokens", tokens, "prompt as token ids: 1,2,3");
  args.flag("--parse-special", parse_special, "the text of special tokens (\"<|im_end|>\") in the prompt means these tokens");
}

Status PromptFlags::check(const ArgParser& args) const {
  const int given = args.given("--prompt") + args.given("--file") + args.given("--tokens");
  if (given == 0) return error(StatusCode::kInvalidArgument, "a prompt is needed: -p TEXT, -f FILE or --tokens 1,2,3");
  if (given > 1) return error(StatusCode::kInvalidArgument, "only one of -p, -f and --tokens may be given");
  if (!args.given("--tokens")) return ok_status();
  return parse_token_list(tokens).status();
}

Result<std::vector<int32_t>> PromptFlags::ids(const ArgParser& args, const Tokenizer* tokenizer,
                                              const std::string& model_dir) const {
  if (args.given("--tokens")) return parse_token_list(tokens);
  if (tokenizer == nullptr) return missing_tokenizer(FileSystem::real(), model_dir);
  std::string prompt = text;
  if (args.given("--file")) {
    PM_ASSIGN_OR_RETURN(prompt, read_prompt_file(file));
  }
  PM_ASSIGN_OR_RETURN(std::vector<int32_t> ids,
                      tokenizer->encode(prompt, {.add_special_tokens = true, .parse_special = parse_special}));
  if (ids.empty())
    return error(StatusCode::kInvalidArgument, "the prompt is empty, and the tokenizer adds no token to begin with");
  return ids;
}

}  // namespace pointsman::cli
