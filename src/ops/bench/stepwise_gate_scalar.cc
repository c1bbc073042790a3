// SPDX-License-Identifier: Apache-2.0
#include "ops/isa/vec_scalar.h"
#include "ops/bench/stepwise_gate_isa.h"

namespace pointsman::ops {

void stepwise_gate_scalar(ThreadPool& pool, const RouteArgs& args, const StepwiseGateBuffers& buffers) { stepwise_gate(pool, args, buffers); }

}  // namespace pointsman::ops
