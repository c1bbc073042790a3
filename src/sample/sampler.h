// SPDX-License-Identifier: Apache-2.0
//
// From logits to a token, with the meanings of Hugging Face `generate`: repetition penalty; then, when sampling, temperature,
// top-k (ties survive), top-p, min-p; then one draw. Greedy ignores all but the penalty. Total over any logits: NaN and
// infinities are never chosen; NaN and +infinity are counted and logged once; when nothing finite is left the result is an
// error, never token 0.
//
// The draw depends on (seed, position) only, through Philox: the same text whatever the batch, the chunking or the machine.
// Not thread-safe; one per sequence. Allocates only when made.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "checkpoint/model_config.h"
#include "pointsman/status.h"

namespace pointsman {

struct SamplerOptions {
  bool do_sample = false;
  double temperature = 1.0;  // 0 means greedy
  int64_t top_k = 0;         // 0: off
  double top_p = 1.0;        // 1: off
  double min_p = 0.0;        // 0: off
  double repetition_penalty = 1.0;
  uint64_t seed = 0;

  static SamplerOptions from(const GenerationDefaults& d);
  bool is_greedy() const { return !do_sample || temperature == 0; }
};

struct Candidate {
  int32_t id;
  float score;         // after the repetition penalty, before temperature
  double probability;  // among the survivors
};

class Sampler {
 public:
  // `vocab_size`: logits per row. Ids >= `num_token_ids` are padding rows of the embedding and never chosen.
  // kInvalidArgument: an option out of its range.
  static Result<Sampler> make(const SamplerOptions& options, int64_t vocab_size, int64_t num_token_ids);

  // Tokens so far, prompt included: what the repetition penalty looks at. Each counts once, however often it was seen.
  void observe(int32_t token);
  void observe(std::span<const int32_t> tokens) {
    for (const int32_t t : tokens) observe(t);
  }
  void forget_all();

  // The token for `position` (its index in the sequence). REQUIRES: logits.size() == vocab_size. kCorrupt when no finite logit
  // is left. Among equal scores the lowest id comes first.
  Result<int32_t> sample(std::span<const float> logits, uint64_t position);

  // The distribution that sample() draws from, best first, valid until the next call: for tests and for showing alternatives.
  Result<std::span<const Candidate>> candidates(std::span<const float> logits);

  const SamplerOptions& options() const { return options_; }
  uint64_t nonfinite_logits() const { return nonfinite_; }  // NaN or +infinity, over all calls
  // Heap held by a sampler, for the ledger.
  static uint64_t memory_bytes(const SamplerOptions& options, int64_t vocab_size);

 private:
  Sampler(const SamplerOptions& o, int64_t vocab_size, int64_t num_token_ids);
  // The logit of `id` after the penalty; finite when the logit is.
  float penalized(size_t id, float logit) const;
  // Every finite logit to `use`(id, score), in order of ids; counts the others.
  template <class Use>
  Status for_each_finite(std::span<const float> logits, Use use);

  SamplerOptions options_;
  int64_t num_token_ids_;
  std::vector<Candidate> candidates_;
  std::vector<bool> seen_;
  uint64_t nonfinite_ = 0;
};

}  // namespace pointsman
