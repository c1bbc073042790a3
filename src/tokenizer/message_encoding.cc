// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/message_encoding.h"

namespace pointsman {
namespace {

constexpr MessageEncoding kEncodings[] = {
    {"deepseek_v4", render_deepseek_v4, parse_deepseek_v4_answer},
};

}  // namespace

const MessageEncoding* find_message_encoding(std::string_view model_type) {
  for (const MessageEncoding& e : kEncodings) {
    if (e.model_type == model_type) return &e;
  }
  return nullptr;
}

}  // namespace pointsman
