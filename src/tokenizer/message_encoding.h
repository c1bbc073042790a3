// SPDX-License-Identifier: Apache-2.0
//
// Chat formats that are code instead of a template: for models whose checkpoint has no Jinja template.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "pointsman/status.h"
#include "tokenizer/chat_template.h"
#include "tokenizer/prompt_pieces.h"

namespace pointsman {

struct MessageEncoding {
  std::string_view model_type;
  // The prompt of a request, as a template would render it.
  Result<std::vector<PromptPiece>> (*render)(const ChatRequest& request);
  // A generated text as a message {role, content, reasoning_content}, for the history of the next turn. Tool calls stay in the content.
  Json (*parse_answer)(std::string_view text);
};

// Null when the family's checkpoints bring a template.
const MessageEncoding* find_message_encoding(std::string_view model_type);

// DeepSeek-V4 (Flash and Pro), as the vendor's encoder writes it (deepseek-recipe 0.2.0, MIT; the texts of the format are part of what the
// model was trained on).
//
// Messages: system (all of them go to the front), user, assistant (content, reasoning_content, tool_calls, prefix), tool (content,
// tool_call_id), latest_reminder. A turn of the user is what lies between two answers: texts and tool results, joined by blank lines, results
// in the order of the calls. Reasoning of earlier answers is dropped, unless there are tools. `prefix: true` on the last
// answer: it is continued.
// request.extra: thinking or enable_thinking (default true), reasoning_effort: "low" (no instruction), "high" or "xhigh" (default), "max";
// tool_choice: "auto" (default), "none", "required"; response_format: "text" (default), "json_object"; response_schema: a JSON
// Schema. Others are passed over, as templates do.
// kInvalidArgument: a message that does not fit, by number.
Result<std::vector<PromptPiece>> render_deepseek_v4(const ChatRequest& request);
Json parse_deepseek_v4_answer(std::string_view text);

}  // namespace pointsman
