// SPDX-License-Identifier: Apache-2.0
//
// pointsman run --prompts FILE: many prompts, decoded together.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/args.h"
#include "cli/generate.h"
#include "cli/stats.h"
#include "pointsman/options.h"

namespace pointsman::cli {

struct PromptsFlags {
  std::string file;           // one prompt per line; - is stdin
  bool are_ids = false;       // lines are token ids: 1,2,3
  bool parse_special = false;
  int64_t sessions = 8;

  void declare(ArgParser& args);
  Status check() const;
};

// One JSON line to stdout for each prompt, in their order: index, prompt_token_ids, token_ids, text, finish_reason. Gives the exit code.
// `options` gets the sessions; `generating` the stop ids of the model unless `ignore_eos`.
int generate_prompts(const PromptsFlags& prompts, EngineOptions options, const SamplerOptions& sampling, const std::vector<std::string>& stop,
                GenerateOptions generating, bool ignore_eos, const StatsFlags& stats);

}  // namespace pointsman::cli
