// SPDX-License-Identifier: Apache-2.0
//
// Internal: the gate as separate passes over all tokens - score, bias and groups, top-k, weights, counts - the way it is written where no
// fused operator exists. For the benchmark only. Each pass is vectorised and takes all threads; top-k is k rounds of a vectorised
// search for the largest.
#pragma once

#include "ops/moe/router.h"

namespace pointsman::ops {

// Buffers of the passes, [tokens, experts] each.
struct StepwiseGateBuffers {
  float* score = nullptr;
  float* selection = nullptr;
};
// REQUIRES: no noise, no given ids, finite logits, experts a multiple of 16.
using StepwiseGate = void (*)(ThreadPool&, const RouteArgs&, const StepwiseGateBuffers&);

void stepwise_gate_scalar(ThreadPool& pool, const RouteArgs& args, const StepwiseGateBuffers& buffers);
void stepwise_gate_avx2(ThreadPool& pool, const RouteArgs& args, const StepwiseGateBuffers& buffers);
void stepwise_gate_avx512(ThreadPool& pool, const RouteArgs& args, const StepwiseGateBuffers& buffers);

}  // namespace pointsman::ops
