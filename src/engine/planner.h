// SPDX-License-Identifier: Apache-2.0
//
// Turns a model, options and a budget into a MemoryPlan. Pure arithmetic over header tables: the sizes come from the same functions
// that allocate (Scratch::carve, KvCache::bytes, ExpertStore::cost, ...), so a plan is the accounting, not an estimate.
//
// Order of preference when the budget leaves a choice: first everything that is needed at all, then larger prefill chunks up to
// a quarter of what is left, then expert slots.
#pragma once

#include "engine/placement.h"
#include "model/binding.h"
#include "model/forward.h"
#include "pointsman/engine.h"

namespace pointsman {

struct PlanRequest {
  const ModelConfig& config;
  const Checkpoint& checkpoint;
  const Binding& binding;
  const PlacementMap& placement;
  const EngineOptions& options;       // defaults filled in
  uint64_t tokenizer_bytes = 0;       // 0: none
  bool host_visible = true;
};

Result<MemoryPlan> make_plan(const PlanRequest& request);

// The largest pass when prompts are taken in passes of `chunk` tokens: a batch has a row for every session.
PassShape pass_shape(const EngineOptions& options, int64_t chunk);

// Room for one sampler of any options, which the caller of the engine makes for each session.
uint64_t sampler_bytes(const ModelConfig& config);

// What one token's rows of every trace point need on their way to a sink, at most.
uint64_t trace_bytes_per_token(const ModelConfig& config);

// Kept for what comes out: a sampler for each session, or the rows of a trace. Enough for one token of either.
uint64_t output_bytes(const ModelConfig& config, int64_t sessions);

// A session's own bytes: KV cache and what it remembers.
uint64_t session_bytes(const ModelConfig& config, const EngineOptions& options);

// "budget exceeded: ...": the refusal of `run`, with line items and the smallest budget.
Status plan_refusal(const MemoryPlan& plan);

}  // namespace pointsman
