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

Result<PlacementMap> resolve_placement(const Binding& binding, std::span<const PlacementRule> rules) {
  PlacementMap map;
  const int moe_layers = binding.experts != nullptr ? binding.experts->num_layers() : 0;
  map.experts.assign(static_cast<size_t>(moe_layers), Placement::kOnDemand);
  std::set<std::string> dense_units;
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
      // "*=on-demand" means what can be read on demand; naming a dense unit is a request that must not be dropped silently.
      if (rule.placement == Placement::kOnDemand && pattern != "*") {
        return error(StatusCode::kUnsupported, "placement rule '{}': {} is dense and used for every token; only experts can be read on demand",
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
  return map;
}

}  // namespace pointsman
