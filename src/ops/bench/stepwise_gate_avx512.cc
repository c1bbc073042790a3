// SPDX-License-Identifier: Apache-2.0
#include "ops/isa/vec_avx512.h"
#include "ops/bench/stepwise_gate_isa.h"

namespace pointsman::ops {

void stepwise_gate_avx512(ThreadPool& pool, const RouteArgs& args, const StepwiseGateBuffers& buffers) { stepwise_gate(pool, args, buffers); }

}  // namespace pointsman::ops
