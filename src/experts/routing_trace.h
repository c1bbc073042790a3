// SPDX-License-Identifier: Apache-2.0
//
// RoutingTrace: which experts the tokens of one or several runs went to, by layer. Recorded ones come from `pointsman trace --what router`
// (cli/routing_trace_file.h), synthetic ones from here.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "pointsman/status.h"

namespace pointsman {

struct RoutingTrace {
  int num_layers = 0, num_experts = 0, top_k = 0;  // MoE layers; experts of each
  std::vector<int32_t> ids;                        // [tokens, layers, top_k], each in [0, num_experts), no expert twice in a row of top_k
  std::vector<int64_t> run_starts = {0};           // first token of each run, ascending, the first 0

  int64_t num_tokens() const { return num_layers == 0 ? 0 : static_cast<int64_t>(ids.size()) / num_layers / top_k; }
  std::span<const int32_t> experts(int64_t token, int layer) const {
    return std::span(ids).subspan(static_cast<size_t>((token * num_layers + layer) * top_k), static_cast<size_t>(top_k));
  }
  // kInvalidArgument: sizes out of range (at most 1024 layers, 4096 experts), or ids that break the rules above.
  Status check() const;
  // Adds the tokens of another trace of the same shape as a run. kInvalidArgument: another shape.
  Status append(const RoutingTrace& run);
};

// A stand-in for models without a trained router: each layer has its own order of popularity with weights 1 / rank^exponent, and
// each expert of a token goes on to the next token with probability `stay`; the others are drawn without repeats.
struct ZipfMarkov {
  int num_layers = 24, num_experts = 64, top_k = 8;
  int64_t num_tokens = 1000;
  double exponent = 0.6, stay = 0.3;
  uint64_t seed = 0;
};
// "zipf:layers=24,experts=64,top-k=8,tokens=1000,s=0.6,stay=0.3,seed=0", each with that default. kInvalidArgument: unknown words, numbers out
// of range, or more than 2^28 ids.
Result<ZipfMarkov> parse_zipf_markov(std::string_view text);
RoutingTrace make_trace(const ZipfMarkov& args);

}  // namespace pointsman
