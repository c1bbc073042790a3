// SPDX-License-Identifier: Apache-2.0
//
// How the next token is chosen: the model's generation_config.json, then flags.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/json.h"
#include "cli/args.h"
#include "sample/sampler.h"

namespace pointsman::cli {

struct SamplingFlags {
  bool greedy = false;
  double temperature = 0, top_p = 0, min_p = 0, repeat_penalty = 0;
  int64_t top_k = 0, seed = 0;

  void declare(ArgParser& args);
  // After parse(). What is not given comes from `model_dir`/generation_config.json; without one, greedy. --greedy, or --temp 0,
  // is greedy; any other flag of sampling turns sampling on. Logged at level info. An exit code after an error that was
  // printed.
  std::optional<int> resolve(std::string_view command, const ArgParser& args, const std::string& model_dir,
                             SamplerOptions& out) const;
};

Json to_json(const SamplerOptions& options);

}  // namespace pointsman::cli
