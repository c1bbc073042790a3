// SPDX-License-Identifier: Apache-2.0
#include "cli/prompts.h"

#include <cstdio>
#include <memory>

#include "base/fs.h"
#include "base/log.h"
#include "checkpoint/model_config.h"
#include "cli/command.h"
#include "cli/generate_batch.h"
#include "cli/interrupt.h"
#include "cli/load.h"
#include "cli/prompt.h"
#include "cli/sampling_flags.h"
#include "ops/sequences.h"
#include "tokenizer/tokenizer.h"

namespace pointsman::cli {
namespace {

constexpr const char* kName = "run";

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string line = text.substr(begin, end - begin);
    if (!line.empty() && line.back() == '\r') line.pop_back();
    lines.push_back(std::move(line));
    begin = end + 1;
  }
  return lines;
}

Result<std::vector<BatchPrompt>> encode(const PromptsFlags& f, const std::vector<std::string>& lines, const Engine& engine) {
  const Tokenizer* const tokenizer = engine.tokenizer();
  if (!f.are_ids && tokenizer == nullptr) return missing_tokenizer(FileSystem::real(), engine.options().model_dir);
  std::vector<BatchPrompt> prompts(lines.size());
  for (size_t i = 0; i < lines.size(); ++i) {
    Result<std::vector<int32_t>> ids =
        f.are_ids ? parse_token_list(lines[i]) : tokenizer->encode(lines[i], {.add_special_tokens = true, .parse_special = f.parse_special});
    if (!ids.ok()) return ids.status().with_context(format("prompt {}", i));
    prompts[i].ids = std::move(*ids);
  }
  return prompts;
}

Json ids_json(std::span<const int32_t> ids) {
  Json::Array array;
  for (const int32_t id : ids) array.emplace_back(id);
  return array;
}

Json prompt_json(size_t index, const BatchPrompt& p) {
  Json j = Json::object();
  j.set("index", static_cast<int64_t>(index));
  j.set("prompt_token_ids", ids_json(p.ids));
  j.set("token_ids", ids_json(p.out.ids));
  j.set("text", p.text);
  j.set("finish_reason", p.out.finish_reason);
  return j;
}

std::string summary_line(const BatchSummary& s, int64_t sessions, size_t prompts) {
  return format("{} prompts, {} sessions | {} + {} tokens in {} passes, {:.2f} s | generated {:.1f} tokens/s", prompts, sessions, s.prompt_tokens,
                s.generated_tokens, s.passes, s.seconds, s.seconds > 0 ? static_cast<double>(s.generated_tokens) / s.seconds : 0);
}

Json stats_json(const Engine& engine, const BatchSummary& s, int64_t sessions, size_t prompts, const SamplerOptions& sampling) {
  Json j = Json::object();
  add_engine_stats(j, engine);
  j.set("prompts", static_cast<int64_t>(prompts));
  j.set("sessions", sessions);
  j.set("prompt_tokens", s.prompt_tokens);
  j.set("generated_tokens", s.generated_tokens);
  j.set("passes", s.passes);
  j.set("seconds", s.seconds);
  j.set("sampling", to_json(sampling));
  return j;
}

}  // namespace

void PromptsFlags::declare(ArgParser& args) {
  args.option("--prompts", file, "file with one prompt per line, decoded together; - is stdin. Prints one JSON line for each");
  args.flag("--prompts-are-ids", are_ids, "lines of --prompts are token ids: 1,2,3");
  args.option("--sessions", sessions, "prompts of --prompts in work at once (default: 8, at most 64)");
}

Status PromptsFlags::check() const {
  if (sessions >= 1 && sessions <= ops::kMaxSequences) return ok_status();
  return error(StatusCode::kInvalidArgument, "--sessions {}: expected 1 to {}", sessions, ops::kMaxSequences);
}

int generate_prompts(const PromptsFlags& f, EngineOptions options, const SamplerOptions& sampling, const std::vector<std::string>& stop,
                     GenerateOptions generating, bool ignore_eos, const StatsFlags& stats) {
  const Result<std::string> text = read_prompt_file(f.file);
  if (!text.ok()) return report(kName, text.status());
  const std::vector<std::string> lines = lines_of(*text);
  if (lines.empty()) return report(kName, error(StatusCode::kInvalidArgument, "{}: no prompts", f.file));
  options.max_sessions = std::min(f.sessions, static_cast<int64_t>(lines.size()));
  const Result<std::unique_ptr<Engine>> loaded = load_with_progress(options, generating.show_progress);
  if (!loaded.ok()) return report(kName, loaded.status());
  Engine& engine = **loaded;
  Result<std::vector<BatchPrompt>> prompts = encode(f, lines, engine);
  if (!prompts.ok()) return report(kName, prompts.status().with_context(f.file));
  if (!ignore_eos) generating.stop_ids = engine.config().eos_token_ids;

  bool running = false;
  const auto on_done = [&](size_t i) {
    running = true;
    print_json(prompt_json(i, (*prompts)[i]), false);
    return std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  };
  BatchSummary summary;
  const Status status = generate_batch(engine, sampling, {.skip_special = true, .stop = stop}, generating, *prompts, on_done, summary);
  if (!status.ok()) return report(kName, status, running);
  const Status written = stats.write(summary_line(summary, options.max_sessions, lines.size()),
                                     stats_json(engine, summary, options.max_sessions, lines.size(), sampling));
  if (!written.ok()) return report(kName, written, true);
  if (const Status s = engine.save_hot_set(); !s.ok()) return report(kName, s.with_context("--hot-set"), true);
  if (was_interrupted()) {
    std::fprintf(stderr, "pointsman run: interrupted\n");
    return kExitRuntime;
  }
  return kExitOk;
}

}  // namespace pointsman::cli
