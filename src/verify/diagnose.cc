// SPDX-License-Identifier: Apache-2.0
#include "verify/diagnose.h"

#include <algorithm>
#include <cmath>

#include "base/log.h"
#include "verify/evidence.h"

namespace pointsman {
namespace {

using evidence::Case;

const TensorDistance* find(const Comparison& c, std::string_view name) {
  for (const TensorDistance& t : c.tensors) {
    if (t.name == name) return &t;
  }
  return nullptr;
}

// What is known of the tensors that the operator reads. True when they explain the difference: it was there before.
bool weigh_inputs(const Case& c, const TensorDistance& t) {
  double before = 0;
  bool any = false, exact = true;
  for (const std::string& name : trace_parents(c.place)) {
    const TensorDistance* p = find(c.in.comparison, name);
    if (p == nullptr) continue;
    any = true;
    before = std::max(before, p->row_relative);
    exact &= p->bit_identical;
  }
  if (!any) {
    c.say("none of its inputs is in both traces");
    return false;
  }
  const std::string own = t.nonfinite_mismatch > 0 ? std::string("it has NaN or infinity")
                          : t.different > 0        ? format("{} of its {} integers differ", t.different, t.compared)
                                                   : format("it differs by {:.3g}", t.row_relative);
  c.say(exact ? format("its inputs are bit-identical; {}", own) : format("its inputs agree to {:.2g} of the row; {}", before, own));
  // An operator of this kind magnifies what comes in by small factors.
  constexpr double kMagnification = 8;
  return t.nonfinite_mismatch == 0 && before > 0 && t.row_relative < kMagnification * before;
}

Status explain(const Case& c) {
  switch (c.place.point) {
    case TracePoint::kEmbedding: c.name(FaultKind::kEmbedding, "the embedding gives other rows: another table, or other token ids"); return ok_status();
    case TracePoint::kAttentionInput:
    case TracePoint::kMlpInput:
    case TracePoint::kFinalNorm: return evidence::try_norm(c);
    case TracePoint::kQ:
    case TracePoint::kK:
    case TracePoint::kV:
    case TracePoint::kResidual: return evidence::try_projection(c);
    case TracePoint::kQRotated:
    case TracePoint::kKRotated: return evidence::try_rope(c);
    case TracePoint::kContext: return evidence::try_attention(c);
    case TracePoint::kRouterLogits: return evidence::try_gate(c);
    case TracePoint::kRouterIds: return evidence::try_choice(c);
    case TracePoint::kRouterWeights: return evidence::try_weights(c);
    case TracePoint::kExpertsGate:
    case TracePoint::kExpertsUp:
    case TracePoint::kExpertsAct:
    case TracePoint::kExpertsOutput: return evidence::try_experts(c);
    case TracePoint::kHidden: return evidence::try_combine(c);
    case TracePoint::kLogits: c.name(FaultKind::kHead, "the LM head gives other logits for the same input"); return ok_status();
    default: return ok_status();
  }
}

}  // namespace

std::string_view fault_kind_name(FaultKind kind) {
  switch (kind) {
    case FaultKind::kUnknown: return "unknown";
    case FaultKind::kEmbedding: return "embedding";
    case FaultKind::kNorm: return "norm";
    case FaultKind::kAttention: return "attention";
    case FaultKind::kRope: return "RoPE";
    case FaultKind::kGate: return "gate";
    case FaultKind::kExpert: return "expert";
    case FaultKind::kScale: return "scale";
    case FaultKind::kCombine: return "combine";
    case FaultKind::kDtype: return "dtype";
    case FaultKind::kHead: return "head";
    case FaultKind::kRounding: return "rounding";
  }
  return "unknown";
}

Result<std::optional<Diagnosis>> diagnose(const DiagnoseInputs& in) {
  if (in.comparison.first_divergence.empty()) return std::optional<Diagnosis>();
  const TensorDistance* t = find(in.comparison, in.comparison.first_divergence);
  if (t == nullptr) return std::optional<Diagnosis>();
  const TracePlace place = trace_place(t->name);
  Diagnosis out{.layer = place.layer, .tensor = t->name, .op = std::string(trace_operator(place.point))};
  if (t->worst_relative_row >= 0) out.rows.push_back(t->worst_relative_row);
  if (t->first_nonfinite_row >= 0) out.rows.insert(out.rows.begin(), t->first_nonfinite_row);
  const Case c{.in = in, .place = place, .out = out};
  if (place.point == TracePoint::kOther || place.point == TracePoint::kOutside) {
    out.advice = "the tensor's name says no place in the data flow (docs/formats/trace.md has the known names)";
    return std::optional(std::move(out));
  }
  const bool inherited = weigh_inputs(c, *t);
  PM_ASSIGN_OR_RETURN(const bool is_dtype, evidence::try_dtype(c));
  if (is_dtype) return std::optional(std::move(out));
  if (inherited) {
    out.kind = FaultKind::kRounding;
    out.cause = "no single operator: differences grow from layer to layer until they pass the limit";
    out.advice = "judge each layer alone: pointsman trace MODEL --replay REFERENCE, and compare that";
    return std::optional(std::move(out));
  }
  PM_RETURN_IF_ERROR(explain(c));
  return std::optional(std::move(out));
}

}  // namespace pointsman
