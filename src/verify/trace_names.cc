// SPDX-License-Identifier: Apache-2.0
#include "verify/trace_names.h"

#include <charconv>
#include <tuple>

#include "base/log.h"

namespace pointsman {
namespace {

struct Row {
  TracePoint point;
  std::string_view name;  // within a layer, or whole outside of one
  std::string_view made_by;
};
constexpr Row kInLayer[] = {
    {TracePoint::kAttentionInput, "attention.input", "RMSNorm before attention"},
    {TracePoint::kQ, "attention.q", "query projection"},
    {TracePoint::kK, "attention.k", "key projection"},
    {TracePoint::kV, "attention.v", "value projection"},
    {TracePoint::kQRotated, "attention.q_rotated", "per-head norm and RoPE of the queries"},
    {TracePoint::kKRotated, "attention.k_rotated", "per-head norm and RoPE of the keys"},
    {TracePoint::kContext, "attention.context", "attention over the KV cache"},
    {TracePoint::kResidual, "attention.residual", "attention output projection and residual sum"},
    {TracePoint::kMlpInput, "mlp.input", "RMSNorm before the MLP"},
    {TracePoint::kRouterLogits, "router.logits", "router gate"},
    {TracePoint::kRouterIds, "router.ids", "choice of experts"},
    {TracePoint::kRouterWeights, "router.weights", "routing weights"},
    {TracePoint::kExpertsGate, "experts.gate", "gate projection of the experts"},
    {TracePoint::kExpertsUp, "experts.up", "up projection of the experts"},
    {TracePoint::kExpertsAct, "experts.act", "SwiGLU of the experts"},
    {TracePoint::kExpertsOutput, "experts.output", "down projection of the experts"},
    {TracePoint::kHidden, "hidden", "MLP or combination of the experts, and residual sum"},
};
constexpr Row kOutsideLayers[] = {
    {TracePoint::kEmbedding, "embedding", "embedding"},
    {TracePoint::kFinalNorm, "final_norm", "final RMSNorm"},
    {TracePoint::kLogits, "logits", "LM head"},
};

}  // namespace

TracePlace trace_place(std::string_view name) {
  for (const Row& r : kOutsideLayers) {
    if (name == r.name) return {r.point == TracePoint::kEmbedding ? -1 : kAfterLayers, r.point};
  }
  constexpr std::string_view kPrefix = "layers.";
  if (!name.starts_with(kPrefix)) return {};
  int layer = 0;
  const char* const end = name.data() + name.size();
  const auto [rest, ec] = std::from_chars(name.data() + kPrefix.size(), end, layer);
  const bool padded = ec == std::errc() && rest - (name.data() + kPrefix.size()) > 1 && name[kPrefix.size()] == '0';
  if (ec != std::errc() || rest == end || *rest != '.' || layer < 0 || layer >= kAfterLayers || padded) return {};
  const std::string_view what(rest + 1, static_cast<size_t>(end - rest - 1));
  for (const Row& r : kInLayer) {
    if (what == r.name) return {layer, r.point};
  }
  return {layer, TracePoint::kOther};
}

std::string trace_name(const TracePlace& place) {
  for (const Row& r : kOutsideLayers) {
    if (place.point == r.point) return std::string(r.name);
  }
  for (const Row& r : kInLayer) {
    if (place.point == r.point) return format("layers.{}.{}", place.layer, r.name);
  }
  return "";
}

std::string_view trace_operator(TracePoint point) {
  for (const Row& r : kOutsideLayers) {
    if (point == r.point) return r.made_by;
  }
  for (const Row& r : kInLayer) {
    if (point == r.point) return r.made_by;
  }
  return "an operator that is not known by name";
}

std::vector<std::string> trace_parents(const TracePlace& place) {
  const auto here = [&](std::initializer_list<TracePoint> points) {
    std::vector<std::string> names;
    for (const TracePoint p : points) names.push_back(trace_name({place.layer, p}));
    return names;
  };
  const std::string before = place.layer <= 0 ? "embedding" : trace_name({place.layer - 1, TracePoint::kHidden});
  switch (place.point) {
    case TracePoint::kAttentionInput: return {before};
    case TracePoint::kQ:
    case TracePoint::kK:
    case TracePoint::kV: return here({TracePoint::kAttentionInput});
    case TracePoint::kQRotated: return here({TracePoint::kQ});
    case TracePoint::kKRotated: return here({TracePoint::kK});
    case TracePoint::kContext: return here({TracePoint::kQRotated, TracePoint::kKRotated, TracePoint::kV});
    case TracePoint::kResidual: return {trace_name({place.layer, TracePoint::kContext}), before};
    case TracePoint::kMlpInput: return here({TracePoint::kResidual});
    case TracePoint::kRouterLogits: return here({TracePoint::kMlpInput});
    case TracePoint::kRouterIds: return here({TracePoint::kRouterLogits});
    case TracePoint::kRouterWeights: return here({TracePoint::kRouterLogits, TracePoint::kRouterIds});
    case TracePoint::kExpertsGate:
    case TracePoint::kExpertsUp: return here({TracePoint::kMlpInput, TracePoint::kRouterIds});
    case TracePoint::kExpertsAct: return here({TracePoint::kExpertsGate, TracePoint::kExpertsUp, TracePoint::kMlpInput});
    case TracePoint::kExpertsOutput: return here({TracePoint::kExpertsAct});
    case TracePoint::kHidden:
      return {trace_name({place.layer, TracePoint::kExpertsOutput}), trace_name({place.layer, TracePoint::kRouterWeights}),
              trace_name({place.layer, TracePoint::kResidual}), before};
    case TracePoint::kLogits: return {"final_norm"};
    default: return {};
  }
}

bool before_in_data_flow(std::string_view a, std::string_view b) {
  return std::tuple(trace_place(a), a) < std::tuple(trace_place(b), b);
}

}  // namespace pointsman
