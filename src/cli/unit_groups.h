// SPDX-License-Identifier: Apache-2.0
//
// The placement map for people: layers that are alike on one line.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "pointsman/engine.h"

namespace pointsman::cli {

struct UnitGroup {
  std::string name;  // "layers.0-27.attention", "lm_head"
  Placement placement = Placement::kPinned;
  uint64_t bytes = 0;  // of all
  uint64_t bytes_each = 0;
  int64_t layers = 1;
};

// Units "layers.N.x" with the same x, placement and size are one group, whose name lists their numbers: "0-3,8". In the order
// of first appearance.
std::vector<UnitGroup> group_units(std::span<const PlanUnit> units);

}  // namespace pointsman::cli
