// SPDX-License-Identifier: Apache-2.0
//
// The names of trace points (docs/formats/trace.md) as places in the data flow: which layer, which operator made the tensor, from
// which others.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace pointsman {

enum class TracePoint {
  kEmbedding,
  kAttentionInput, kQ, kK, kV, kQRotated, kKRotated, kContext, kResidual,
  kMlpInput,
  kRouterLogits, kRouterIds, kRouterWeights,
  kExpertsGate, kExpertsUp, kExpertsAct, kExpertsOutput,
  kOther,   // in a layer, of no known name
  kHidden,
  kFinalNorm, kLogits,
  kOutside,  // belongs to no place: prompts, notes
};

struct TracePlace {
  int layer = -1;  // -1: before the layers; kAfterLayers: after them
  TracePoint point = TracePoint::kOutside;
  friend auto operator<=>(const TracePlace&, const TracePlace&) = default;  // the order of the data flow
};
inline constexpr int kAfterLayers = 1 << 30;

TracePlace trace_place(std::string_view name);
// "layers.3.router.ids"; "" for kOther and kOutside.
std::string trace_name(const TracePlace& place);
// Names of the tensors that the operator behind `place` reads, nearest first. They need not be in a given trace.
std::vector<std::string> trace_parents(const TracePlace& place);
// "RMSNorm before attention", "router: choice of experts", ...
std::string_view trace_operator(TracePoint point);

// layers.2.router.logits < layers.2.hidden < layers.10.hidden < logits
bool before_in_data_flow(std::string_view a, std::string_view b);

}  // namespace pointsman
