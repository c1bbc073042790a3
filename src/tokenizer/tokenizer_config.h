// SPDX-License-Identifier: Apache-2.0
//
// What tokenizer_config.json (and chat_template.jinja) say beside tokenizer.json. Only the keys below are read; the rest of the
// file is checked to be JSON and passed over.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/fs.h"
#include "pointsman/status.h"
#include "tokenizer/json_reader.h"

namespace pointsman {

struct TokenizerConfig {
  // As text: "..." or {"content": "..."} in the file.
  std::optional<std::string> bos_token;
  std::optional<std::string> eos_token;
  std::optional<std::string> pad_token;
  std::optional<std::string> unk_token;
  bool add_bos_token = false;
  bool add_eos_token = false;
  bool lists_added_tokens = false;  // added_tokens_decoder is there: special_tokens_map.json of older folders is not looked at
  // Name and source. A single template is named "default". Those of chat_template.jinja and of the folder
  // additional_chat_templates/ replace the ones of the file, as transformers has it.
  std::vector<std::pair<std::string, std::string>> chat_templates;
};

Result<TokenizerConfig> parse_tokenizer_config(ByteSource& source, bool with_templates);
// tokenizer_config.json, and special_tokens_map.json where older folders keep the special tokens. An absent file is an empty
// configuration. `with_templates` false: chat_templates stays empty.
Result<TokenizerConfig> load_tokenizer_config(FileSystem& fs, const std::string& model_dir, bool with_templates);

}  // namespace pointsman
