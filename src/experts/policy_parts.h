// SPDX-License-Identifier: Apache-2.0
//
// What policies are made of: lists in the order of use, a heap of slots, and counts that fade. None allocates after construction.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numbers>
#include <span>
#include <utility>
#include <vector>

#include "experts/policy.h"

namespace pointsman {

// A doubly linked list of slots in the order of use, oldest first. The links of all lists share one array, as a
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
  int newest_evictable(const List& list, std::span<const Slot> slots) const {
    for (int s = list.tail; s >= 0; s = links_[static_cast<size_t>(s)].prev) {
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

// How many rows went to each expert, where a row counts half as much after `half_life` further rows to any expert (the "combined recency and
// frequency" of the LRFU policy, Lee et al. 2001). Kept forward: instead of shrinking every count as time goes on, new uses weigh
// more, 2^(now / half_life), and the logarithm is stored; so ranks change only where something is used.
inline int32_t rows_of(int32_t expert, std::span<const int32_t> offsets) {
  const auto e = static_cast<size_t>(expert);
  return offsets.empty() ? 1 : offsets[e + 1] - offsets[e];
}
class FadingCounts {
 public:
  FadingCounts(size_t num_experts, double half_life) : half_life_(half_life), log_counts_(num_experts, kNever) {}

  void add(size_t expert, uint64_t now, double times = 1) {
    const double weight = static_cast<double>(now) / half_life_ + std::log2(times);
    double& c = log_counts_[expert];
    c = c == kNever ? weight : std::max(c, weight) + std::log2(1 + std::exp2(-std::abs(c - weight)));
  }
  // A batch: the rows that go to each of its experts, all at once after it (a prompt counts by its rows, and ages what was before by them: counted
  // once per expert it would leave all experts equal, and decode would go by those counts for long; docs/performance.md). `raised(slot)` is called
  // for each of them that is in a slot, before the next one changes.
  template <class Raised>
  void add_batch(const PolicyArgs& args, int layer, std::span<const int32_t> experts, std::span<const int32_t> offsets, Raised raised) {
    const auto rows = offsets.empty() ? experts.size() : static_cast<uint64_t>(offsets.back() - offsets.front());
    now_ += rows;
    // The rows came one after the other, and those at the start of a long prompt have faded by its end: the mean of 2^-t over the time that the
    // pass takes of all layers.
    const double half_lives = static_cast<double>(rows) * args.num_layers / half_life_;
    const double left = half_lives > 0 ? -std::expm1(-half_lives * std::numbers::ln2) / (half_lives * std::numbers::ln2) : 1;
    const size_t first = static_cast<size_t>(layer) * static_cast<size_t>(args.num_experts);
    for (const int32_t e : experts) {
      const size_t expert = first + static_cast<size_t>(e);
      add(expert, now_, left * rows_of(e, offsets));
      if (args.slot_of[expert] >= 0) raised(args.slot_of[expert]);
    }
  }
  // Larger is more used; only comparisons mean something.
  double rank(size_t expert) const { return log_counts_[expert]; }
  uint64_t table_bytes() const { return log_counts_.size() * sizeof(double); }

 private:
  static constexpr double kNever = -std::numeric_limits<double>::infinity();
  const double half_life_;
  uint64_t now_ = 0;  // rows of all batches
  std::vector<double> log_counts_;
};

// Measured over recorded traces (docs/performance.md): four times as many rows as there are experts. Two to sixteen are within one per cent.
inline double fading_half_life(const PolicyArgs& args) {
  return 4.0 * static_cast<double>(args.num_layers) * static_cast<double>(args.num_experts);
}
// Is the expert in slot `a` to leave before that in `b`?
inline bool less_used(const PolicyArgs& args, const FadingCounts& counts, int a, int b) {
  const double x = counts.rank(args.expert_in(a)), y = counts.rank(args.expert_in(b));
  return x != y ? x < y : args.slots[static_cast<size_t>(a)].last_use < args.slots[static_cast<size_t>(b)].last_use;
}

// A binary heap of slots with the least on top; Less orders slots by number. A slot whose rank grew is told by raised().
template <class Less>
class SlotHeap {
 public:
  SlotHeap(size_t num_slots, Less less) : less_(std::move(less)), places_(num_slots, -1) { heap_.reserve(num_slots); }

  bool has(int slot) const { return places_[static_cast<size_t>(slot)] >= 0; }
  void push(int slot) {
    heap_.push_back(slot);
    places_[static_cast<size_t>(slot)] = static_cast<int32_t>(heap_.size()) - 1;
    up(heap_.size() - 1);
  }
  void remove(int slot) {
    const auto place = static_cast<size_t>(std::exchange(places_[static_cast<size_t>(slot)], -1));
    const int32_t last = heap_.back();
    heap_.pop_back();
    if (place == heap_.size()) return;
    put(place, last);
    up(place);
    down(static_cast<size_t>(places_[static_cast<size_t>(last)]));
  }
  void raised(int slot) { down(static_cast<size_t>(places_[static_cast<size_t>(slot)])); }
  // The least evictable slot, or -1. Looks below slots in use only, and those are few.
  int least_evictable(std::span<const Slot> slots) const { return least_below(0, slots, -1); }
  uint64_t table_bytes() const { return places_.size() * 2 * sizeof(int32_t); }

 private:
  void put(size_t place, int32_t slot) {
    heap_[place] = slot;
    places_[static_cast<size_t>(slot)] = static_cast<int32_t>(place);
  }
  void up(size_t place) {
    const int32_t slot = heap_[place];
    for (; place > 0 && less_(slot, heap_[(place - 1) / 2]); place = (place - 1) / 2) put(place, heap_[(place - 1) / 2]);
    put(place, slot);
  }
  void down(size_t place) {
    const int32_t slot = heap_[place];
    for (size_t child; (child = 2 * place + 1) < heap_.size(); place = child) {
      if (child + 1 < heap_.size() && less_(heap_[child + 1], heap_[child])) ++child;
      if (!less_(heap_[child], slot)) break;
      put(place, heap_[child]);
    }
    put(place, slot);
  }
  int least_below(size_t place, std::span<const Slot> slots, int best) const {
    if (place >= heap_.size() || (best >= 0 && !less_(heap_[place], best))) return best;
    if (slots[static_cast<size_t>(heap_[place])].evictable()) return heap_[place];
    return least_below(2 * place + 2, slots, least_below(2 * place + 1, slots, best));
  }

  Less less_;
  std::vector<int32_t> heap_;    // slots
  std::vector<int32_t> places_;  // by slot: where it is in heap_, or -1
};

}  // namespace pointsman
