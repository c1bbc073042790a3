// SPDX-License-Identifier: Apache-2.0
//
// lru: the least recently used expert of the whole model leaves. A forward pass visits the layers in turn, so with fewer slots
// than one token needs this policy evicts just what comes next; lru_per_layer does not.
#include "experts/policy_parts.h"

namespace pointsman {
namespace {

class LruPolicy final : public ResidencyPolicy {
 public:
  explicit LruPolicy(const PolicyArgs& args) : slots_(args.slots), links_(args.slots.size()) {}
  void inserted(int slot) override { links_.push_back(list_, slot); }
  void touched(int slot) override { used(slot); }
  void used(int slot) override {
    links_.remove(list_, slot);
    links_.push_back(list_, slot);
  }
  void removed(int slot) override { links_.remove(list_, slot); }
  int victim(int) const override { return links_.oldest_evictable(list_, slots_); }
  uint64_t table_bytes() const override { return links_.table_bytes(); }

 private:
  std::span<const Slot> slots_;
  SlotLinks links_;
  SlotLinks::List list_;
};

}  // namespace

std::unique_ptr<ResidencyPolicy> make_policy_lru(const PolicyArgs& args) {
  return std::make_unique<LruPolicy>(args);
}

}  // namespace pointsman
