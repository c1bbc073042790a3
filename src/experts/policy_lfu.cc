// SPDX-License-Identifier: Apache-2.0
//
// lfu: the expert that was asked for least often leaves, of the whole model. Counts fade, so that a change of subject is followed, and
// they outlive the stay in a slot, so that an expert comes back with its past. Of equals the least recently used one leaves.
#include "experts/policy_parts.h"

namespace pointsman {
namespace {

class LfuPolicy final : public ResidencyPolicy {
 public:
  explicit LfuPolicy(const PolicyArgs& args)
      : args_(args),
        counts_(static_cast<size_t>(args.num_layers) * static_cast<size_t>(args.num_experts), fading_half_life(args)),
        heap_(args.slots.size(), Less{this}) {}

  void asked(int layer, std::span<const int32_t> experts, std::span<const int32_t> offsets) override {
    counts_.add_batch(args_, layer, experts, offsets, [this](int slot) { heap_.raised(slot); });
  }
  void inserted(int slot) override { heap_.push(slot); }
  void touched(int slot) override { heap_.raised(slot); }
  void used(int slot) override { heap_.raised(slot); }
  void removed(int slot) override { heap_.remove(slot); }
  int victim(int) const override { return heap_.least_evictable(args_.slots); }
  uint64_t table_bytes() const override { return counts_.table_bytes() + heap_.table_bytes(); }

 private:
  struct Less {
    const LfuPolicy* policy;
    bool operator()(int a, int b) const { return less_used(policy->args_, policy->counts_, a, b); }
  };
  const PolicyArgs args_;
  FadingCounts counts_;
  SlotHeap<Less> heap_;
};

}  // namespace

std::unique_ptr<ResidencyPolicy> make_policy_lfu(const PolicyArgs& args) {
  return std::make_unique<LfuPolicy>(args);
}

}  // namespace pointsman
