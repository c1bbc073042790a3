// SPDX-License-Identifier: Apache-2.0
//
// reuse: the expert leaves that is least likely to be asked for when its layer comes again. The likelihood is counted, not assumed: experts
// are sorted into classes by how many passes ago their layer asked for them and by how large a part of the rows went to them lately (a
// fading mean), and each class knows how often its experts were asked for on the next pass (the idea of LHD, Beckmann et al. 2018: rank by
// measured hit density, here with one step of a layer as the unit of time). So the policy is nearly LRU where routes stick from token to token, nearly LFU where some experts
// are popular, and where a pass over the layers asks for more than the slots hold, it keeps a part instead of flushing what
// comes next: all of a class being equal, the one whose layer has just passed leaves, as it waits longest.
//
// Passes of another size (a prompt, after single tokens) say little about the next pass of a decode: when a layer asks for more than
// twice or less than half of what was usual, counting begins anew.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <numeric>

#include "experts/policy_parts.h"

namespace pointsman {
namespace {

constexpr int kNumAges = 6;    // passes of the layer since the last use: 0, 1, 2, 3..4, 5..8, more
constexpr int kNumRates = 12;  // half octaves around the mean
constexpr int kNumClasses = kNumAges * kNumRates;
constexpr uint8_t kExpected = kNumClasses;  // read ahead, or said to be needed soon: leaves last
constexpr float kPriorWeight = 16, kMostSamples = 4096;
constexpr float kRateHalfLife = 4;  // in passes that each expert is asked for once, on average

int age_class(int age) { return age < 3 ? age : age < 5 ? 3 : age < 9 ? 4 : 5; }

class ReusePolicy final : public ResidencyPolicy {
 public:
  explicit ReusePolicy(const PolicyArgs& args)
      : args_(args),
        rates_(args.slot_of.size(), 1.0F),
        ages_(args.slot_of.size(), UINT8_MAX),
        shares_(static_cast<size_t>(args.num_layers), 0.0F),
        class_of_(args.slots.size(), kExpected),
        links_(args.slots.size()) {
    args_.learned_uses = {};
    if (!args.learned_uses.empty()) learn(args.learned_uses);
    start_counting();
  }

  void asked(int layer, std::span<const int32_t> experts, std::span<const int32_t> offsets) override {
    if (experts.empty()) return;
    const auto n = static_cast<size_t>(args_.num_experts);
    const size_t first = static_cast<size_t>(layer) * n;
    const float share = static_cast<float>(experts.size()) / static_cast<float>(n);
    if (!alike(share, usual_share_)) start_counting();
    usual_share_ = share;
    if (alike(share, std::exchange(shares_[static_cast<size_t>(layer)], share))) count(first, experts);
    age(first, experts, offsets);
    // Of those in slots, the classes are new.
    for (size_t e = 0; e < n; ++e) {
      if (const int slot = args_.slot_of[first + e]; slot >= 0) put(slot, class_of(first + e));
    }
    if (layer <= last_layer_) sort_classes();  // once a pass
    last_layer_ = layer;
  }
  void inserted(int slot) override {
    class_of_[static_cast<size_t>(slot)] = kExpected;
    links_.push_back(lists_[kExpected], slot);
  }
  void touched(int slot) override { put(slot, kExpected); }
  void used(int slot) override { put(slot, class_of(args_.expert_in(slot))); }
  void removed(int slot) override { links_.remove(lists_[class_of_[static_cast<size_t>(slot)]], slot); }
  int victim(int) const override {
    for (const uint8_t c : order_) {
      if (const int slot = links_.newest_evictable(lists_[c], args_.slots); slot >= 0) return slot;
    }
    return links_.oldest_evictable(lists_[kExpected], args_.slots);
  }
  uint64_t table_bytes() const override {
    return rates_.size() * sizeof(float) + ages_.size() + shares_.size() * sizeof(float) + class_of_.size() + links_.table_bytes();
  }

 private:
  static bool alike(float a, float b) { return a <= 2 * b && b <= 2 * a; }

