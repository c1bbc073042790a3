// SPDX-License-Identifier: Apache-2.0
//
// Placement rules: which units of a model are pinned, resident or read on demand. The device map of the practitioner's guide (§3.3),
// decided before a weight is read and printed by `plan`.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/binding.h"
#include "pointsman/options.h"
#include "pointsman/status.h"

namespace pointsman {

// '*' matches any run of characters (dots included), '?' one. Linear in the length of the text for any pattern.
bool glob_match(std::string_view pattern, std::string_view text);

// "experts=resident", "layers.0.experts=pinned", "lm_head=on-demand".
Result<PlacementRule> parse_placement_rule(std::string_view text);

struct PlacementMap {
  std::vector<Placement> experts;   // per MoE layer; default on demand
  // Experts that may never be evicted once loaded.
  int64_t num_kept_layers() const;
};

// Applies the rules in order; the last match wins. The pattern "experts" stands for "layers.*.experts".
// kInvalidArgument: a rule that matches no unit. kUnsupported: dense weights on demand (they are pinned).
Result<PlacementMap> resolve_placement(const Binding& binding, std::span<const PlacementRule> rules);

}  // namespace pointsman
