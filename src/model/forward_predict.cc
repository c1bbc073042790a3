// SPDX-License-Identifier: Apache-2.0
//
// Guesses about the next layer's experts (expert_prediction.h). They run while the reads of this layer are under way, in places that
// nothing uses at that time.
#include "model/forward.h"
#include "ops/matmul/matmul.h"
#include "ops/norm/rms_norm.h"

namespace pointsman {

void ForwardPass::compare_prediction(int moe_layer_idx) {
  if (parts_.prediction == nullptr) return;
  parts_.prediction->chosen(moe_layer_idx, {parts_.host.route_ids, static_cast<size_t>(tokens_ * parts_.options.router.top_k)});
}

Status ForwardPass::predict_next(int layer_idx) {
  ExpertPrediction* const prediction = parts_.prediction;
  const size_t next = static_cast<size_t>(layer_idx) + 1;
  if (prediction == nullptr || !prediction->guesses() || next >= parts_.weights.layers.size()) return ok_status();
  const LayerWeights& w = parts_.weights.layers[next];
  if (!w.is_moe || w.expert_table != nullptr) return ok_status();
  const Scratch& s = parts_.scratch;
  const HostScratch& host = parts_.host;
  Stream& stream = *parts_.ops.stream;
  const auto top_k = static_cast<size_t>(parts_.options.router.top_k);
  const size_t num_ids = static_cast<size_t>(tokens_) * top_k;

  // The residual stream still lacks this layer's experts. Its logits are used up, and no expert has written to `slots` yet.
  const Tensor x = s.slots.slice_rows(0, tokens_);
  PM_RETURN_IF_ERROR(ops::rms_norm(parts_.ops, {.x = rows(s.h), .weight = w.post_norm, .eps = static_cast<float>(parts_.config.rms_norm_eps), .out_f32 = x}));
  PM_RETURN_IF_ERROR(ops::matmul(parts_.ops, {.x = x, .w = w.router, .bias = w.router_logit_bias, .y = rows(s.router_logits)}));
  PM_RETURN_IF_ERROR(ops::route(parts_.ops, {.contract = parts_.options.router,
                                             .logits = rows(s.router_logits),
                                             .bias = w.router_bias,
                                             .ids = s.predicted_ids,
                                             .weights = s.predicted_weights,
                                             .report = s.predicted_report}));
  PM_RETURN_IF_ERROR(stream.copy_to_host(host.predicted_ids, s.predicted_ids, num_ids * sizeof(int32_t)));
  PM_RETURN_IF_ERROR(stream.copy_to_host(host.predicted_report, s.predicted_report, sizeof(ops::RouterReport)));
  PM_RETURN_IF_ERROR(stream.synchronize());
  if (host.predicted_report->bad_token >= 0) return ok_status();  // the layer itself will say so, if it is true
  prediction->guessed(w.moe_layer_idx, {host.predicted_ids, num_ids});
  if (!prediction->acts()) return ok_status();
  // The best of every token first, then the second best.
  size_t n = 0;
  for (size_t k = 0; k < top_k; ++k) {
    for (size_t row = 0; row < static_cast<size_t>(tokens_); ++row) host.predicted_order[n++] = host.predicted_ids[row * top_k + k];
  }
  return parts_.experts->prefetch(w.moe_layer_idx, {host.predicted_order, n}, ReadAhead::kPredicted);
}

}  // namespace pointsman
