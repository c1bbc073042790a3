// SPDX-License-Identifier: Apache-2.0
//
// Chat templates: a list of messages -> the prompt text that the model was trained on.
//
// The template is the Jinja program that comes with the model, compiled once and run by our own interpreter (jinja/), whose
// results are those of jinja2 in the sandbox that transformers sets up. Templates are code from strangers: parse() bounds their
// nesting, render() their steps (10 million), nesting, text (16 MiB) and memory (256 MiB). Every failure names the line.
//
// Differences from Python that remain: integers have 64 bits (beyond is an error); 'ß' aside, case is mapped character by
// character; include, import, extends, block, call and recursive loops are refused when parsing, unknown filters and tests when
// they are reached.
//
// Immutable; every function is thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/fs.h"
#include "base/json.h"
#include "pointsman/status.h"

namespace pointsman {

namespace jinja {
struct Template;
}

// The time that strftime_now() shows. Part of the input, so that a rendering can be repeated.
struct TemplateClock {
  std::optional<int64_t> unix_seconds;  // absent: strftime_now() fails
  int64_t utc_offset_seconds = 0;
};

struct ChatRequest {
  Json messages = Json::array();
  Json tools;      // null: none
  Json documents;  // null: none
  bool add_generation_prompt = true;
  Json extra = Json::object();  // more variables ("enable_thinking"); they replace bos_token and the like
  TemplateClock clock;
};

class ChatTemplate {
 public:
  static constexpr size_t kMaxSourceBytes = size_t{1} << 20;

  // kCorrupt: no valid template. kUnsupported: one that uses what the interpreter does not have.
  static Result<ChatTemplate> parse(std::string source);
  // The model's template, with its special tokens as variables. `name`: one of several; empty: "tool_use" when `for_tools` and
  // there is one, else "default". kNotFound when the model has none.
  static Result<ChatTemplate> load(FileSystem& fs, const std::string& model_dir, std::string_view name = {},
                                   bool for_tools = false);

  // `context` is an object whose members are the variables. kInvalidArgument: the template failed, or called raise_exception();
  // the message says what and where. kUnsupported: a filter or test that the interpreter does not have.
  Result<std::string> render(const Json& context, TemplateClock clock = {}) const;
  // As tokenizer.apply_chat_template() of transformers.
  Result<std::string> render_chat(const ChatRequest& request) const;

  // bos_token, eos_token, ... as render_chat() passes them.
  const Json& special_tokens() const { return special_tokens_; }
  void set_special_tokens(Json tokens) { special_tokens_ = std::move(tokens); }

 private:
  ChatTemplate() = default;
  std::shared_ptr<const jinja::Template> template_;  // shared: copies of a ChatTemplate are cheap
  Json special_tokens_ = Json::object();
};

}  // namespace pointsman
