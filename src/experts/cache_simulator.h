// SPDX-License-Identifier: Apache-2.0
//
// Replays a routing trace through the same Residency and policies as the engine's store, without weights and without time: how often
// would an expert have been in memory. For runs without reads ahead the counts are those of the engine, as long as the slots hold
// what one layer of one pass needs; beyond that the engine's order depends on which read ends first, and here reads end in order.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "experts/routing_trace.h"
#include "pointsman/options.h"
#include "pointsman/status.h"

namespace pointsman {

// No policy can do better: the expert whose next use is farthest away leaves (Belady 1966). It looks into the future, so it exists
// here only. Experts that the running layer needs cannot leave, for it as for the others.
inline constexpr std::string_view kOptimalPolicy = "optimum";

struct CacheSimulation {
  std::string policy{kDefaultPolicy};  // a name of policy_list.inc, or kOptimalPolicy
  int num_slots = 0;
  // The first tokens of each run go in passes of `chunk`, the rest one by one.
  int64_t prompt_tokens = 0, chunk = 512;
  // More than one: the trace, whatever its runs, is cut into so many equal stretches (what is left over is left out), each of which is a
  // session; prompts one after the other, then each pass takes the next token of every session.
  int64_t sessions = 1;
  std::vector<uint32_t> learned_uses;    // [layers * experts] of earlier runs, or empty
};

struct CacheCounts {
  uint64_t hits = 0, misses = 0, evicted = 0;
  std::vector<uint64_t> layer_hits, layer_misses;
  std::vector<uint32_t> uses;  // rows by expert [layers * experts]
  int64_t tokens = 0, steps = 0;  // that were replayed, and in how many passes
  double hit_rate() const { return hits + misses == 0 ? 0 : static_cast<double>(hits) / static_cast<double>(hits + misses); }
};

// kInvalidArgument: an unknown policy, too few slots, more sessions than tokens, or a trace that fails its check().
Result<CacheCounts> simulate_cache(const RoutingTrace& trace, const CacheSimulation& args);

}  // namespace pointsman
