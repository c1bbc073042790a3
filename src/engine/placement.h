// SPDX-License-Identifier: Apache-2.0
//
// Placement rules: which units of a model are pinned, resident or read on demand. The device map of the practitioner's guide (§3.3),
// decided before a weight is read and printed by `plan`.
//
// Experts and the two matrices of the vocabulary can be read on demand; every other dense weight is needed whole for every token
// and pinned. With embed_tokens on demand a pass reads the blocks that hold its tokens' rows; with lm_head on demand every
// token reads the whole head through a small buffer.
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
  // Uses, not tensors: a tied matrix stays on disk when both are on demand, and in memory for both when one is not.
  Placement embed_tokens = Placement::kPinned;
  Placement lm_head = Placement::kPinned;
  // Experts that may never be evicted once loaded.
  int64_t num_kept_layers() const;
};

// Applies the rules in order; the last match wins. Marks the dense tensors of the binding that stay on disk. The pattern "experts"
// stands for "layers.*.experts"; "*=on-demand" is everything that can be. kInvalidArgument: a rule that matches no unit.
// kUnsupported: a rule that names other dense weights on demand.
Result<PlacementMap> resolve_placement(Binding& binding, std::span<const PlacementRule> rules);

}  // namespace pointsman
