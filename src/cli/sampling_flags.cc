// SPDX-License-Identifier: Apache-2.0
#include "cli/sampling_flags.h"

#include "base/log.h"
#include "checkpoint/model_config.h"
#include "cli/command.h"

namespace pointsman::cli {

void SamplingFlags::declare(ArgParser& args) {
  args.flag("--greedy", greedy, "always the most likely token");
  args.option("--temp", temperature, "temperature; 0 is greedy (default of these: generation_config.json)");
  args.option("--top-k", top_k, "only the k most likely tokens; 0 is off");
  args.option("--top-p", top_p, "only the most likely tokens that have this much probability together; 1 is off");
  args.option("--min-p", min_p, "only tokens with at least this share of the likeliest one's probability; 0 is off");
  args.option("--repeat-penalty", repeat_penalty, "divides the scores of tokens that were seen; 1 is off");
  args.option("--seed", seed, "random seed (default: 0); a draw depends on seed and position only");
}

std::optional<int> SamplingFlags::resolve(std::string_view command, const ArgParser& args, const std::string& model_dir,
                                          SamplerOptions& o) const {
  if (seed < 0) return usage_error(command, format("--seed {}: expected 0 or more", seed));
  const Result<GenerationDefaults> defaults = read_generation_defaults(FileSystem::real(), model_dir);
  if (!defaults.ok()) return report(command, defaults.status());
  o = SamplerOptions::from(*defaults);
  const auto take = [&](const char* flag, auto value, auto& out) {
    if (!args.given(flag)) return;
    out = value;
    o.do_sample = true;
  };
  take("--temp", temperature, o.temperature);
  take("--top-k", top_k, o.top_k);
  take("--top-p", top_p, o.top_p);
  take("--min-p", min_p, o.min_p);
  if (args.given("--repeat-penalty")) o.repetition_penalty = repeat_penalty;
  if (greedy || o.temperature == 0) o.do_sample = false;
  o.seed = static_cast<uint64_t>(seed);
  // Ranges are checked here, before a large model is loaded.
  if (const Result<Sampler> probe = Sampler::make(o, 1, 1); !probe.ok()) return usage_error(command, probe.status());
  log_info("sampling: {}", to_json(o).dump());
  return std::nullopt;
}

Json to_json(const SamplerOptions& o) {
  Json j = Json::object();
  j.set("do_sample", o.do_sample);
  if (o.do_sample) {
    j.set("temperature", o.temperature);
    j.set("top_k", o.top_k);
    j.set("top_p", o.top_p);
    j.set("min_p", o.min_p);
    j.set("seed", o.seed);
  }
  j.set("repetition_penalty", o.repetition_penalty);
  return j;
}

}  // namespace pointsman::cli
