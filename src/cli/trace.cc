// SPDX-License-Identifier: Apache-2.0
//
// pointsman trace: intermediate tensors of one forward pass, as safetensors.
#include <cstdio>

#include "base/log.h"
#include "checkpoint/model_config.h"
#include "cli/args.h"
#include "cli/command.h"
#include "cli/engine_flags.h"
#include "cli/interrupt.h"
#include "cli/load.h"
#include "cli/prompt.h"
#include "pointsman/session.h"
#include "verify/trace_file.h"

namespace pointsman::cli {
namespace {

constexpr const char* kName = "trace";

struct ReplayFlags {
  std::string path, what = "inputs";
  bool inputs = false, routes = false;

  Status check() {
    if (what != "inputs" && what != "routes" && what != "inputs,routes")
      return error(StatusCode::kInvalidArgument, "--replay-what '{}': expected inputs, routes, or inputs,routes", what);
    inputs = what != "routes";
    routes = what != "inputs";
    return ok_status();
  }
};

std::vector<std::pair<std::string, std::string>> metadata(const Engine& engine, std::span<const int32_t> tokens,
                                                          const ReplayFlags& replay) {
  std::string ids;
  for (const int32_t t : tokens) ids += (ids.empty() ? "" : ",") + std::to_string(t);
  return {{"format", "pointsman-trace"},
          {"format_version", "1"},
          {"version", PM_VERSION},
          {"model_type", engine.config().model_type},
          {"model_digest", engine.model_digest()},
          {"numerics", numerics_name(engine.options().numerics)},
          {"kv_cache", kv_cache_name(engine.options().kv_cache)},
          {"device", engine.options().device},
          {"isa", engine.isa()},
          {"tokens", ids},
          {"replay", replay.path.empty() ? "" : replay.what}};
}

Status trace_to(Engine& engine, const std::vector<int32_t>& tokens, const TraceSelection& selection, const std::string& path,
                const ReplayFlags& replay, TraceReader* source, bool& running) {
  PM_ASSIGN_OR_RETURN(const std::unique_ptr<Session> session, engine.new_session());
  if (static_cast<int64_t>(tokens.size()) > session->context_length()) {
    return error(StatusCode::kInvalidArgument, "{} tokens: the context holds {}; raise --ctx-size", tokens.size(),
                 session->context_length());
  }
  PM_ASSIGN_OR_RETURN(const std::unique_ptr<TraceWriter> writer,
                      TraceWriter::create(FileSystem::real(), path, engine.config(), selection,
                                          static_cast<int64_t>(tokens.size()), metadata(engine, tokens, replay)));
  std::unique_ptr<TraceReplay> recorded;
  if (source != nullptr) {
    PM_ASSIGN_OR_RETURN(recorded, TraceReplay::create(*source, replay.inputs, replay.routes));
  }
  running = true;
  // In passes of the engine's own size, so that Ctrl-C is heard between them; splitting changes no bit.
  const std::span<const int32_t> all = tokens;
  const size_t step = static_cast<size_t>(std::max<int64_t>(1, engine.memory_plan().prefill_chunk));
  for (size_t done = 0; done < all.size(); done += step) {
    if (was_interrupted()) return {StatusCode::kUnavailable, "interrupted; nothing was written"};
    PM_RETURN_IF_ERROR(session->trace(all.subspan(done, std::min(step, all.size() - done)), *writer, recorded.get()).status());
  }
  PM_RETURN_IF_ERROR(writer->commit());
  std::fprintf(stderr, "%s: %zu tensors of %zu tokens, %s\n", path.c_str(), writer->num_tensors(), tokens.size(),
               human_bytes(static_cast<double>(writer->bytes())).c_str());
  return ok_status();
}

}  // namespace

int run_trace(int argc, char** argv) {
  ArgParser args(kName,
                 "Run a prompt and write what happened inside to a safetensors file: logits, router decisions, hidden states. With --replay "
                 "every layer runs on the inputs that another trace recorded, so that what it does wrong shows in that layer only.",
                 "  pointsman trace MODEL -p \"In the beginning\" --out a.safetensors --numerics fp32\n"
                 "  pointsman trace MODEL --tokens 1,2,3 --out a.safetensors --what logits,router\n"
                 "  pointsman trace MODEL --replay reference.safetensors --what all --out shadow.safetensors --numerics fp32\n"
                 "  pointsman compare a.safetensors b.safetensors\n");
  EngineFlags engine_flags;
  PromptFlags prompt_flags;
  ReplayFlags replay;
  std::string out, what = "logits,router,hidden";
  engine_flags.declare(args);
  prompt_flags.declare(args);
  args.option("-o,--out", out, "file to write (.safetensors)");
  args.option("--what", what, "a list of logits, router, hidden (these by default), embedding, attention, mlp, experts, norm; or all");
  args.option("--replay", replay.path, "trace whose values are replayed; its tokens are the prompt unless one is given");
  args.option("--replay-what", replay.what,
              "inputs (default): of every layer; routes: the recorded experts with live weights; or inputs,routes");
  if (auto code = args.parse(argc, argv)) return *code;
  if (out.empty()) return usage_error(kName, "--out FILE is needed");
  const Result<TraceSelection> selection = parse_trace_selection(what);
  if (!selection.ok()) return usage_error(kName, selection.status().with_context("--what"));
  if (const Status s = replay.check(); !s.ok()) return usage_error(kName, s);
  const bool own_prompt = args.given("--prompt") || args.given("--file") || args.given("--tokens");
  if (const Status s = prompt_flags.check(args); (own_prompt || replay.path.empty()) && !s.ok()) return usage_error(kName, s);
  std::unique_ptr<TraceReader> source;
  if (!replay.path.empty()) {
    Result<std::unique_ptr<TraceReader>> opened = TraceReader::open(FileSystem::real(), replay.path);
    if (!opened.ok()) return report(kName, opened.status());
    source = std::move(*opened);
  }
  EngineOptions options;
  if (auto code = engine_flags.resolve(kName, options)) return *code;
  catch_interrupts();
  options.load_tokenizer = own_prompt && !prompt_flags.is_ids();
  Result<std::unique_ptr<Engine>> engine = load_with_progress(options, !engine_flags.log.no_progress);
  if (!engine.ok()) return report(kName, engine.status());
  const Result<std::vector<int32_t>> tokens =
      own_prompt ? prompt_flags.ids(args, (*engine)->tokenizer(), options.model_dir) : trace_tokens(*source);
  if (!tokens.ok()) return report(kName, tokens.status());
  bool running = false;
  const Status status = trace_to(**engine, *tokens, *selection, out, replay, source.get(), running);
  return status.ok() ? kExitOk : report(kName, status, running);
}

}  // namespace pointsman::cli
