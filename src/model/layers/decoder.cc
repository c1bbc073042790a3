// SPDX-License-Identifier: Apache-2.0
#include "model/layers/decoder.h"

#include <array>

namespace pointsman::layers {

Status add_attention(ForwardPass& f, const LayerWeights& w, int layer_idx, QkNorm qk_norm) {
  PM_RETURN_IF_ERROR(f.norm(w.input_norm));
  PM_RETURN_IF_ERROR(f.linears(std::array<ForwardPass::Projection, 3>{{{w.q, f.q()}, {w.k, f.k()}, {w.v, f.v()}}}));
  PM_RETURN_IF_ERROR(f.rotate_and_cache(qk_norm, w, layer_idx));
  PM_RETURN_IF_ERROR(f.attend(layer_idx));
  return f.add_output(w.o);
}

Status add_feed_forward(ForwardPass& f, const LayerWeights& w, int layer_idx) {
  PM_RETURN_IF_ERROR(f.norm(w.post_norm));
  PM_RETURN_IF_ERROR(f.begin_output());
  PM_RETURN_IF_ERROR(w.is_moe ? f.add_moe(w, layer_idx) : f.add_mlp(w.mlp));
  return f.end_output();
}

ops::RouterContract router_contract(const ModelConfig& c, ops::ScoreFunction score) {
  return {.score = score,
          .num_experts = static_cast<int32_t>(c.num_experts),
          .top_k = static_cast<int32_t>(c.num_experts_per_tok),
          .n_group = static_cast<int32_t>(c.n_group),
          .topk_group = static_cast<int32_t>(c.topk_group),
          .normalize = c.norm_topk_prob,
          .scale = static_cast<float>(c.routed_scaling_factor)};
}

}  // namespace pointsman::layers
