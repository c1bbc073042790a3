// SPDX-License-Identifier: Apache-2.0
//
// pointsman run: a prompt in, its continuation out.
#include <cstdio>

#include "base/log.h"
#include "checkpoint/model_config.h"
#include "cli/args.h"
#include "cli/command.h"
#include "cli/engine_flags.h"
#include "cli/generate.h"
#include "cli/interrupt.h"
#include "cli/load.h"
#include "cli/prompt.h"
#include "cli/prompts.h"
#include "cli/sampling_flags.h"
#include "cli/stats.h"
#include "tokenizer/tokenizer.h"

namespace pointsman::cli {
namespace {

constexpr const char* kName = "run";

struct Flags {
  EngineFlags engine;
  PromptFlags prompt;
  PromptsFlags prompts;
  SamplingFlags sampling;
  StatsFlags stats;
  int64_t max_tokens = 128;
  std::vector<std::string> stop;
  bool ignore_eos = false, print_ids = false;
};

Json ids_json(std::span<const int32_t> ids) {
  Json::Array array;
  for (const int32_t id : ids) array.emplace_back(id);
  return array;
}

int generate_with(const Flags& f, const ArgParser& args, const EngineOptions& options, const SamplerOptions& sampling) {
  const bool show_progress = !f.engine.log.no_progress;
  Result<std::unique_ptr<Engine>> loaded = load_with_progress(options, show_progress);
  if (!loaded.ok()) return report(kName, loaded.status());
  Engine& engine = **loaded;
  const Tokenizer* tokenizer = engine.tokenizer();
  Result<std::vector<int32_t>> prompt = f.prompt.ids(args, tokenizer, options.model_dir);
  if (!prompt.ok()) return report(kName, prompt.status());
  Result<std::unique_ptr<Session>> session = engine.new_session();
  if (!session.ok()) return report(kName, session.status());
  Result<Sampler> sampler = Sampler::make(sampling, engine.config().vocab_size, num_token_ids(engine));
  if (!sampler.ok()) return report(kName, sampler.status());

  // Without a tokenizer the result is ids.
  const bool as_ids = f.print_ids || tokenizer == nullptr;
  std::optional<StreamingDetokenizer> detokenizer;
  if (tokenizer != nullptr) detokenizer.emplace(*tokenizer, DetokenizerOptions{.skip_special = true, .stop = f.stop});
  std::string text;
  const auto on_text = [&](std::string_view delta) {
    if (as_ids) {
      text += delta;
      return true;
    }
    return std::fwrite(delta.data(), 1, delta.size(), stdout) == delta.size() && std::fflush(stdout) == 0;
  };
  GenerateOptions go{.max_tokens = f.max_tokens, .chunk = engine.memory_plan().prefill_chunk, .show_progress = show_progress};
  if (!f.ignore_eos) go.stop_ids = engine.config().eos_token_ids;
  Generation g;
  const Status status = generate(**session, *sampler, detokenizer ? &*detokenizer : nullptr, *prompt, go, on_text, g);
  if (as_ids && status.ok()) {
    Json j = Json::object();
    j.set("prompt_token_ids", ids_json(*prompt));
    j.set("token_ids", ids_json(g.ids));
    j.set("text", text);
    j.set("finish_reason", g.finish_reason);
    print_json(j, false);
  } else if (!as_ids && !g.ids.empty()) {
    std::fputc('\n', stdout);
  }
  std::fflush(stdout);
  if (!status.ok()) return report(kName, status, !g.ids.empty());
  if (const Status s = f.stats.write(summary_line(engine, g), run_stats(engine, g, *sampler)); !s.ok())
    return report(kName, s, true);
  if (const Status s = engine.save_hot_set(); !s.ok()) return report(kName, s.with_context("--hot-set"), true);
  if (was_interrupted()) {
    std::fprintf(stderr, "pointsman run: interrupted\n");
    return kExitRuntime;
  }
  return kExitOk;
}

}  // namespace

int run_run(int argc, char** argv) {
  ArgParser args(kName, "Generate text from a prompt. The text goes to stdout, everything else to stderr.",
                 "  pointsman run models/pointsman-tiny-moe -p \"In the beginning\" -n 100 --memory 16MiB -c 512\n"
                 "  pointsman run MODEL -f prompt.txt --temp 0.8 --top-p 0.95 --seed 7 --stats json\n"
                 "  pointsman run MODEL --tokens 1,2,3 --greedy --print-ids --numerics fp32\n"
                 "  pointsman run MODEL --prompts questions.txt --sessions 16 -n 200 > answers.jsonl\n");
  Flags f;
  f.engine.declare(args);
  f.prompt.declare(args);
  f.prompts.declare(args);
  args.option("-n,--max-tokens", f.max_tokens, "tokens to generate at most (default: 128)");
  f.sampling.declare(args);
  args.flag("--ignore-eos", f.ignore_eos, "go on after an end-of-sequence token");
  args.list("--stop", f.stop, "end before this text; repeatable");
  args.flag("--print-ids", f.print_ids, "print one JSON line with the token ids instead of the text");
  f.stats.declare(args);
  if (auto code = args.parse(argc, argv)) return *code;
  if (f.max_tokens < 1) return usage_error(kName, format("--max-tokens {}: expected 1 or more", f.max_tokens));
  const bool many = args.given("--prompts");
  if (many && (args.given("--prompt") || args.given("--file") || args.given("--tokens"))) {
    return usage_error(kName, "only one of -p, -f, --tokens and --prompts may be given");
  }
  if (!many && (args.given("--sessions") || f.prompts.are_ids)) return usage_error(kName, "--sessions and --prompts-are-ids are for --prompts");
  if (const Status s = many ? f.prompts.check() : f.prompt.check(args); !s.ok()) return usage_error(kName, s);
  if (const Status s = f.stats.check(); !s.ok()) return usage_error(kName, s);
  EngineOptions options;
  if (auto code = f.engine.resolve(kName, options)) return *code;
  SamplerOptions sampling;
  if (auto code = f.sampling.resolve(kName, args, options.model_dir, sampling)) return *code;
  catch_interrupts();
  if (many) {
    f.prompts.parse_special = f.prompt.parse_special;
    return generate_prompts(f.prompts, options, sampling, f.stop, {.max_tokens = f.max_tokens, .show_progress = !f.engine.log.no_progress}, f.ignore_eos,
                            f.stats);
  }
  return generate_with(f, args, options, sampling);
}

}  // namespace pointsman::cli
