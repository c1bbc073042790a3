// SPDX-License-Identifier: Apache-2.0
//
// Which expert leaves when a slot is needed. A policy sees every use of every slot and names a victim; it never frees anything
// itself. One file per policy, one line in policy_list.inc; "policy_parts.h" has what several need. Experts of kept layers are none of its business: it never hears of
// them; of nothing at all where every expert has a slot.
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
  // A batch is about to ask for these experts of a layer, before its hits are used and its misses inserted. `offsets` [num_experts + 1]: rows
  // of the batch that go to experts before this one, or empty: one row to each.
  virtual void asked(int /*layer*/, std::span<const int32_t> /*experts*/, std::span<const int32_t> /*offsets*/) {}
  virtual void inserted(int slot) = 0;  // now holds an expert, as the newest. One read ahead of its use is inserted, and used later or never
  virtual void touched(int slot) = 0;   // will be asked for soon, or so it is thought: recent, not counted
  virtual void used(int slot) = 0;      // a batch asked for the expert: a hit, or a miss right after inserted()
  virtual void removed(int slot) = 0;   // about to hold nothing; its fields are still those of the old expert
  // An evictable slot to make room for an expert of `layer`. -1 only when no slot is evictable. Asked only when none is free.
  virtual int victim(int layer) const = 0;
  virtual uint64_t table_bytes() const = 0;
};

// `slots` and `slot_of` outlive the policy and keep their addresses.
struct PolicyArgs {
  std::span<const Slot> slots;
  std::span<const int32_t> slot_of = {};  // [layers * experts]: the slot that holds or loads the expert, or -1
  int num_layers = 0;
  int num_experts = 0;  // per layer
  // What is left when every kept layer has all its experts.
  int num_shared_slots = 0;
  int num_shared_layers = 0;
  std::span<const uint32_t> learned_uses = {};  // [layers * experts] of earlier runs, or empty. Read by the constructor only

  // Index of the expert in a slot, in tables of [layers * experts].
  size_t expert_in(int slot) const {
    const Slot& s = slots[static_cast<size_t>(slot)];
    return static_cast<size_t>(s.layer) * static_cast<size_t>(num_experts) + static_cast<size_t>(s.expert);
  }
};

// Of the largest policy.
inline constexpr uint64_t policy_table_bytes(uint64_t num_slots, uint64_t num_layers, uint64_t num_experts) {
  return 20 * (num_slots + 1) + 16 * (num_layers + 1) + 9 * num_layers * num_experts;
}

// kInvalidArgument lists the names there are.
Result<std::unique_ptr<ResidencyPolicy>> make_policy(std::string_view name, const PolicyArgs& args);
std::span<const std::string_view> policy_names();
// Does the policy of this name read PolicyArgs::learned_uses? False for unknown names.
bool policy_learns(std::string_view name);

#define PM_POLICY(name, learns) std::unique_ptr<ResidencyPolicy> make_policy_##name(const PolicyArgs& args);
#include "experts/policy_list.inc"
#undef PM_POLICY

}  // namespace pointsman
