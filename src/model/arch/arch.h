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

// What Numerics::kVendor means for a family, beside rounding to bf16 where its own code rounds.
struct VendorNumerics {
  bool power_of_two_scales = false;  // of activations, always; else only where scale_fmt is ue8m0
  bool weigh_before_down = false;    // routing weights go into the input of an expert's last product, not onto its output
};

struct Arch {
  std::string_view model_type;
  // kUnsupported for what the recipe cannot express, by key; null when it expresses every config of the family.
  Status (*check)(const ModelConfig& config);
  void (*bind)(const ModelConfig& config, Binder& binder);
  ops::RouterContract (*router)(const ModelConfig& config);  // null for dense architectures
  // One decoder layer: reads and updates the residual stream of the pass.
  Status (*layer)(ForwardPass& pass, const LayerWeights& weights, int layer_idx);
  const VendorNumerics* vendor = nullptr;  // null: Numerics::kVendor is not defined for the family
};

// kUnsupported names the model types that are known.
Result<const Arch*> find_arch(std::string_view model_type);

}  // namespace pointsman
