// SPDX-License-Identifier: Apache-2.0
#include "cli/engine_flags.h"

#include <cstring>

#include "base/log.h"
#include "engine/placement.h"
#include "memory/budget.h"

extern char** environ;

namespace pointsman::cli {

void EngineFlags::declare(ArgParser& args) {
  args.positional("MODEL,-m,--model", model, "Hugging Face model folder");
  args.option("--memory", memory, "memory budget: 12GiB, 700MiB, bytes (default: 80 % of what the machine or container has left)");
  args.option("-t,--threads", threads, "compute threads (default: all CPUs)");
  args.option("-c,--ctx-size", context, "context length in tokens (default: the model's, at most 4096)");
  args.option("--numerics", numerics, "bf16 (default) or fp32 (parity with transformers)");
  args.option("--prefill-chunk", prefill_chunk, "tokens per pass of prefill (default: what the budget allows, at most 512)");
  args.list("--place", place, "PATTERN=pinned|resident|on-demand, e.g. 'layers.0.experts=pinned'; repeatable, the last match wins");
  args.option("--policy", policy, "which expert leaves: lru_per_layer (default), lru");
  args.option("--readers", readers, "threads that read and verify experts");
  args.option("--router-guard", router_guard, "when routing weights do not sum to 1: refuse (default) or uniform");
  args.option("--route-noise", route_noise, "add Gumbel noise with this seed to the routes (default: none)");
  args.flag("--require-lock", require_lock, "refuse a model without pointsman.lock.json");
  args.flag("--no-fallback", no_fallback, "a missing kernel is an error instead of a counted run of the reference");
  args.option("--device", device, "cpu");
}

Result<EngineOptions> EngineFlags::options() const {
  EngineOptions o{.model_dir = model, .num_threads = static_cast<int>(threads), .context_length = context, .prefill_chunk = prefill_chunk,
                  .policy = policy, .num_readers = static_cast<int>(readers), .device = device};
  if (threads < 0 || threads > 1024) return error(StatusCode::kInvalidArgument, "--threads {}: expected 1 to 1024", threads);
  if (readers < 1 || readers > 64) return error(StatusCode::kInvalidArgument, "--readers {}: expected 1 to 64", readers);
  if (context < 0) return error(StatusCode::kInvalidArgument, "--ctx-size {}: expected a positive number", context);
  if (!memory.empty()) {
    PM_ASSIGN_OR_RETURN(o.memory_bytes, parse_bytes(memory));
  }
  if (numerics == "fp32") {
    o.numerics = Numerics::kFp32;
  } else if (numerics != "bf16") {
    return error(StatusCode::kInvalidArgument, "--numerics {}: expected bf16 or fp32", numerics);
  }
  if (router_guard == "uniform") {
    o.router_guard = GuardPolicy::kUniform;
  } else if (router_guard != "refuse") {
    return error(StatusCode::kInvalidArgument, "--router-guard {}: expected refuse or uniform", router_guard);
  }
  o.verify = require_lock ? VerifyPolicy::kRequired : VerifyPolicy::kAuto;
  o.allow_fallback = !no_fallback;
  o.route_noise = route_noise >= 0;
  o.route_noise_seed = route_noise >= 0 ? static_cast<uint64_t>(route_noise) : 0;
  for (const std::string& rule : place) {
    PM_ASSIGN_OR_RETURN(PlacementRule parsed, parse_placement_rule(rule));
    o.placement.push_back(std::move(parsed));
  }
  PM_ASSIGN_OR_RETURN(const Environment env, read_environment(environ));
  o.isa = env.isa;
  return o;
}

Result<Environment> read_environment(char** variables) {
  Environment env;
  for (char** v = variables; *v != nullptr; ++v) {
    const std::string_view text = *v;
    if (!text.starts_with("POINTSMAN_")) continue;
    const std::string_view name = text.substr(0, text.find('='));
    const std::string value(text.substr(std::min(text.size(), name.size() + 1)));
    if (name == "POINTSMAN_ISA") {
      env.isa = value;
    } else if (name == "POINTSMAN_IO") {
      env.io = value;
      if (value == "uring") return error(StatusCode::kUnsupported, "POINTSMAN_IO=uring: this build reads with pread only");
      if (value != "auto" && value != "pread" && !value.empty()) {
        return error(StatusCode::kInvalidArgument, "POINTSMAN_IO={}: expected auto, pread or uring", value);
      }
    } else if (name == "POINTSMAN_LOG_LEVEL") {
      env.log_level = value;
    } else {
      return error(StatusCode::kInvalidArgument, "unknown environment variable {}: known are POINTSMAN_IO, POINTSMAN_ISA, POINTSMAN_LOG_LEVEL", name);
    }
  }
  return env;
}

}  // namespace pointsman::cli
