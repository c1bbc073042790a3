// SPDX-License-Identifier: Apache-2.0
//
// lru_per_layer: every layer owns slots / layers of the slots (its quota; kept layers are out of the count) and replaces its
// own least recently used expert, so that a pass over all layers does not flush the ones it returns to. A layer below its quota
// takes the oldest expert of the layers above theirs; what the division leaves over belongs to whoever comes first.
#include <algorithm>

#include "experts/policy_parts.h"

namespace pointsman {
namespace {

class LruPerLayerPolicy final : public ResidencyPolicy {
 public:
  explicit LruPerLayerPolicy(const PolicyArgs& args)
      : slots_(args.slots),
        quota_(args.num_shared_layers > 0 ? args.num_shared_slots / args.num_shared_layers : 0),
        links_(args.slots.size()),
        layers_(static_cast<size_t>(args.num_layers)) {}

  void inserted(int slot) override { links_.push_back(list_of(slot), slot); }
  void touched(int slot) override { used(slot); }
  void used(int slot) override {
    links_.remove(list_of(slot), slot);
    links_.push_back(list_of(slot), slot);
  }
  void removed(int slot) override { links_.remove(list_of(slot), slot); }

  int victim(int layer) const override {
    const SlotLinks::List& own = layers_[static_cast<size_t>(layer)];
    if (own.size >= std::max(1, quota_)) {
      const int slot = links_.oldest_evictable(own, slots_);
      if (slot >= 0) return slot;
    }
    const int slot = oldest_of_layers_larger_than(quota_);
    return slot >= 0 ? slot : oldest_of_layers_larger_than(0);
  }
  uint64_t table_bytes() const override { return links_.table_bytes() + layers_.size() * sizeof(SlotLinks::List); }

 private:
  SlotLinks::List& list_of(int slot) { return layers_[static_cast<size_t>(slots_[static_cast<size_t>(slot)].layer)]; }
  // A look at every layer: tens of nanoseconds, before a read of some hundred microseconds.
  int oldest_of_layers_larger_than(int size) const {
    int best = -1;
    for (const SlotLinks::List& list : layers_) {
      if (list.size <= size) continue;
      const int slot = links_.oldest_evictable(list, slots_);
      if (slot >= 0 && (best < 0 || slots_[static_cast<size_t>(slot)].last_use < slots_[static_cast<size_t>(best)].last_use)) {
        best = slot;
      }
    }
    return best;
  }

  std::span<const Slot> slots_;
  const int quota_;
  SlotLinks links_;
  std::vector<SlotLinks::List> layers_;
};

}  // namespace

std::unique_ptr<ResidencyPolicy> make_policy_lru_per_layer(const PolicyArgs& args) {
  return std::make_unique<LruPerLayerPolicy>(args);
}

}  // namespace pointsman
