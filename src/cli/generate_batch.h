// SPDX-License-Identifier: Apache-2.0
//
// Many prompts on one engine: as many as it has sessions for step together, and when one is done the next takes its place. Each gets the tokens that
// it would get alone.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/function_ref.h"
#include "cli/generate.h"
#include "pointsman/engine.h"

namespace pointsman::cli {

struct BatchPrompt {
  std::vector<int32_t> ids;
  Generation out;     // without rates: those are of the batch
  std::string text;   // where there is a tokenizer
};

struct BatchSummary {
  int64_t prompt_tokens = 0, generated_tokens = 0, passes = 0;
  double seconds = 0;
};

// Every prompt gets a sampler of the same options, and a detokenizer with these when the engine has a tokenizer. `on_done(i)` is called once for each
// prompt, in their order; it returns false when nobody listens any more (kIo). When interrupted, prompts that are not done are reported with
// what they have. kInvalidArgument, before anything runs: a prompt that does not fit the context, by its index.
Status generate_batch(Engine& engine, const SamplerOptions& sampling, const DetokenizerOptions& detokenizing, const GenerateOptions& options,
                      std::span<BatchPrompt> prompts, FunctionRef<bool(size_t)> on_done, BatchSummary& summary);

}  // namespace pointsman::cli
