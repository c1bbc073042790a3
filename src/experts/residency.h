// SPDX-License-Identifier: Apache-2.0
//
// Residency: who sits in which slot, and who is pinned. Bookkeeping only: no bytes, no threads, no lock of its own (the store's
// lock guards it). A free slot is taken before anybody is evicted; after that the policy names the victim. Experts of a kept
// layer are evicted by nobody once they are in.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/function_ref.h"
#include "experts/policy.h"
#include "pointsman/status.h"

namespace pointsman {

class Residency {
 public:
  // `keep_layer`: by layer, or empty for none. `learned_uses`: [layers * experts] of earlier runs, or empty. kInvalidArgument when the kept layers leave fewer than two slots for the others.
  static Result<std::unique_ptr<Residency>> make(int num_slots, int num_layers, int num_experts, std::string_view policy,
                                                 const std::vector<bool>& keep_layer = {},
                                                 std::span<const uint32_t> learned_uses = {});
  // The same with a policy that is in no list (the optimum of the simulator).
  using PolicyMaker = FunctionRef<Result<std::unique_ptr<ResidencyPolicy>>(const PolicyArgs&)>;
  static Result<std::unique_ptr<Residency>> make_with(int num_slots, int num_layers, int num_experts, PolicyMaker maker,
                                                      const std::vector<bool>& keep_layer = {},
                                                      std::span<const uint32_t> learned_uses = {});
  // Heap of such an object; make() takes exactly this much or, by rounding of the policy, a few bytes less.
  static uint64_t table_bytes(uint64_t num_slots, uint64_t num_layers, uint64_t num_experts);

  // The slot that holds or loads the expert; -1 when there is none.
  int find(int layer, int expert) const { return index_[index_of(layer, expert)]; }
  const Slot& slot(int s) const { return slots_[static_cast<size_t>(s)]; }
  int num_slots() const { return static_cast<int>(slots_.size()); }

  // A batch is about to ask for these experts of a layer: see ResidencyPolicy::asked().
  void begin(int layer, std::span<const int32_t> experts, std::span<const int32_t> offsets);
  // A hit: pinned once more and marked as used. REQUIRES: resident.
  void use(int s);
  struct Reservation {
    int slot = -1;           // -1: every slot is pinned or loading
    int evicted_layer = -1;  // -1: nobody had to leave
  };
  // What reserve() would have to evict for an expert of `layer`: a slot, -1 when it would fail, -2 when a slot is free.
  int next_victim(int layer) const { return free_.empty() ? policy_->victim(layer) : -2; }
  // A slot for an expert that is in none: loading, pinned once. One that is read ahead counts as a use when a batch asks for it.
  enum class For { kUse, kReadAhead };
  Reservation reserve(int layer, int expert, For purpose = For::kUse);
  // A batch asks for what is still being read ahead. REQUIRES: loading.
  void asked(int s);
  // Recent, though nobody asked. REQUIRES: resident.
  void touch(int s);
  void loaded(int s);   // loading -> resident; the pin stays
  void abandon(int s);  // loading -> free
  // Drops one pin. A non-zero `ticket` is the work that must have been passed before the slot is overwritten.
  void unpin(int s, uint64_t ticket);
  void evict_unpinned();   // but kept ones
  int num_pinned() const;  // slots
  // Rows that went to each expert [layers * experts] by begin(); those of kept layers are not counted. Later runs learn from it.
  std::span<const uint32_t> uses() const { return uses_; }

 private:
  Residency(int num_slots, int num_layers, int num_experts);
  size_t index_of(int layer, int expert) const {
    return static_cast<size_t>(layer) * static_cast<size_t>(num_experts_) + static_cast<size_t>(expert);
  }
  void clear(int s);
  bool has_policy(const Slot& slot) const { return may_evict_ && !slot.is_kept; }

  const int num_experts_;
  std::vector<Slot> slots_;
  std::vector<int32_t> index_;  // [layers * experts] slot or -1
  std::vector<uint32_t> uses_;  // [layers * experts]
  std::vector<int32_t> free_;   // a stack
  std::vector<bool> keep_layer_;
  std::unique_ptr<ResidencyPolicy> policy_;
  bool may_evict_ = true;       // false: there is a slot for every expert, and the policy need not be told of every use
  uint64_t clock_ = 0;
};

}  // namespace pointsman
