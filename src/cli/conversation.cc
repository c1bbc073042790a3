// SPDX-License-Identifier: Apache-2.0
#include "cli/conversation.h"

#include <algorithm>
#include <ctime>

#include "base/log.h"

namespace pointsman::cli {
namespace {

// Stands for a guarded message while the template runs. Private-use characters: a template treats them as text, and no trimming
// touches them.
std::string stand_in(size_t i) {
  return format("\xEE\x80\x80{}\xEE\x80\x81", i);
}

TemplateClock clock_now() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  return {.unix_seconds = now, .utc_offset_seconds = local.tm_gmtoff};
}

Json message(const char* role, const std::string& content) {
  Json m = Json::object();
  m.set("role", role);
  m.set("content", content);
  return m;
}

}  // namespace

Conversation::Conversation(const Tokenizer& tokenizer, ChatTemplate chat_template, Json template_variables)
    : tokenizer_(tokenizer), template_(std::move(chat_template)), variables_(std::move(template_variables)) {}

Conversation::Conversation(const Tokenizer& tokenizer, const MessageEncoding& encoding, Json variables)
    : tokenizer_(tokenizer), encoding_(&encoding), variables_(std::move(variables)) {}

Result<std::vector<int32_t>> Conversation::encoded_ids() const {
  ChatRequest request{.extra = variables_};
  if (!system_.empty()) request.messages.push_back(message("system", system_));
  for (const Message& m : messages_) request.messages.push_back(m.is_user ? message("user", m.text) : encoding_->parse_answer(m.text));
  PM_ASSIGN_OR_RETURN(const std::vector<PromptPiece> pieces, encoding_->render(request));
  return encode_pieces(tokenizer_, pieces);
}

bool Conversation::holds_added_token(const std::string& text) const {
  // By encoding it: a normalizer can turn other characters into a token's text.
  const Result<std::vector<int32_t>> ids = tokenizer_.encode(text, {.replace_invalid = true});
  if (!ids.ok()) return true;
  return std::any_of(ids->begin(), ids->end(), [this](int32_t id) {
    const auto& added = tokenizer_.added_tokens();
    return std::any_of(added.begin(), added.end(), [id](const AddedToken& t) { return t.id == id; });
  });
}

Result<std::vector<int32_t>> Conversation::ids() const {
  if (encoding_ != nullptr) return encoded_ids();
  ChatRequest request{.extra = variables_, .clock = clock_now()};
  std::vector<const std::string*> guarded;
  const auto add = [&](const char* role, const std::string& text, bool from_user) {
    if (from_user && holds_added_token(text)) {
      request.messages.push_back(message(role, stand_in(guarded.size())));
      guarded.push_back(&text);
    } else {
      request.messages.push_back(message(role, text));
    }
  };
  if (!system_.empty()) add("system", system_, true);
  for (const Message& m : messages_) add(m.is_user ? "user" : "assistant", m.text, m.is_user);
  PM_ASSIGN_OR_RETURN(const std::string rendered, template_->render_chat(request));

  std::vector<int32_t> ids;
  const auto append = [&](std::string_view text, EncodeOptions options) -> Status {
    PM_ASSIGN_OR_RETURN(const std::vector<int32_t> part, tokenizer_.encode(text, options));
    ids.insert(ids.end(), part.begin(), part.end());
    return ok_status();
  };
  const EncodeOptions markup{.replace_invalid = true};
  const EncodeOptions plain{.parse_special = false, .parse_added = false, .replace_invalid = true};
  size_t done = 0;
  for (size_t i = 0; i < guarded.size(); ++i) {
    const std::string name = stand_in(i);
    const size_t at = rendered.find(name, done);
    // A template that drops, repeats or reorders messages cannot be guarded.
    if (at == std::string::npos || rendered.find(name, at + 1) != std::string::npos) {
      return error(StatusCode::kUnsupported,
                   "a message holds the text of a control token, and this chat template does not pass messages on as they are");
    }
    PM_RETURN_IF_ERROR(append(std::string_view(rendered).substr(done, at - done), markup));
    PM_RETURN_IF_ERROR(append(*guarded[i], plain));
    done = at + name.size();
  }
  PM_RETURN_IF_ERROR(append(std::string_view(rendered).substr(done), markup));
  if (ids.empty()) return error(StatusCode::kInvalidArgument, "the chat template made an empty prompt");
  return ids;
}

Result<Json> parse_template_variables(const std::vector<std::string>& assignments) {
  Json variables = Json::object();
  for (const std::string& a : assignments) {
    const size_t equals = a.find('=');
    if (equals == std::string::npos || equals == 0) {
      return error(StatusCode::kInvalidArgument, "--template-var '{}': expected NAME=VALUE", a);
    }
    const std::string value = a.substr(equals + 1);
    Result<Json> json = parse_json(value);
    variables.set(a.substr(0, equals), json.ok() ? *json : Json(value));
  }
  return variables;
}

}  // namespace pointsman::cli
