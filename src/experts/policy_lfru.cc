// SPDX-License-Identifier: Apache-2.0
//
// lfru: recency protects, frequency decides ("least frequent recently used", Bilal and Kang 2017). What the last pass over the layers
// used is safe; experts that fall out of it compete by their fading counts, and the least used one leaves. Where the slots hold less than a
// pass uses, nothing is safe and the counts decide alone; where they hold just that, this is LRU.
//
// What earlier runs learned gives the counts a start. A hot set that never leaves lost on other texts than it was learned from (docs/performance.md).
#include <algorithm>

#include "experts/policy_parts.h"

namespace pointsman {
namespace {

class LfruPolicy final : public ResidencyPolicy {
 public:
  explicit LfruPolicy(const PolicyArgs& args)
      : args_(args),
        num_recent_(args.num_shared_slots / 2),
        counts_(num_records(args), fading_half_life(args)),
        links_(args.slots.size()),
        heap_(args.slots.size(), Less{this}) {
    args_.learned_uses = {};
    if (!args.learned_uses.empty()) learn(args.learned_uses);
  }

  void asked(int layer, std::span<const int32_t> experts, std::span<const int32_t> offsets) override {
    counts_.add_batch(args_, layer, experts, offsets, [this](int slot) {
      if (heap_.has(slot)) heap_.raised(slot);
    });
  }
  void inserted(int slot) override { push_recent(slot); }
  void touched(int slot) override {
    if (heap_.has(slot)) {
      heap_.remove(slot);
    } else {
      links_.remove(recent_, slot);
    }
    push_recent(slot);
  }
  void used(int slot) override {
    count_pass(args_.slots[static_cast<size_t>(slot)].layer);
    touched(slot);
  }
  void removed(int slot) override {
    if (heap_.has(slot)) return heap_.remove(slot);
    links_.remove(recent_, slot);
  }
  int victim(int) const override {
    if (const int slot = heap_.least_evictable(args_.slots); slot >= 0) return slot;
    return links_.oldest_evictable(recent_, args_.slots);
  }
  uint64_t table_bytes() const override {
    return counts_.table_bytes() + links_.table_bytes() + heap_.table_bytes();
  }

 private:
  struct Less {
    const LfruPolicy* policy;
    bool operator()(int a, int b) const { return less_used(policy->args_, policy->counts_, a, b); }
  };
  static size_t num_records(const PolicyArgs& args) { return static_cast<size_t>(args.num_layers) * static_cast<size_t>(args.num_experts); }

  void push_recent(int slot) {
    links_.push_back(recent_, slot);
    while (recent_.size > num_recent_) {
      const int oldest = recent_.head;
      links_.remove(recent_, oldest);
      heap_.push(oldest);
    }
  }
  // A pass ends where the layers begin again. Models with one layer keep the half that is set at the start.
  void count_pass(int layer) {
    if (layer < last_layer_) {
      num_recent_ = num_uses_ <= args_.num_shared_slots ? num_uses_ : 0;
      num_uses_ = 0;
    }
    last_layer_ = layer;
    ++num_uses_;
  }
  // Thirty-two uses of the past weigh as one of now: enough to rank experts that this run has not met, and soon overtaken.
  void learn(std::span<const uint32_t> learned) {
    for (size_t i = 0; i < learned.size(); ++i) {
      if (learned[i] > 0) counts_.add(i, 0, static_cast<double>(learned[i]) / 32);
    }
  }

  PolicyArgs args_;
  int num_recent_;  // slots
  int last_layer_ = -1, num_uses_ = 0;  // of this pass
  FadingCounts counts_;
  SlotLinks links_;  // of recent_
  SlotLinks::List recent_;
  SlotHeap<Less> heap_;
};

}  // namespace

std::unique_ptr<ResidencyPolicy> make_policy_lfru(const PolicyArgs& args) {
  return std::make_unique<LfruPolicy>(args);
}

}  // namespace pointsman
