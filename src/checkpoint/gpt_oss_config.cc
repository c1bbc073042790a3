// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/gpt_oss_config.h"

#include <cstdint>
#include <string_view>
#include <utility>

namespace pointsman {

std::optional<Json> from_original_gpt_oss(const Json& config) {
  if (config.find("model_type") != nullptr || config.find("experts_per_token") == nullptr || config.find("rope_ntk_beta") == nullptr) return std::nullopt;
  constexpr std::pair<std::string_view, std::string_view> kRope[] = {{"rope_scaling_factor", "factor"},
                                                                     {"rope_ntk_beta", "beta_fast"},
                                                                     {"rope_ntk_alpha", "beta_slow"},
                                                                     {"initial_context_length", "original_max_position_embeddings"}};
  Json out = Json::object(), rope = Json::object();
  out.set("model_type", "gpt_oss");
  rope.set("rope_type", "yarn");
  rope.set("truncate", false);
  for (const auto& [key, value] : config.as_object()) {
    bool is_rope = false;
    for (const auto& [from, to] : kRope) {
      if (key == from) rope.set(to, value), is_rope = true;
    }
    if (!is_rope) out.set(key == "experts_per_token" ? "num_experts_per_tok" : key, value);
  }
  const Json *factor = config.find("rope_scaling_factor"), *length = config.find("initial_context_length");
  if (factor != nullptr && factor->is_number() && length != nullptr && length->is_int() && config.find("max_position_embeddings") == nullptr) {
    const double positions = factor->as_double() * static_cast<double>(length->as_int());
    if (positions >= 1 && positions <= 0x1p32) out.set("max_position_embeddings", static_cast<int64_t>(positions));
  }
  out.set("rope_scaling", std::move(rope));
  return out;
}

}  // namespace pointsman
