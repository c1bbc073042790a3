// SPDX-License-Identifier: Apache-2.0
//
// The trace points of a forward pass, and what replaces its values in a replay. Names: docs/formats/trace.md.
#include <algorithm>

#include "base/log.h"
#include "model/forward.h"
#include "ops/moe/router.h"
#include "ops/quant/quantise.h"

namespace pointsman {
namespace {

// Rows as fp32, which holds every bf16; quantised ones as what their codes mean.
Status copy_rows(Stream& stream, const Tensor& t, std::vector<float>& out) {
  out.resize(static_cast<size_t>(t.rows * t.cols));
  if (t.dtype == DType::kF32) {
    PM_RETURN_IF_ERROR(stream.copy_to_host(out.data(), t.data, out.size() * sizeof(float)));
    return stream.synchronize();
  }
  if (t.dtype == DType::kI8) {
    std::vector<int8_t> codes(static_cast<size_t>(t.size_bytes()));
    PM_RETURN_IF_ERROR(stream.copy_to_host(codes.data(), t.data, codes.size()));
    PM_RETURN_IF_ERROR(stream.synchronize());
    for (size_t i = 0; i < out.size(); ++i) {
      const auto cols = static_cast<size_t>(t.cols), c = i % cols;
      const int8_t* const row = codes.data() + i / cols * static_cast<size_t>(t.row_stride);
      float scale;
      __builtin_memcpy(&scale, row + cols + c / static_cast<size_t>(ops::quant_block_of(t)) * sizeof(float), sizeof(scale));
      out[i] = static_cast<float>(row[c]) * scale;
    }
    return ok_status();
  }
  // Into the upper half of the same memory, widened from the front.
  bf16* const narrow = reinterpret_cast<bf16*>(out.data()) + out.size();
  PM_RETURN_IF_ERROR(stream.copy_to_host(narrow, t.data, out.size() * sizeof(bf16)));
  PM_RETURN_IF_ERROR(stream.synchronize());
  for (size_t i = 0; i < out.size(); ++i) {
    bf16 v;
    __builtin_memcpy(&v, narrow + i, sizeof(v));
    out[i] = to_float(v);
  }
  return ok_status();
}

}  // namespace

Status ForwardPass::record(int layer_idx, const char* what, const Tensor& t) {
  if (parts_.sink == nullptr) return ok_status();
  const std::string name = format("layers.{}.{}", layer_idx, what);
  if (!parts_.sink->wants(name)) return ok_status();
  std::vector<float> copy;
  PM_RETURN_IF_ERROR(copy_rows(*parts_.ops.stream, t, copy));
  return parts_.sink->rows_f32(name, first_position_, t.rows, t.cols, copy.data());
}

// Before norm and rotation: the ops work in place.
Status ForwardPass::record_projections(int layer_idx) {
  PM_RETURN_IF_ERROR(record(layer_idx, "attention.input", rows(parts_.scratch.x_f32)));
  PM_RETURN_IF_ERROR(record(layer_idx, "attention.q", q()));
  PM_RETURN_IF_ERROR(record(layer_idx, "attention.k", k()));
  return record(layer_idx, "attention.v", v());
}

// The residual stream has the attention in it, and the norm has been taken.
Status ForwardPass::record_mlp_input(int layer_idx) {
  if (parts_.config.hyper.streams == 0) PM_RETURN_IF_ERROR(record(layer_idx, "attention.residual", rows(sets_residual_aside() ? parts_.scratch.residual : parts_.scratch.h)));
  return record(layer_idx, "mlp.input", rows(parts_.scratch.x_f32));
}

Status ForwardPass::record_routes(int layer_idx) {
  const Scratch& s = parts_.scratch;
  const int64_t top_k = parts_.options.router.top_k;
  PM_RETURN_IF_ERROR(record(layer_idx, "router.logits", rows(s.router_logits)));
  PM_RETURN_IF_ERROR(record(layer_idx, "router.weights", Tensor::matrix(s.route_weights, DType::kF32, tokens_, top_k)));
  const std::string name = format("layers.{}.router.ids", layer_idx);
  if (!parts_.sink->wants(name)) return ok_status();
  return parts_.sink->rows_i32(name, first_position_, tokens_, top_k, parts_.host.route_ids);
}

// One expert's rows of silu(gate x) * up x, to their slots.
Status ForwardPass::record_act(int layer_idx, const Tensor& act, std::span<const int32_t> slots) {
  if (parts_.sink == nullptr || !parts_.sink->wants(format("layers.{}.experts.act", layer_idx))) return ok_status();
  std::vector<float> copy;
  PM_RETURN_IF_ERROR(copy_rows(*parts_.ops.stream, act, copy));
  const size_t cols = static_cast<size_t>(act.cols);
  act_rows_.resize(static_cast<size_t>(tokens_ * parts_.options.router.top_k) * cols);
  for (size_t r = 0; r < slots.size(); ++r)
    std::copy_n(copy.data() + r * cols, cols, act_rows_.data() + static_cast<size_t>(slots[r]) * cols);
  return ok_status();
}

Status ForwardPass::record_slots(int layer_idx) {
  if (parts_.sink == nullptr) return ok_status();
  const int64_t top_k = parts_.options.router.top_k;
  const std::string act = format("layers.{}.experts.act", layer_idx);
  if (parts_.sink->wants(act)) {
    const int64_t cols = static_cast<int64_t>(act_rows_.size()) / tokens_;
    PM_RETURN_IF_ERROR(parts_.sink->rows_f32(act, first_position_, tokens_, cols, act_rows_.data()));
  }
  Tensor slots = parts_.scratch.slots.slice_rows(0, tokens_);
  slots.cols *= top_k;
  slots.row_stride = slots.cols;
  return record(layer_idx, "experts.output", slots);
}

Status ForwardPass::record_final_norm(int64_t token) {
  if (!parts_.sink->wants("final_norm")) return ok_status();
  std::vector<float> copy;
  PM_RETURN_IF_ERROR(copy_rows(*parts_.ops.stream, parts_.scratch.last_x, copy));
  return parts_.sink->rows_f32("final_norm", first_position_ + token, 1, parts_.scratch.last_x.cols, copy.data());
}

Status ForwardPass::replay_hidden(int layer_idx) {
  const Tensor h = rows(parts_.config.hyper.streams > 0 ? parts_.scratch.hyper.streams : parts_.scratch.h);
  if (layer_idx == 0 && parts_.sink != nullptr && parts_.sink->wants("embedding")) {
    std::vector<float> copy;
    PM_RETURN_IF_ERROR(copy_rows(*parts_.ops.stream, h, copy));
    PM_RETURN_IF_ERROR(parts_.sink->rows_f32("embedding", first_position_, h.rows, h.cols, copy.data()));
  }
  if (parts_.replay == nullptr) return ok_status();
  const std::string name = layer_idx == 0 ? "embedding" : format("layers.{}.hidden", layer_idx - 1);
  std::vector<float> values(static_cast<size_t>(h.rows * h.cols));
  PM_ASSIGN_OR_RETURN(const bool found, parts_.replay->rows_f32(name, first_position_, h.rows, h.cols, values.data()));
  if (!found) return ok_status();
  PM_RETURN_IF_ERROR(parts_.ops.stream->copy_to_device(h.data, values.data(), values.size() * sizeof(float)));
  return parts_.ops.stream->synchronize();
}

// The recorded experts, with weights from the logits of this pass: what differs then is the experts, not the choice.
Status ForwardPass::replay_routes(int layer_idx) {
  if (parts_.replay == nullptr) return ok_status();
  const Scratch& s = parts_.scratch;
  const ops::RouterContract& contract = parts_.options.router;
  const size_t top_k = static_cast<size_t>(contract.top_k), experts = static_cast<size_t>(contract.num_experts);
  const std::string name = format("layers.{}.router.ids", layer_idx);
  int32_t* const ids = parts_.host.route_ids;
  std::vector<int32_t> recorded(static_cast<size_t>(tokens_) * top_k);
  PM_ASSIGN_OR_RETURN(const bool found, parts_.replay->rows_i32(name, first_position_, tokens_, contract.top_k, recorded.data()));
  if (!found) return ok_status();
  std::vector<float> logits, weights(recorded.size());
  PM_RETURN_IF_ERROR(copy_rows(*parts_.ops.stream, rows(s.router_logits), logits));
  for (size_t t = 0; t < static_cast<size_t>(tokens_); ++t) {
    const Status status = ops::route_forced(contract, std::span(logits).subspan(t * experts, experts),
                                            std::span(recorded).subspan(t * top_k, top_k), std::span(weights).subspan(t * top_k, top_k));
    if (!status.ok()) return status.with_context(format("replay of {}, position {}", name, first_position_ + static_cast<int64_t>(t)));
  }
  std::copy(recorded.begin(), recorded.end(), ids);
  PM_RETURN_IF_ERROR(parts_.ops.stream->copy_to_device(s.route_ids, ids, recorded.size() * sizeof(int32_t)));
  PM_RETURN_IF_ERROR(parts_.ops.stream->copy_to_device(s.route_weights, weights.data(), weights.size() * sizeof(float)));
  return parts_.ops.stream->synchronize();
}

}  // namespace pointsman
