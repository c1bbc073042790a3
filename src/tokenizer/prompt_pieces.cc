// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/prompt_pieces.h"

#include "base/log.h"

namespace pointsman {

Result<std::vector<int32_t>> encode_pieces(const Tokenizer& tokenizer, const std::vector<PromptPiece>& pieces, PromptOptions options) {
  std::vector<int32_t> ids;
  for (const PromptPiece& p : pieces) {
    if (p.is_token) {
      const int32_t id = tokenizer.find(p.text);
      if (id < 0) return error(StatusCode::kUnsupported, "the tokenizer has no token \"{}\", which this model's messages need", p.text);
      ids.push_back(id);
      continue;
    }
    PM_ASSIGN_OR_RETURN(const std::vector<int32_t> part,
                        tokenizer.encode(p.text, {.parse_special = options.parse_text, .parse_added = options.parse_text, .replace_invalid = true}));
    ids.insert(ids.end(), part.begin(), part.end());
  }
  return ids;
}

std::string join_pieces(const std::vector<PromptPiece>& pieces) {
  std::string text;
  for (const PromptPiece& p : pieces) text += p.text;
  return text;
}

}  // namespace pointsman
