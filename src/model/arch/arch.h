// SPDX-License-Identifier: Apache-2.0
//
// An architecture is one file and one line of arch_list.inc. The file holds, in this order: what it checks in the config, the tensor
// names it expects, its router contract, and the layer recipe, which reads like the paper.
#pragma once

#include <span>
#include <string_view>

#include "checkpoint/model_config.h"
#include "ops/moe/router.h"
#include "pointsman/status.h"

namespace pointsman {

class Binder;
class ForwardPass;
struct LayerWeights;

struct Arch {
  std::string_view model_type;
  // kUnsupported for what the recipe cannot express, by key; null when it expresses every config of the family.
  Status (*check)(const ModelConfig& config);
  void (*bind)(const ModelConfig& config, Binder& binder);
  ops::RouterContract (*router)(const ModelConfig& config);  // null for dense architectures
  // One decoder layer: reads and updates the residual stream of the pass.
  Status (*layer)(ForwardPass& pass, const LayerWeights& weights, int layer_idx);
  bool has_vendor_numerics = false;  // the recipe knows what Numerics::kVendor does
};

// kUnsupported names the model types that are known.
Result<const Arch*> find_arch(std::string_view model_type);

}  // namespace pointsman
