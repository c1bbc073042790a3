// SPDX-License-Identifier: Apache-2.0
//
// From "these two traces part here" to "this operator is wrong, in this way". Works on the first tensor beyond its limit whose inputs
// agree: candidate explanations are computed from the values in the traces (and, where a model folder is given, from its weights) and
// compared with what the judged run holds. An explanation is named only when it reproduces those values; the figures are the evidence.
//
// The operators are written out here in float64 a second time, plainly, and on purpose: what judges an engine must not be that engine.
//
// Reads at most a few hundred rows of a tensor and one expert's weights at a time.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "pointsman/status.h"
#include "verify/compare.h"
#include "verify/model_tensors.h"

namespace pointsman {

enum class FaultKind { kUnknown, kEmbedding, kNorm, kAttention, kRope, kGate, kExpert, kScale, kCombine, kDtype, kHead, kRounding };
// "norm", "RoPE", ...
std::string_view fault_kind_name(FaultKind kind);

struct Diagnosis {
  FaultKind kind = FaultKind::kUnknown;
  int layer = -1;                     // -1: before the layers; kAfterLayers: after them
  std::string tensor;                 // the first that is wrong
  std::string op;                     // what makes it
  std::string cause;                  // one sentence; empty when no explanation reproduces the values
  std::vector<std::string> evidence;  // measured, one figure or two each
  std::vector<int> experts;           // that are wrong, for experts.*
  std::vector<int64_t> rows;          // of the tensor, worst first: what a reproduction shows
  std::string advice;                 // what would tell more
};

struct DiagnoseInputs {
  TraceReader& a;
  TraceReader& b;                     // the reference; or the shadow run, to judge each layer alone
  const Comparison& comparison;       // of a and b
  ModelTensors* model = nullptr;      // of the reference, or null
};
// Nothing when the traces do not differ beyond their limits.
Result<std::optional<Diagnosis>> diagnose(const DiagnoseInputs& inputs);

}  // namespace pointsman
