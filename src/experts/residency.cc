// SPDX-License-Identifier: Apache-2.0
#include "experts/residency.h"

#include <algorithm>

#include "base/check.h"
#include "base/log.h"

namespace pointsman {
namespace {

constexpr std::string_view kPolicyNames[] = {
#define PM_POLICY(name, learns) #name,
#include "experts/policy_list.inc"
#undef PM_POLICY
};

}  // namespace

std::span<const std::string_view> policy_names() {
  return kPolicyNames;
}

bool policy_learns(std::string_view name) {
#define PM_POLICY(policy, learns) \
  if (name == #policy) return learns;
#include "experts/policy_list.inc"
#undef PM_POLICY
  return false;
}

Result<std::unique_ptr<ResidencyPolicy>> make_policy(std::string_view name, const PolicyArgs& args) {
#define PM_POLICY(policy, learns) \
  if (name == #policy) return make_policy_##policy(args);
#include "experts/policy_list.inc"
#undef PM_POLICY
  return error(StatusCode::kInvalidArgument, "unknown residency policy '{}': expected one of {}", name,
               fmt::join(policy_names(), ", "));
}

uint64_t Residency::table_bytes(uint64_t num_slots, uint64_t num_layers, uint64_t num_experts) {
  return sizeof(Residency) + num_slots * (sizeof(Slot) + sizeof(int32_t)) + num_layers * num_experts * (sizeof(int32_t) + sizeof(uint32_t)) +
         (num_layers + 63) / 64 * 8 + policy_table_bytes(num_slots, num_layers, num_experts);
}

Residency::Residency(int num_slots, int num_layers, int num_experts)
    : num_experts_(num_experts),
      slots_(static_cast<size_t>(num_slots)),
      index_(static_cast<size_t>(num_layers) * static_cast<size_t>(num_experts), -1),
      uses_(index_.size()) {
  free_.reserve(static_cast<size_t>(num_slots));
  for (int s = num_slots - 1; s >= 0; --s) free_.push_back(s);
}

Result<std::unique_ptr<Residency>> Residency::make(int num_slots, int num_layers, int num_experts, std::string_view policy,
                                                   const std::vector<bool>& keep_layer, std::span<const uint32_t> learned_uses) {
  const auto maker = [&](const PolicyArgs& args) { return make_policy(policy, args); };
  return make_with(num_slots, num_layers, num_experts, maker, keep_layer, learned_uses);
}

Result<std::unique_ptr<Residency>> Residency::make_with(int num_slots, int num_layers, int num_experts, PolicyMaker maker,
                                                        const std::vector<bool>& keep_layer, std::span<const uint32_t> learned_uses) {
  if (!keep_layer.empty() && keep_layer.size() != static_cast<size_t>(num_layers)) {
    return error(StatusCode::kInvalidArgument, "keep_layer has {} entries for {} layers", keep_layer.size(), num_layers);
  }
  const int num_kept = static_cast<int>(std::count(keep_layer.begin(), keep_layer.end(), true));
  const int64_t kept_slots = int64_t{num_kept} * num_experts;
  // Two for the others: one in use while the next is read.
  const int64_t needed = kept_slots + std::min<int64_t>(2, int64_t{num_layers - num_kept} * num_experts);
  if (num_slots < needed) {
    return error(StatusCode::kInvalidArgument, "{} expert slots: {} kept layers of {} experts need at least {}", num_slots,
                 num_kept, num_experts, needed);
  }
  auto r = std::unique_ptr<Residency>(new Residency(num_slots, num_layers, num_experts));
  PM_CHECK(learned_uses.empty() || learned_uses.size() == r->index_.size());
  PM_ASSIGN_OR_RETURN(r->policy_, maker({.slots = r->slots_,
                                         .slot_of = r->index_,
                                         .num_layers = num_layers,
                                         .num_experts = num_experts,
                                         .num_shared_slots = static_cast<int>(num_slots - kept_slots),
                                         .num_shared_layers = num_layers - num_kept,
                                         .learned_uses = learned_uses}));
  if (num_kept > 0) r->keep_layer_ = keep_layer;
  r->may_evict_ = num_slots < int64_t{num_layers} * num_experts;
  PM_CHECK(r->policy_->table_bytes() <= policy_table_bytes(static_cast<uint64_t>(num_slots), static_cast<uint64_t>(num_layers),
                                                          static_cast<uint64_t>(num_experts)));
  return r;
}

void Residency::begin(int layer, std::span<const int32_t> experts, std::span<const int32_t> offsets) {
  if (!keep_layer_.empty() && keep_layer_[static_cast<size_t>(layer)]) return;
  for (const int32_t e : experts) {
    const int32_t rows = offsets.empty() ? 1 : offsets[static_cast<size_t>(e) + 1] - offsets[static_cast<size_t>(e)];
    uint32_t& uses = uses_[index_of(layer, e)];
    uses = static_cast<uint32_t>(std::min<uint64_t>(UINT32_MAX, uint64_t{uses} + static_cast<uint64_t>(rows)));
  }
  if (may_evict_) policy_->asked(layer, experts, offsets);
}

void Residency::use(int s) {
  Slot& slot = slots_[static_cast<size_t>(s)];
  PM_CHECK(slot.state == SlotState::kResident);
  ++slot.num_pins;
  slot.last_use = ++clock_;
  if (has_policy(slot)) policy_->used(s);
}

void Residency::asked(int s) {
  Slot& slot = slots_[static_cast<size_t>(s)];
  PM_CHECK(slot.state == SlotState::kLoading);
  slot.last_use = ++clock_;
  if (has_policy(slot)) policy_->used(s);
}

void Residency::touch(int s) {
  Slot& slot = slots_[static_cast<size_t>(s)];
  PM_CHECK(slot.state == SlotState::kResident);
  slot.last_use = ++clock_;
  if (has_policy(slot)) policy_->touched(s);
}

Residency::Reservation Residency::reserve(int layer, int expert, For purpose) {
  PM_CHECK(find(layer, expert) < 0);
  Reservation r;
  if (free_.empty()) {
    const int victim = policy_->victim(layer);
    if (victim < 0) return r;
    PM_CHECK(slot(victim).evictable(), "the policy chose a slot in use");
    r.evicted_layer = slot(victim).layer;
    clear(victim);
  }
  r.slot = free_.back();
  free_.pop_back();
  Slot& slot = slots_[static_cast<size_t>(r.slot)];
  // The ticket stays: it is about the bytes, not about whose they are.
  slot.layer = layer;
  slot.expert = expert;
  slot.is_kept = !keep_layer_.empty() && keep_layer_[static_cast<size_t>(layer)];
  slot.num_pins = 1;
  slot.state = SlotState::kLoading;
  slot.last_use = ++clock_;
  index_[index_of(layer, expert)] = r.slot;
  if (has_policy(slot)) {
    policy_->inserted(r.slot);
    if (purpose == For::kUse) policy_->used(r.slot);
  }
  return r;
}

void Residency::loaded(int s) {
  Slot& slot = slots_[static_cast<size_t>(s)];
  PM_CHECK(slot.state == SlotState::kLoading);
  slot.state = SlotState::kResident;
}

void Residency::abandon(int s) {
  PM_CHECK(slot(s).state == SlotState::kLoading);
  clear(s);
}

void Residency::unpin(int s, uint64_t ticket) {
  Slot& slot = slots_[static_cast<size_t>(s)];
  PM_CHECK(slot.num_pins > 0 && slot.state == SlotState::kResident);
  --slot.num_pins;
  if (ticket > slot.ticket) slot.ticket = ticket;
}

void Residency::evict_unpinned() {
  for (int s = 0; s < num_slots(); ++s) {
    if (slot(s).evictable()) clear(s);
  }
}

int Residency::num_pinned() const {
  int n = 0;
  for (const Slot& slot : slots_) n += slot.num_pins > 0;
  return n;
}

void Residency::clear(int s) {
  Slot& slot = slots_[static_cast<size_t>(s)];
  if (has_policy(slot)) policy_->removed(s);
  index_[index_of(slot.layer, slot.expert)] = -1;
  slot.layer = slot.expert = -1;
  slot.num_pins = 0;
  slot.state = SlotState::kFree;
  free_.push_back(s);
}

}  // namespace pointsman
