// SPDX-License-Identifier: Apache-2.0
//
// pointsman chat: a conversation in the terminal, or one message per line of piped stdin. The session lives on: each turn only
// prefills what is new.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <optional>

#include "base/log.h"
#include "checkpoint/model_config.h"
#include "cli/args.h"
#include "cli/command.h"
#include "cli/conversation.h"
#include "cli/engine_flags.h"
#include "cli/generate.h"
#include "cli/interrupt.h"
#include "cli/load.h"
#include "cli/sampling_flags.h"
#include "cli/stats.h"

namespace pointsman::cli {
namespace {

constexpr const char* kName = "chat";
constexpr const char* kCommands =
    "/exit          leave (or Ctrl-D)\n"
    "/reset         forget the conversation\n"
    "/system TEXT   set the system message, and forget the conversation\n"
    "A line that ends with \\ goes on in the next one. Ctrl-C ends an answer.\n";

struct Flags {
  EngineFlags engine;
  SamplingFlags sampling;
  StatsFlags stats{.format = "none"};
  int64_t max_tokens = 1024;
  std::string system, template_name;
  std::vector<std::string> template_variables;
};

// A message of one line, or of several when they end with a backslash. Empty at the end of the input, or after Ctrl-C.
std::optional<std::string> read_message(bool is_terminal) {
  std::string text;
  bool first = true;
  for (;;) {
    if (is_terminal) std::fputs(first ? "> " : "… ", stderr);
    std::string line;
    int c;
    while ((c = std::getc(stdin)) != EOF && c != '\n') line += static_cast<char>(c);
    if (c == EOF && line.empty()) return first || was_interrupted() ? std::nullopt : std::optional(text);
    if (!line.empty() && line.back() == '\\' && c != EOF) {
      text.append(line, 0, line.size() - 1);
      text += '\n';
      first = false;
      continue;
    }
    return text + line;
  }
}

class Chat {
 public:
  Chat(const Flags& flags, Engine& engine, Session& session, Sampler& sampler, Conversation& conversation)
      : flags_(flags), engine_(engine), session_(session), sampler_(sampler), conversation_(conversation) {
    stop_ids_ = engine.config().eos_token_ids;
    if (const auto eos = engine.tokenizer()->special_tokens().eos) stop_ids_.push_back(*eos);
  }

  // One turn; the answer goes to stdout as it comes.
  Status answer(std::string message, bool& running);

