// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "ops/dispatch.h"
#include "ops/moe/router.h"

namespace pointsman::ops {

Status check_contract(const RouterContract& c) {
  if (c.num_experts < 1 || c.num_experts > kMaxExperts || c.top_k < 1 || c.top_k > kMaxTopK || c.top_k > c.num_experts) {
    return error(StatusCode::kInvalidArgument, "router: top {} of {} experts (at most {} of {})", c.top_k, c.num_experts, kMaxTopK, kMaxExperts);
  }
  if (c.n_group < 1 || c.n_group > kMaxTopK || c.num_experts % c.n_group != 0 || c.topk_group < 1 || c.topk_group > c.n_group ||
      c.topk_group * (c.num_experts / c.n_group) < c.top_k) {
    return error(StatusCode::kInvalidArgument, "router: the {} best of {} groups of {} experts cannot give {} experts", c.topk_group, c.n_group, c.num_experts,
                 c.top_k);
  }
  if (!(c.scale > 0) || !std::isfinite(c.scale) || !(c.norm_epsilon >= 0) || !(c.guard_tolerance > 0)) {
    return error(StatusCode::kInvalidArgument, "router: scale {}, epsilon {}, tolerance {} must be positive", c.scale, c.norm_epsilon, c.guard_tolerance);
  }
  return ok_status();
}

Status route(OpContext& ctx, const RouteArgs& a) {
  PM_RETURN_IF_ERROR(check_contract(a.contract));
  if (a.logits.dtype != DType::kF32 || a.logits.cols != a.contract.num_experts || a.ids == nullptr || a.weights == nullptr || a.report == nullptr) {
    return error(StatusCode::kInvalidArgument, "route: logits [{}, {}] {} for {} experts", a.logits.rows, a.logits.cols, dtype_name(a.logits.dtype),
                 a.contract.num_experts);
  }
  if (a.noise.enabled && a.sequences.rows() != a.logits.rows) {
    return error(StatusCode::kInvalidArgument, "route: noise for {} rows, logits have {}", a.sequences.rows(), a.logits.rows);
  }
  return PM_DISPATCH(ctx, route, a);
}

}  // namespace pointsman::ops
