// SPDX-License-Identifier: Apache-2.0
//
// Where the prompt comes from: text, a file, or token ids.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/args.h"
#include "pointsman/status.h"

namespace pointsman {
class Tokenizer;
}

namespace pointsman::cli {

struct PromptFlags {
  std::string text, file, tokens;
  bool parse_special = false;

  void declare(ArgParser& args);
  // After parse(): exactly one source, and well-formed ids. Reads nothing.
  Status check(const ArgParser& args) const;
  // Only token ids were given: the model's tokenizer is not needed for the prompt.
  bool is_ids() const { return !tokens.empty(); }
  // The ids of the prompt, with what the tokenizer puts in front of a text (BOS). "-" as file is stdin. `tokenizer` may be null
  // when is_ids(); otherwise the error says what lies in `model_dir` instead. An empty prompt is kInvalidArgument.
  Result<std::vector<int32_t>> ids(const ArgParser& args, const Tokenizer* tokenizer, const std::string& model_dir) const;
};

// A file of text, at most 64 MiB; "-" is stdin.
Result<std::string> read_prompt_file(const std::string& file);

// "1,2,3"; blanks are allowed.
Result<std::vector<int32_t>> parse_token_list(const std::string& text);

}  // namespace pointsman::cli