 private:
  const Flags& flags_;
  Engine& engine_;
  Session& session_;
  Sampler& sampler_;
  Conversation& conversation_;
  std::vector<int64_t> stop_ids_;
  std::vector<int32_t> in_session_;
};

Status Chat::answer(std::string message, bool& running) {
  conversation_.add_user(std::move(message));
  const auto fail = [&](Status s) {
    conversation_.drop_last();
    return s;
  };
  Result<std::vector<int32_t>> ids = conversation_.ids();
  if (!ids.ok()) return fail(ids.status());
  // What the session has already stays, but for the last token: its logits are needed.
  const auto [differs, unused] = std::mismatch(ids->begin(), ids->end(), in_session_.begin(), in_session_.end());
  const size_t common = std::min<size_t>(static_cast<size_t>(differs - ids->begin()), ids->size() - 1);
  if (Status s = session_.rewind(static_cast<int64_t>(common)); !s.ok()) return fail(s);
  in_session_.resize(common);
  sampler_.forget_all();
  sampler_.observe(in_session_);

  StreamingDetokenizer detokenizer(*engine_.tokenizer(), {.skip_special = true});
  std::string text;
  const auto on_text = [&](std::string_view delta) {
    text += delta;
    return std::fwrite(delta.data(), 1, delta.size(), stdout) == delta.size() && std::fflush(stdout) == 0;
  };
  Generation g;
  const Status status = generate(session_, sampler_, &detokenizer, std::span(*ids).subspan(common),
                                 {.max_tokens = flags_.max_tokens,
                                  .stop_ids = stop_ids_,
                                  .chunk = engine_.memory_plan().prefill_chunk,
                                  .show_progress = !flags_.engine.log.no_progress},
                                 on_text, g);
  running = !g.ids.empty();
  in_session_.insert(in_session_.end(), g.in_session.begin(), g.in_session.end());
  if (running) std::fputc('\n', stdout);
  std::fflush(stdout);
  if (!status.ok() || g.ids.empty()) return fail(status);
  if (g.finish_reason == std::string_view("context"))
    log_warning("the context is full; /reset begins anew, --ctx-size gives more room");
  conversation_.add_assistant(std::move(text));
  return flags_.stats.write(summary_line(engine_, g), run_stats(engine_, g, sampler_));
}

int talk(const Flags& f, const EngineOptions& options, const SamplerOptions& sampling, Json variables) {
  Result<ChatTemplate> chat_template = ChatTemplate::load(FileSystem::real(), options.model_dir, f.template_name);
  const MessageEncoding* encoding = nullptr;
  if (!chat_template.ok() && chat_template.status().code() == StatusCode::kNotFound && f.template_name.empty()) {
    Result<ModelConfig> config = read_model_config(FileSystem::real(), options.model_dir);
    if (!config.ok()) return report(kName, config.status());
    encoding = find_message_encoding(config->model_type);
  }
  if (!chat_template.ok() && encoding == nullptr) return report(kName, chat_template.status());
  Result<std::unique_ptr<Engine>> loaded = load_with_progress(options, !f.engine.log.no_progress);
  if (!loaded.ok()) return report(kName, loaded.status());
  Engine& engine = **loaded;
  if (engine.tokenizer() == nullptr) return report(kName, missing_tokenizer(FileSystem::real(), options.model_dir));
  Result<std::unique_ptr<Session>> session = engine.new_session();
  if (!session.ok()) return report(kName, session.status());
  Result<Sampler> sampler = Sampler::make(sampling, engine.config().vocab_size, num_token_ids(engine));
  if (!sampler.ok()) return report(kName, sampler.status());
  Conversation conversation = encoding != nullptr ? Conversation(*engine.tokenizer(), *encoding, std::move(variables))
                                                  : Conversation(*engine.tokenizer(), std::move(*chat_template), std::move(variables));
  conversation.set_system(f.system);
  Chat chat(f, engine, **session, *sampler, conversation);

  const bool is_terminal = isatty(STDIN_FILENO) == 1;
  if (is_terminal) std::fprintf(stderr, "%s\n%s", options.model_dir.c_str(), kCommands);
  while (std::optional<std::string> line = read_message(is_terminal)) {
    if (line->empty()) continue;
    if (*line == "/exit") break;
    if (*line == "/reset") {
      conversation.clear();
    } else if (line->starts_with("/system ")) {
      conversation.set_system(line->substr(8));
      conversation.clear();
    } else if (line->front() == '/' && is_terminal) {
      std::fputs(kCommands, stderr);
    } else {
      bool running = false;
      if (const Status s = chat.answer(std::move(*line), running); !s.ok()) {
        const int code = report(kName, s, running);
        if (!is_terminal) return code;  // a script must not go on without an answer
      }
      if (was_interrupted() && !is_terminal) {
        if (const Status s = engine.save_hot_set(); !s.ok()) return report(kName, s.with_context("--hot-set"), true);
        return kExitRuntime;
      }
      reset_interrupt();
    }
  }
  if (is_terminal) std::fputc('\n', stderr);
  if (const Status s = engine.save_hot_set(); !s.ok()) return report(kName, s.with_context("--hot-set"), true);
  return kExitOk;
}

}  // namespace

int run_chat(int argc, char** argv) {
  ArgParser args(kName, "Talk to a model, with the chat template that comes with it. Piped stdin is one message per line.",
                 std::string("  pointsman chat MODEL --memory 12GiB --system \"Answer briefly.\"\n"
                             "  printf 'Hello\\nAnd now?\\n' | pointsman chat MODEL --greedy\n"
                             "In the conversation:\n") +
                     kCommands);
  Flags f;
  f.engine.declare(args);
  f.sampling.declare(args);
  args.option("-n,--max-tokens", f.max_tokens, "tokens of an answer at most (default: 1024)");
  args.option("--system", f.system, "system message");
  args.option("--template", f.template_name, "name of the chat template, where the model has several");
  args.list("--template-var", f.template_variables, "NAME=VALUE for the template, e.g. enable_thinking=false or, for DeepSeek-V4, reasoning_effort=low; repeatable");
  f.stats.declare(args);
  if (auto code = args.parse(argc, argv)) return *code;
  if (f.max_tokens < 1) return usage_error(kName, format("--max-tokens {}: expected 1 or more", f.max_tokens));
  if (const Status s = f.stats.check(); !s.ok()) return usage_error(kName, s);
  Result<Json> variables = parse_template_variables(f.template_variables);
  if (!variables.ok()) return usage_error(kName, variables.status());
  EngineOptions options;
  if (auto code = f.engine.resolve(kName, options)) return *code;
  SamplerOptions sampling;
  if (auto code = f.sampling.resolve(kName, args, options.model_dir, sampling)) return *code;
  catch_interrupts();
  return talk(f, options, sampling, std::move(*variables));
}

}  // namespace pointsman::cli
