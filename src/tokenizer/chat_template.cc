// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/chat_template.h"

#include "base/log.h"
#include "tokenizer/jinja/interpreter.h"
#include "tokenizer/jinja/parser.h"
#include "tokenizer/tokenizer_config.h"

namespace pointsman {

Result<ChatTemplate> ChatTemplate::parse(std::string source) {
  if (source.size() > kMaxSourceBytes) {
    return error(StatusCode::kUnsupported, "template of {} bytes, more than {}", source.size(), kMaxSourceBytes);
  }
  ChatTemplate out;
  PM_ASSIGN_OR_RETURN(out.template_, jinja::parse(source));
  return out;
}

Result<ChatTemplate> ChatTemplate::load(FileSystem& fs, const std::string& model_dir, std::string_view name, bool for_tools) {
  PM_ASSIGN_OR_RETURN(TokenizerConfig config, load_tokenizer_config(fs, model_dir, true));
  const auto find = [&](std::string_view wanted) -> std::string* {
    for (auto& [known, source] : config.chat_templates) {
      if (known == wanted) return &source;
    }
    return nullptr;
  };
  std::string* source = nullptr;
  if (!name.empty()) {
    source = find(name);
  } else {
    if (for_tools) source = find("tool_use");
    if (source == nullptr) source = find("default");
  }
  if (source == nullptr) {
    return error(StatusCode::kNotFound, "{}: no chat template{}", model_dir, name.empty() ? "" : format(" named \"{}\"", name));
  }
  Result<ChatTemplate> parsed = parse(std::move(*source));
  if (!parsed.ok()) return parsed.status().with_context(model_dir);
  Json tokens = Json::object();
  const auto add = [&](const char* key, const std::optional<std::string>& token) {
    if (token) tokens.set(key, *token);
  };
  add("bos_token", config.bos_token);
  add("eos_token", config.eos_token);
  add("pad_token", config.pad_token);
  add("unk_token", config.unk_token);
  parsed->set_special_tokens(std::move(tokens));
  return parsed;
}

Result<std::string> ChatTemplate::render(const Json& context, TemplateClock clock) const {
  if (!context.is_object())
    return error(StatusCode::kInvalidArgument, "the context of a template is a {}, not an object", context.type_name());
  jinja::Interpreter interpreter(*template_, {clock.unix_seconds, clock.utc_offset_seconds}, {});
  return interpreter.run(context);
}

Result<std::string> ChatTemplate::render_chat(const ChatRequest& request) const {
  Json context = special_tokens_;
  if (request.extra.is_object()) {
    for (const auto& [key, value] : request.extra.as_object()) context.set(key, value);
  }
  context.set("messages", request.messages);
  context.set("tools", request.tools);
  context.set("documents", request.documents);
  context.set("add_generation_prompt", request.add_generation_prompt);
  return render(context, request.clock);
}

}  // namespace pointsman
