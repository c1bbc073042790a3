// SPDX-License-Identifier: Apache-2.0
#include "engine/placement.h"

#include <algorithm>
#include <set>

#include "base/log.h"

namespace pointsman {

bool glob_match(std::string_view pattern, std::string_view text) {
  size_t p = 0, t = 0;
  size_t star = std::string_view::npos, retry = 0;  // only the last star is ever retried
  while (t < text.size()) {
    if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == text[t]) && pattern[p] != '*') {
      ++p, ++t;
    } else if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      retry = t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++retry;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

const char* placement_name(Placement p) {
  switch (p) {
    case Placement::kPinned: return "pinned";
    case Placement::kResident: return "resident";
    case Placement::kOnDemand: return "on demand";
  }
  return "unknown";
}

Result<PlacementRule> parse_placement_rule(std::string_view text) {
  const size_t equals = text.rfind('=');
  if (equals == std::string_view::npos || equals == 0) {
    return error(StatusCode::kInvalidArgument, "placement rule '{}': expected PATTERN=pinned, PATTERN=resident or PATTERN=on-demand", text);
  }
  const std::string_view value = text.substr(equals + 1);
  PlacementRule rule{.pattern = std::string(text.substr(0, equals))};
  if (value == "pinned") {
    rule.placement = Placement::kPinned;
  } else if (value == "resident") {
    rule.placement = Placement::kResident;
  } else if (value == "on-demand" || value == "on_demand") {
    rule.placement = Placement::kOnDemand;
  } else {
    return error(StatusCode::kInvalidArgument, "placement rule '{}': '{}' is none of pinned, resident, on-demand", text, value);
  }
  return rule;
}

int64_t PlacementMap::num_kept_layers() const {
  return std::count_if(experts.begin(), experts.end(), [](Placement p) { return p != Placement::kOnDemand; });
}

namespace {

constexpr const char* kEmbedding = "embed_tokens";
constexpr const char* kHead = "lm_head";

void mark_on_demand(const PlacementMap& map, Binding& binding) {
  const bool embedding = map.embed_tokens == Placement::kOnDemand, head = map.lm_head == Placement::kOnDemand;
  for (DenseBinding& b : binding.dense) {
    const bool is_embedding = binding.is_embedding(b), is_head = binding.is_head(b);
    if (!is_embedding && !is_head) continue;
    b.on_demand = (!is_embedding || embedding) && (!is_head || head);
    if (is_embedding && is_head && embedding != head) {
      log_warning("{} is on demand, but it is one matrix with {}, which is not: it stays in memory for both", embedding ? kEmbedding : kHead,
                  embedding ? kHead : kEmbedding);
    }
  }
}

}  // namespace

Result<PlacementMap> resolve_placement(Binding& binding, std::span<const PlacementRule> rules) {
  PlacementMap map;
  const int moe_layers = binding.experts != nullptr ? binding.experts->num_layers() : 0;
  map.experts.assign(static_cast<size_t>(moe_layers), Placement::kOnDemand);
  std::set<std::string> dense_units = {kEmbedding, kHead};  // both, also when they are one tensor
  for (const DenseBinding& b : binding.dense) dense_units.insert(b.unit);

  for (const PlacementRule& rule : rules) {
    const std::string_view pattern = rule.pattern == "experts" ? std::string_view("layers.*.experts") : std::string_view(rule.pattern);
    bool matched = false;
    for (int i = 0; i < moe_layers; ++i) {
      if (!glob_match(pattern, format("layers.{}.experts", binding.experts->layer_id(i)))) continue;
      map.experts[static_cast<size_t>(i)] = rule.placement;
      matched = true;
    }
    for (const std::string& unit : dense_units) {
      if (!glob_match(pattern, unit)) continue;
      matched = true;
      if (unit == kEmbedding || unit == kHead) {
        (unit == kHead ? map.lm_head : map.embed_tokens) = rule.placement;
        continue;
      }
      // "*=on-demand" means what can be read on demand; naming a dense unit is a request that must not be dropped silently.
      if (rule.placement == Placement::kOnDemand && pattern != "*") {
        return error(StatusCode::kUnsupported, "placement rule '{}': {} is dense and needed whole for every token; experts, embed_tokens and lm_head can be "
                     "read on demand",
                     rule.pattern, unit);
      }
    }
    if (!matched) {
      return error(StatusCode::kInvalidArgument,
                   "placement rule '{}' matches nothing; units are embed_tokens, lm_head, norm, layers.N.attention, layers.N.router, "
                   "layers.N.mlp, layers.N.experts",
                   rule.pattern);
    }
  }
  mark_on_demand(map, binding);
  return map;
}

}  // namespace pointsman