  uint8_t class_of(size_t expert) const {
    // floor(2 log2(rate)) from the bits of the number, as this runs for every expert of every layer: twice the exponent, and one more from sqrt(2) on.
    const auto bits = std::bit_cast<uint32_t>(rates_[expert]);
    const int half_octaves = 2 * (static_cast<int>(bits >> 23) - 127) + ((bits & 0x7FFFFF) >= 0x3504F3 ? 1 : 0);
    const int rate = std::clamp(half_octaves + kNumRates / 2, 0, kNumRates - 1);  // the mean is in the middle
    return static_cast<uint8_t>(age_class(ages_[expert]) * kNumRates + rate);
  }
  void put(int slot, uint8_t c) {
    uint8_t& old = class_of_[static_cast<size_t>(slot)];
    links_.remove(lists_[old], slot);
    old = c;
    links_.push_back(lists_[c], slot);
  }
  // What became of the experts of a layer since it came last.
  void count(size_t first, std::span<const int32_t> experts) {
    for (const int32_t e : experts) hits_[class_of(first + static_cast<size_t>(e))] += 1;
    for (size_t e = 0; e < static_cast<size_t>(args_.num_experts); ++e) {
      const uint8_t c = class_of(first + e);
      if ((samples_[c] += 1) < kMostSamples) continue;
      samples_[c] /= 2;
      hits_[c] /= 2;
    }
  }
  void age(size_t first, std::span<const int32_t> experts, std::span<const int32_t> offsets) {
    const auto n = static_cast<size_t>(args_.num_experts);
    const float rows = static_cast<float>(offsets.empty() ? static_cast<int32_t>(experts.size()) : offsets.back() - offsets.front());
    const float kept = std::exp2(-rows / (kRateHalfLife * static_cast<float>(n)));
    for (size_t e = first; e < first + n; ++e) {
      ages_[e] += ages_[e] < UINT8_MAX ? 1 : 0;
      rates_[e] *= kept;
    }
    for (const int32_t id : experts) {
      const auto e = static_cast<size_t>(id);
      ages_[first + e] = 0;
      const auto share = static_cast<float>(rows_of(id, offsets)) / rows;
      rates_[first + e] += (1 - kept) * share * static_cast<float>(n);
    }
  }
  // Before anything is counted: recent ones and popular ones are more likely.
  void start_counting() {
    for (int a = 0; a < kNumAges; ++a) {
      for (int r = 0; r < kNumRates; ++r) {
        const auto c = static_cast<size_t>(a * kNumRates + r);
        samples_[c] = kPriorWeight;
        hits_[c] = kPriorWeight * 0.5F / static_cast<float>(1 + a) * static_cast<float>(1 + r) / kNumRates;
      }
    }
    sort_classes();
  }
  void sort_classes() {
    std::array<float, kNumClasses> chance;
    for (size_t c = 0; c < kNumClasses; ++c) chance[c] = hits_[c] / samples_[c];
    std::iota(order_.begin(), order_.end(), uint8_t{0});
    std::sort(order_.begin(), order_.end(), [&](uint8_t a, uint8_t b) { return chance[a] != chance[b] ? chance[a] < chance[b] : a > b; });
  }
  void learn(std::span<const uint32_t> learned) {
    const auto n = static_cast<size_t>(args_.num_experts);
    for (size_t first = 0; first < learned.size(); first += n) {
      double sum = 0;
      for (size_t e = first; e < first + n; ++e) sum += learned[e];
      for (size_t e = first; sum > 0 && e < first + n; ++e) rates_[e] = static_cast<float>(learned[e] / sum * static_cast<double>(n));
    }
  }

  PolicyArgs args_;
  std::vector<float> rates_;       // by expert: rows that went to it lately, over the mean of its layer
  std::vector<uint8_t> ages_;      // by expert: passes of its layer since the last use
  std::vector<float> shares_;      // by layer: part of its experts that the last pass asked for; 0: none yet
  std::vector<uint8_t> class_of_;  // by slot: the list that it is in
  float usual_share_ = 0;
  int last_layer_ = -1;
  SlotLinks links_;
  std::array<SlotLinks::List, kNumClasses + 1> lists_;
  std::array<float, kNumClasses> hits_, samples_;
  std::array<uint8_t, kNumClasses> order_;  // classes, the least likely first
};

}  // namespace

std::unique_ptr<ResidencyPolicy> make_policy_reuse(const PolicyArgs& args) {
  return std::make_unique<ReusePolicy>(args);
}

}  // namespace pointsman
