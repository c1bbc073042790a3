// SPDX-License-Identifier: Apache-2.0
#include "cli/engine_flags.h"

#include <algorithm>
#include <cstdio>

#include "base/cpu_features.h"
#include "base/json.h"
#include "base/log.h"
#include "cli/command.h"
#include "engine/placement.h"
#include "memory/budget.h"

extern char** environ;

namespace pointsman::cli {

void LogFlags::declare(ArgParser& args) {
  args.option("--log-level", level, "debug, info, warning (default) or error");
  args.option("--log-format", format, "text (default) or json");
  args.flag("--no-progress", no_progress, "no progress bar");
}

std::optional<int> LogFlags::apply(std::string_view command) const {
  std::string wanted = level;
  if (wanted.empty()) {
    const Result<Environment> env = read_environment(environ);
    if (!env.ok()) return usage_error(command, env.status());
    wanted = env->log_level;
  }
  if (const Status s = set_up_log(wanted, format); !s.ok()) return usage_error(command, s);
  return std::nullopt;
}

Status set_up_log(std::string_view level, std::string_view format) {
  LogLevel least = LogLevel::kWarning;
  if (level == "debug")
    least = LogLevel::kDebug;
  else if (level == "info")
    least = LogLevel::kInfo;
  else if (level == "error")
    least = LogLevel::kError;
  else if (!level.empty() && level != "warning") {
    return error(StatusCode::kInvalidArgument, "log level '{}': expected debug, info, warning or error", level);
  }
  if (format != "text" && format != "json") {
    return error(StatusCode::kInvalidArgument, "log format '{}': expected text or json", format);
  }
  const bool json = format == "json";
  set_log_sink([least, json](LogLevel line_level, std::string_view line) {
    if (line_level < least) return;
    constexpr const char* kNames[] = {"debug", "info", "warning", "error"};
    const char* name = kNames[static_cast<int>(line_level)];
    if (json) {
      Json j = Json::object();
      j.set("level", name);
      j.set("message", line);
      std::fprintf(stderr, "%s\n", j.dump().c_str());
    } else {
      std::fprintf(stderr, "pointsman: %s%s%.*s\n", line_level == LogLevel::kInfo ? "" : name,
                   line_level == LogLevel::kInfo ? "" : ": ", static_cast<int>(line.size()), line.data());
    }
  });
  return ok_status();
}

void EngineFlags::declare(ArgParser& args) {
  args.positional("MODEL,-m,--model", model, "Hugging Face model folder");
  args.option("--memory", memory,
              "memory budget: 12GiB, 700MiB, bytes (default: 80 % of what the machine or container has left)");
  args.option("-t,--threads", threads, "compute threads (default: all CPUs)");
  args.option("-c,--ctx-size", context, "context length in tokens (default: the model's, at most 4096)");
  args.option("--numerics", numerics, "bf16 (default) or fp32 (parity with transformers)");
  args.option("--prefill-chunk", prefill_chunk, "tokens per pass of prefill (default: what the budget allows, at most 512)");
  args.list("--place", place,
            "PATTERN=pinned|resident|on-demand, e.g. 'layers.0.experts=pinned', lm_head=on-demand; repeatable, the last match wins");
  args.option("--policy", policy, "which expert leaves: lru_per_layer (default), lru");
  args.option("--readers", readers, "threads that read and verify experts (default: 4)");
  args.option("--router-guard", router_guard,
              "when routing weights are not finite or do not sum to 1: refuse (default) or uniform");
  args.option("--route-noise", route_noise, "add Gumbel noise with this seed to the routes (default: none)");
  args.flag("--require-lock", require_lock, "refuse a model without pointsman.lock.json");
  args.flag("--no-fallback", no_fallback, "a missing kernel is an error instead of a counted run of the reference");
  args.option("--device", device, "cpu");
  log.declare(args);
}

Result<EngineOptions> EngineFlags::options() const {
  const auto range = [](const char* flag, int64_t v, int64_t low, int64_t high) {
    if (v >= low && v <= high) return ok_status();
    return error(StatusCode::kInvalidArgument, "{} {}: expected {} to {}", flag, v, low, high);
  };
  // 0 is the default of these: nothing was given, or "as you think best".
  PM_RETURN_IF_ERROR(range("--threads", threads, 0, 1024));
  PM_RETURN_IF_ERROR(range("--readers", readers, 1, 64));
  PM_RETURN_IF_ERROR(range("--ctx-size", context, 0, INT64_C(1) << 31));
  PM_RETURN_IF_ERROR(range("--prefill-chunk", prefill_chunk, 0, INT64_C(1) << 20));
  PM_RETURN_IF_ERROR(range("--route-noise", route_noise, -1, INT64_MAX));
  EngineOptions o{.model_dir = model,
                  .num_threads = static_cast<int>(threads),
                  .context_length = context,
                  .prefill_chunk = prefill_chunk,
                  .policy = policy,
                  .num_readers = static_cast<int>(readers),
                  .device = device};
  if (!memory.empty()) {
    Result<uint64_t> bytes = parse_bytes(memory);
    if (!bytes.ok()) return bytes.status().with_context("--memory");
    o.memory_bytes = *bytes;
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

std::optional<int> EngineFlags::resolve(std::string_view command, EngineOptions& out) const {
  if (auto code = log.apply(command)) return code;
  Result<EngineOptions> o = options();
  if (!o.ok()) return usage_error(command, o.status());
  out = std::move(*o);
  return std::nullopt;
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
      if (!value.empty()) {
        if (const Result<Isa> isa = parse_isa(value); !isa.ok()) return isa.status().with_context("POINTSMAN_ISA");
      }
    } else if (name == "POINTSMAN_IO") {
      env.io = value;
      if (value == "uring") return error(StatusCode::kUnsupported, "POINTSMAN_IO=uring: this build reads with pread only");
      if (value != "auto" && value != "pread" && !value.empty()) {
        return error(StatusCode::kInvalidArgument, "POINTSMAN_IO={}: expected auto, pread or uring", value);
      }
    } else if (name == "POINTSMAN_LOG_LEVEL") {
      env.log_level = value;
    } else {
      return error(StatusCode::kInvalidArgument,
                   "unknown environment variable {}: known are POINTSMAN_IO, POINTSMAN_ISA, POINTSMAN_LOG_LEVEL", name);
    }
  }
  return env;
}

}  // namespace pointsman::cli
