// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"
#include "verify/compare.h"

namespace pointsman {

Result<CompareLimits> compare_profile(std::string_view name, std::string_view numerics) {
  const bool is_bf16 = numerics == "bf16", is_f16 = numerics == "fp16";
  CompareLimits l{.profile = std::string(name)};
  if (name == "fp32") {
    // What tests/integration holds against transformers: two correct fp32 implementations differ by the order of their sums.
    l.logits_abs = 1e-4;
    l.row_relative = 1e-5;
    l.kl_max = 1e-6;
    l.min_top1 = 1;
    l.tie_margin = 2 * l.logits_abs;
    l.router_margin = 1e-6;
  } else if (name == "bf16") {
    // bf16 keeps 8 bits: 2^-8 per rounding, some tens of roundings deep.
    l.row_relative = 0.1;
    l.kl_mean = 0.02;
    l.kl_max = 0.5;
    l.min_top1 = 0.95;
    l.tie_margin = 0.1;
    l.router_margin = 0.1;
  } else if (name == "strict") {
    l.bit_identical = true;
    l.router_margin = 0;
  } else if (name == "torch") {
    l.atol = 1e-5;
    l.rtol = is_bf16 ? 1.6e-2 : is_f16 ? 1e-3 : 1.3e-6;
    l.router_margin = 0;
  } else if (name == "ascend-community") {
    l.mere = is_bf16 ? 0x1p-7 : is_f16 ? 0x1p-10 : 0x1p-13;
    l.router_margin = 0;
  } else if (name == "ascend-l1") {
    l.mare_ratio = 5;
    l.mere_ratio = 1.5;
    l.rmse_ratio = 1.5;
    l.router_margin = 0;
  } else {
    return error(StatusCode::kInvalidArgument, "profile '{}': expected {}", name, kProfileNames);
  }
  return l;
}

}  // namespace pointsman
