// SPDX-License-Identifier: Apache-2.0
#include "verify/reproduction.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/log.h"
#include "checkpoint/safetensors_writer.h"
#include "verify/evidence.h"

namespace pointsman {
namespace {

using evidence::Rows;

constexpr size_t kMaxRowsKept = 4;
constexpr size_t kMaxWeightElements = size_t{16} << 20;

// Tensors to be written, kept until all are known.
struct Parts {
  std::vector<SafetensorsWriter::Declaration> declared;
  std::vector<std::vector<float>> values;
  void add(const std::string& name, int64_t rows, int64_t cols, std::vector<float> data) {
    declared.push_back({name, DType::kF32, {rows, cols}});
    values.push_back(std::move(data));
  }
};

std::vector<float> pick(const Rows& rows, const std::vector<int64_t>& which) {
  std::vector<float> out;
  for (const int64_t r : which) {
    for (const double v : rows.row(r)) out.push_back(static_cast<float>(v));
  }
  return out;
}

const char* formula(TracePoint p) {
  switch (p) {
    case TracePoint::kAttentionInput:
    case TracePoint::kMlpInput:
    case TracePoint::kFinalNorm: return "y = x / sqrt(mean(x^2) + eps) * weight";
    case TracePoint::kQ:
    case TracePoint::kK:
    case TracePoint::kV:
    case TracePoint::kRouterLogits:
    case TracePoint::kLogits: return "y = x W^T (+ bias)";
    case TracePoint::kQRotated:
    case TracePoint::kKRotated: return "per head: n = x / sqrt(mean(x^2) + eps) * weight; y = RoPE(n, position = row)";
    case TracePoint::kContext: return "y[t] = softmax over s <= t of (q[t] . k[s] / sqrt(head_dim)) . v[s]";
    case TracePoint::kResidual: return "y = residual before + context W^T (+ bias)";
    case TracePoint::kRouterIds: return "the top_k largest selection scores of the logits";
    case TracePoint::kRouterWeights: return "scores of the chosen ids, as the model's router contract has them";
    case TracePoint::kExpertsGate: return "y = x gate^T";
    case TracePoint::kExpertsUp: return "y = x up^T";
    case TracePoint::kExpertsAct: return "y = silu(x gate^T) * (x up^T)";
    case TracePoint::kExpertsOutput: return "y = act down^T";
    case TracePoint::kHidden: return "y = residual + sum of weight * output";
    default: return "";
  }
}

// Whole rows of the weight, as many as fit.
void add_weight(Parts& parts, const std::string& name, const Result<Matrix>& m) {
  if (!m.ok()) return;
  const int64_t rows = std::min<int64_t>(m->rows, static_cast<int64_t>(kMaxWeightElements) / std::max<int64_t>(1, m->cols));
  if (rows <= 0) return;
  parts.add("weight." + name, rows, m->cols, {m->values.begin(), m->values.begin() + static_cast<ptrdiff_t>(rows * m->cols)});
}

void add_weights(Parts& parts, const ModelTensors& model, const TracePlace& place, const Diagnosis& d) {
  const std::string layer = format("model.layers.{}.", place.layer);
  const auto one = [&](const char* name, const std::string& tensor) { add_weight(parts, name, model.matrix(tensor)); };
  switch (place.point) {
    case TracePoint::kAttentionInput: one("norm", layer + "input_layernorm.weight"); break;
    case TracePoint::kMlpInput: one("norm", layer + "post_attention_layernorm.weight"); break;
    case TracePoint::kFinalNorm: one("norm", "model.norm.weight"); break;
    case TracePoint::kQ: one("q", layer + "self_attn.q_proj.weight"), one("bias", layer + "self_attn.q_proj.bias"); break;
    case TracePoint::kK: one("k", layer + "self_attn.k_proj.weight"), one("bias", layer + "self_attn.k_proj.bias"); break;
    case TracePoint::kV: one("v", layer + "self_attn.v_proj.weight"), one("bias", layer + "self_attn.v_proj.bias"); break;
    case TracePoint::kQRotated: one("q_norm", layer + "self_attn.q_norm.weight"); break;
    case TracePoint::kKRotated: one("k_norm", layer + "self_attn.k_norm.weight"); break;
    case TracePoint::kResidual: one("o", layer + "self_attn.o_proj.weight"), one("bias", layer + "self_attn.o_proj.bias"); break;
    case TracePoint::kRouterLogits: one("gate", layer + "mlp.gate.weight"); break;
    case TracePoint::kExpertsGate:
    case TracePoint::kExpertsUp:
    case TracePoint::kExpertsAct:
    case TracePoint::kExpertsOutput: {
      if (d.experts.empty()) break;
      const Result<ExpertMatrices> e = model.expert(place.layer, d.experts[0]);
      if (!e.ok()) break;
      add_weight(parts, "gate", e->gate);
      add_weight(parts, "up", e->up);
      add_weight(parts, "down", e->down);
      break;
    }
    default: break;
  }
}

}  // namespace

Status write_reproduction(FileSystem& fs, const std::string& path, const DiagnoseInputs& in, const Diagnosis& d) {
  const TracePlace place = trace_place(d.tensor);
  PM_ASSIGN_OR_RETURN(const Rows found, evidence::load(in.a, place));
  PM_ASSIGN_OR_RETURN(const Rows expected, evidence::load(in.b, place));
  if (!evidence::same_shape(found, expected)) return error(StatusCode::kNotFound, "{} is not in both traces in the same shape", d.tensor);
  std::vector<int64_t> rows;
  for (const int64_t r : d.rows) {
    if (r >= 0 && r < found.rows && rows.size() < kMaxRowsKept) rows.push_back(r);
  }
  if (rows.empty()) rows.push_back(0);
  // Rows of a token's slots: the reference may have them in another order.
  const bool is_slots = place.point >= TracePoint::kExpertsGate && place.point <= TracePoint::kExpertsOutput;
  int64_t top_k = 1;
  std::vector<int64_t> rows_b = rows;
  if (is_slots) {
    PM_ASSIGN_OR_RETURN(SlotOrder order, SlotOrder::of(in.a, in.b, place.layer));
    if (order.known()) {
      top_k = order.top_k();
      std::vector<int32_t> slot_of_b;
      for (size_t i = 0; i < rows.size(); ++i) {
        PM_RETURN_IF_ERROR(order.match(in.a, in.b, rows[i] / top_k, 1, slot_of_b));
        for (int64_t s = 0; s < top_k; ++s) {
          if (slot_of_b[static_cast<size_t>(s)] == rows[i] % top_k) rows_b[i] = rows[i] / top_k * top_k + s;
        }
      }
    }
  }
  Parts parts;
  parts.add("found", static_cast<int64_t>(rows.size()), found.cols, pick(found, rows));
  parts.add("expected", static_cast<int64_t>(rows.size()), expected.cols, pick(expected, rows_b));
  for (const std::string& name : trace_parents(place)) {
    const TracePlace parent = trace_place(name);
    PM_ASSIGN_OR_RETURN(const Rows input, evidence::load(in.a, parent));
    if (input.empty()) continue;
    // Attention reads all rows up to its own; slots read their token's row.
    std::vector<int64_t> which;
    if (place.point == TracePoint::kContext) {
      for (int64_t r = 0; r <= *std::max_element(rows.begin(), rows.end()) && r < input.rows; ++r) which.push_back(r);
    } else {
      for (const int64_t r : rows) {
        const int64_t position = is_slots ? r / top_k : r;
        const int64_t per_token = input.rows / std::max<int64_t>(1, found.rows / top_k);
        if (is_slots && per_token == top_k && input.rows == found.rows) {
          which.push_back(r);
        } else {
          for (int64_t k = 0; k < std::max<int64_t>(1, per_token); ++k) {
            if (position * std::max<int64_t>(1, per_token) + k < input.rows) which.push_back(position * std::max<int64_t>(1, per_token) + k);
          }
        }
      }
    }
    const std::string label = "input." + (name.starts_with("layers.") ? name.substr(name.find('.', 7) + 1) : name);
    parts.add(label, static_cast<int64_t>(which.size()), input.cols, pick(input, which));
  }
  std::vector<std::pair<std::string, std::string>> metadata = {{"format", "pointsman-reproduction"},
                                                               {"format_version", "1"},
                                                               {"tensor", d.tensor},
                                                               {"operator", d.op},
                                                               {"formula", formula(place.point)},
                                                               {"kind", std::string(fault_kind_name(d.kind))},
                                                               {"cause", d.cause}};
  std::string text;
  for (const int64_t r : rows) text += (text.empty() ? "" : ",") + std::to_string(r);
  metadata.push_back({"rows", text});
  if (!d.experts.empty()) metadata.push_back({"expert", std::to_string(d.experts[0])});
  if (in.model != nullptr) {
    add_weights(parts, *in.model, place, d);
    const ModelConfig& c = in.model->config();
    metadata.push_back({"eps", format("{:g}", c.rms_norm_eps)});
    metadata.push_back({"head_dim", std::to_string(c.head_dim)});
  }
  PM_ASSIGN_OR_RETURN(const std::unique_ptr<SafetensorsWriter> writer, SafetensorsWriter::create(fs, path, parts.declared, metadata));
  for (size_t i = 0; i < parts.values.size(); ++i)
    PM_RETURN_IF_ERROR(writer->write(parts.declared[i].name, 0, std::as_bytes(std::span<const float>(parts.values[i]))));
  return writer->commit();
}

}  // namespace pointsman
