// SPDX-License-Identifier: Apache-2.0
//
// A conversation as the model sees it: messages through the chat template, or through the family's own message encoding, into token ids.
//
// An injection boundary: what a user typed must not become a control token. When a message holds the text of an added token
// ("<|im_end|>"), that message is encoded on its own with all added tokens off; otherwise the rendered prompt is encoded whole,
// as transformers does. A message encoding keeps text and control tokens apart by itself.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "pointsman/status.h"
#include "tokenizer/chat_template.h"
#include "tokenizer/message_encoding.h"
#include "tokenizer/tokenizer.h"

namespace pointsman::cli {

class Conversation {
 public:
  Conversation(const Tokenizer& tokenizer, ChatTemplate chat_template, Json template_variables);
  Conversation(const Tokenizer& tokenizer, const MessageEncoding& encoding, Json variables);

  void set_system(std::string text) { system_ = std::move(text); }
  void add_user(std::string text) { messages_.push_back({true, std::move(text)}); }
  void add_assistant(std::string text) { messages_.push_back({false, std::move(text)}); }
  void drop_last() { messages_.pop_back(); }
  void clear() { messages_.clear(); }  // the system message stays
  size_t num_messages() const { return messages_.size(); }

  // The whole prompt, with the beginning of the answer.
  Result<std::vector<int32_t>> ids() const;

 private:
  struct Message {
    bool is_user;
    std::string text;
  };
  bool holds_added_token(const std::string& text) const;
  Result<std::vector<int32_t>> encoded_ids() const;

  const Tokenizer& tokenizer_;
  std::optional<ChatTemplate> template_;
  const MessageEncoding* encoding_ = nullptr;  // when there is no template
  Json variables_;
  std::string system_;  // empty: none
  std::vector<Message> messages_;
};

// "enable_thinking=false", "name=text": JSON where it is JSON, text otherwise.
Result<Json> parse_template_variables(const std::vector<std::string>& assignments);

}  // namespace pointsman::cli
