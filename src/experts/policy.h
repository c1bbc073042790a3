// SPDX-License-Identifier: Apache-2.0
//
// Which expert leaves when a slot is needed. A policy sees every use of every slot and names a victim; it never frees anything
// itself. One file per policy, one line in policy_list.inc. Experts of kept layers are none of its business: it never hears of
// them.
//
// A choice can cost time, never correctness: the same tokens come out under every policy.
//
// Called under the store's lock. No allocation after construction: the tables of a policy stay within policy_table_bytes().
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "pointsman/status.h"

namespace pointsman {

enum class SlotState : uint8_t { kFree, kLoading, kResident };

struct Slot {
  int32_t layer = -1;  // MoE layer index
  int32_t expert = -1;
  int32_t num_pins = 0;
  SlotState state = SlotState::kFree;
  bool is_kept = false;   // of a layer whose experts never leave
  uint64_t last_use = 0;  // larger is later; no two slots in use share one
  uint64_t ticket = 0;    // work of the compute stream that may still read the slot; 0: none

  bool evictable() const { return state == SlotState::kResident && num_pins == 0 && !is_kept; }
};

class ResidencyPolicy {
 public:
  virtual ~ResidencyPolicy() = default;
  virtual void inserted(int slot) = 0;  // now holds an expert, as the last used
  virtual void used(int slot) = 0;      // a hit
  virtual void removed(int slot) = 0;   // about to hold nothing; its fields are still those of the old expert
  // An evictable slot to make room for an expert of `layer`. -1 only when no slot is evictable. Asked only when none is free.
  virtual int victim(int layer) const = 0;
  virtual uint64_t table_bytes() const = 0;
};

// `slots` outlives the policy and keeps its address.
struct PolicyArgs {
  std::span<const Slot> slots;
  int num_layers = 0;
  // What is left when every kept layer has all its experts.
  int num_shared_slots = 0;
  int num_shared_layers = 0;
};

inline constexpr uint64_t policy_table_bytes(uint64_t num_slots, uint64_t num_layers) {
  return 8 * (num_slots + 1) + 16 * (num_layers + 1);
}

// kInvalidArgument lists the names there are.
Result<std::unique_ptr<ResidencyPolicy>> make_policy(std::string_view name, const PolicyArgs& args);
std::span<const std::string_view> policy_names();

#define PM_POLICY(name) std::unique_ptr<ResidencyPolicy> make_policy_##name(const PolicyArgs& args);
#include "experts/policy_list.inc"
#undef PM_POLICY

// For policies: a doubly linked list of slots in the order of use, oldest first. The links of all lists share one array, as a
// slot is in one list at a time.
class SlotLinks {
 public:
  struct List {
    int32_t head = -1, tail = -1;
    int32_t size = 0;
  };
  explicit SlotLinks(size_t num_slots) : links_(num_slots) {}

  void push_back(List& list, int slot) {
    at(slot) = {list.tail, -1};
    (list.tail >= 0 ? at(list.tail).next : list.head) = slot;
    list.tail = slot;
    ++list.size;
  }
  void remove(List& list, int slot) {
    const Link link = at(slot);
    (link.prev >= 0 ? at(link.prev).next : list.head) = link.next;
    (link.next >= 0 ? at(link.next).prev : list.tail) = link.prev;
    --list.size;
  }
  // Pinned slots are those of the running layer, hence the last used: the first look nearly always succeeds.
  int oldest_evictable(const List& list, std::span<const Slot> slots) const {
    for (int s = list.head; s >= 0; s = links_[static_cast<size_t>(s)].next) {
      if (slots[static_cast<size_t>(s)].evictable()) return s;
    }
    return -1;
  }
  uint64_t table_bytes() const { return links_.size() * sizeof(Link); }

 private:
  struct Link {
    int32_t prev = -1, next = -1;
  };
  Link& at(int slot) { return links_[static_cast<size_t>(slot)]; }
  std::vector<Link> links_;
};

}  // namespace pointsman
