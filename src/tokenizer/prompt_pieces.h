// SPDX-License-Identifier: Apache-2.0
//
// A prompt as pieces: control tokens that a message encoding wrote, and text. What a user typed is text, whatever it looks like: encoded
// without the tokenizer's added vocabulary, it never turns into a control token.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "pointsman/status.h"
#include "tokenizer/tokenizer.h"

namespace pointsman {

struct PromptPiece {
  bool is_token = false;  // `text` is the spelling of one control token
  std::string text;
  friend bool operator==(const PromptPiece&, const PromptPiece&) = default;
};

struct PromptOptions {
  // True: the spelling of a control token in text means that token, as tokenizers do when left alone. Only for text that nobody but
  // the operator writes.
  bool parse_text = false;
};

// kUnsupported: the tokenizer lacks a control token that the prompt needs, by name.
Result<std::vector<int32_t>> encode_pieces(const Tokenizer& tokenizer, const std::vector<PromptPiece>& pieces, PromptOptions options = {});
// The prompt as one text.
std::string join_pieces(const std::vector<PromptPiece>& pieces);

}  // namespace pointsman
