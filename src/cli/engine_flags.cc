// SPDX-License-Identifier: Apache-2.0
#include "cli/engine_flags.h"

#include "base/log.h"
#include "cli/command.h"
#include "engine/placement.h"
#include "experts/policy.h"
#include "memory/budget.h"

extern char** environ;

namespace pointsman::cli {

void EngineFlags::declare(ArgParser& args) {
  args.positional("MODEL,-m,--model", model, "Hugging Face model folder");
  args.option("--memory", memory,
              "memory budget: 12GiB, 700MiB, bytes (default: 80 % of what the machine or container has left)");
  args.option("-t,--threads", threads, "compute threads (default: all CPUs)");
  args.option("-c,--ctx-size", context, "context length in tokens (default: the model's, at most 4096)");
  args.option("--mla", mla, "absorbed (default) or naive: how latent attention (deepseek_v3) is computed and cached");
  args.option("--kv-cache", kv_cache, "keys and values held as auto (default: fp32 with fp32 numerics, else bf16), bf16, fp32 or int8");
  args.option("--numerics", numerics, "bf16 (default), fp32 (parity with transformers) or vendor (as DeepSeek computes: deepseek_v3, deepseek_v4)");
  args.option("--prefill-chunk", prefill_chunk, "tokens per pass of prefill (default: what the budget allows, at most 512)");
  args.list("--place", place,
            "PATTERN=pinned|resident|on-demand, e.g. 'layers.0.experts=pinned', lm_head=on-demand; repeatable, the last match wins");
  args.option("--policy", policy, format("which expert leaves: {} (default: reuse)", fmt::join(policy_names(), ", ")));
  args.option("--hot-set", hot_set, "learn across runs which experts are used most, in this file, for policies that start from it: lfru, reuse (default: no file)");
  args.option("--prefetch", prefetch, "experts that the next layer will probably need, while decoding: off (default), predict (read ahead where that is measured to help) or log "
                                      "(guess and count)");
  args.option("--readers", readers, "threads that read and verify experts (default: 4)");
  args.option("--direct", direct,
              "read experts past the page cache (O_DIRECT): auto (default: no while free memory holds all experts, else as measured at start), on, off");
  args.option("--read-timeout", read_timeout, "seconds without any read of an expert coming back that are an error (default: 120)");
  args.option("--router-guard", router_guard,
              "when routing weights are not finite or do not sum to 1: refuse (default) or uniform");
  args.option("--route-noise", route_noise, "add Gumbel noise with this seed to the routes (default: none)");
  args.option("--verify", verify,
              "an expert's first read: full (default), against the lock file's SHA-256; fast, against its XXH3-128: notices damage, not tampering");
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
  if (mla == "naive") {
    o.latent_form = LatentForm::kNaive;
  } else if (mla != "absorbed") {
    return error(StatusCode::kInvalidArgument, "--mla {}: expected absorbed or naive", mla);
  }
  o.kv_cache = KvCacheType::kAuto;
  bool is_type = false;
  for (const KvCacheType t : {KvCacheType::kAuto, KvCacheType::kFp32, KvCacheType::kBf16, KvCacheType::kInt8}) {
    if (kv_cache == kv_cache_name(t)) o.kv_cache = t, is_type = true;
  }
  if (!is_type) return error(StatusCode::kInvalidArgument, "--kv-cache {}: expected auto, bf16, fp32 or int8", kv_cache);
  if (numerics == "fp32") {
    o.numerics = Numerics::kFp32;
  } else if (numerics == "vendor") {
    o.numerics = Numerics::kVendor;
  } else if (numerics != "bf16") {
    return error(StatusCode::kInvalidArgument, "--numerics {}: expected bf16, fp32 or vendor", numerics);
  }
  if (!hot_set.empty() && !policy_learns(policy)) {
    return error(StatusCode::kInvalidArgument, "--hot-set: policy {} does not start from one; lfru and reuse do", policy);
  }
  o.hot_set_file = hot_set;
  if (prefetch == "log") {
    o.prefetch = PrefetchMode::kLog;
  } else if (prefetch == "predict") {
    o.prefetch = PrefetchMode::kPredict;
  } else if (prefetch != "off") {
    return error(StatusCode::kInvalidArgument, "--prefetch {}: expected off, predict or log", prefetch);
  }
  if (router_guard == "uniform") {
    o.router_guard = GuardPolicy::kUniform;
  } else if (router_guard != "refuse") {
    return error(StatusCode::kInvalidArgument, "--router-guard {}: expected refuse or uniform", router_guard);
  }
  if (verify != "full" && verify != "fast") return error(StatusCode::kInvalidArgument, "--verify {}: expected full or fast", verify);
  o.verify = verify == "fast" ? VerifyPolicy::kFast : require_lock ? VerifyPolicy::kRequired : VerifyPolicy::kAuto;
  o.allow_fallback = !no_fallback;
  o.route_noise = route_noise >= 0;
  o.route_noise_seed = route_noise >= 0 ? static_cast<uint64_t>(route_noise) : 0;
  for (const std::string& rule : place) {
    PM_ASSIGN_OR_RETURN(PlacementRule parsed, parse_placement_rule(rule));
    o.placement.push_back(std::move(parsed));
  }
  PM_ASSIGN_OR_RETURN(const Environment env, read_environment(environ));
  o.isa = env.isa;
  o.tuning_dir = env.cache_dir;
  o.io = env.io == "pread" ? IoMethod::kPread : env.io == "uring" ? IoMethod::kUring : IoMethod::kAuto;
  if (direct == "on") {
    o.direct = DirectReads::kOn;
  } else if (direct == "off") {
    o.direct = DirectReads::kOff;
  } else if (direct != "auto") {
    return error(StatusCode::kInvalidArgument, "--direct {}: expected auto, on or off", direct);
  }
  if (!(read_timeout >= 0.001 && read_timeout <= 1e6)) {
    return error(StatusCode::kInvalidArgument, "--read-timeout {}: expected 0.001 to 1000000 seconds", read_timeout);
  }
  o.read_timeout_s = read_timeout;
  return o;
}

std::optional<int> EngineFlags::resolve(std::string_view command, EngineOptions& out) const {
  if (auto code = log.apply(command)) return code;
  Result<EngineOptions> o = options();
  if (!o.ok()) return usage_error(command, o.status());
  out = std::move(*o);
  return std::nullopt;
}

}  // namespace pointsman::cli
