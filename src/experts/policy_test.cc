// SPDX-License-Identifier: Apache-2.0
//
// The policies that count, against their rules written down naively: who left is compared with who should have.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <random>
#include <set>

#include "experts/policy_parts.h"
#include "experts/residency.h"

namespace pointsman {
namespace {

using Key = std::pair<int, int>;  // layer, expert

// Residency with a diary of uses.
struct Diary {
  std::unique_ptr<Residency> r;
  int layers, experts;
  std::map<Key, std::vector<uint64_t>> uses;
  std::vector<Key> recent;  // newest last, those in slots only
  uint64_t clock = 0;

  Diary(int slots, int num_layers, int num_experts, std::string_view policy, std::span<const uint32_t> learned = {})
      : layers(num_layers), experts(num_experts) {
    auto made = Residency::make(slots, num_layers, num_experts, policy, {}, learned);
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    r = std::move(*made);
  }
  std::set<Key> inside() const {
    std::set<Key> keys;
    for (int s = 0; s < r->num_slots(); ++s) {
      if (r->slot(s).state != SlotState::kFree) keys.insert({r->slot(s).layer, r->slot(s).expert});
    }
    return keys;
  }
  std::set<Key> evictable() const {
    std::set<Key> keys;
    for (int s = 0; s < r->num_slots(); ++s) {
      if (r->slot(s).evictable()) keys.insert({r->slot(s).layer, r->slot(s).expert});
    }
    return keys;
  }
  // log2 of the sum of 2^((t - now) / half_life) over the uses at t.
  double rank(Key k) const {
    const double half_life = 4.0 * layers * experts;
    long double sum = 0;
    if (const auto it = uses.find(k); it != uses.end()) {
      for (const uint64_t t : it->second) sum += std::exp2l((static_cast<long double>(t) - static_cast<long double>(clock)) / half_life);
    }
    return static_cast<double>(std::log2(sum));
  }
  void to_front(Key k) {
    std::erase(recent, k);
    recent.push_back(k);
  }
  // Uses an expert; who left, if anybody.
  std::optional<Key> use(Key k, bool pin) {
    const std::set<Key> before = inside();
    int s = r->find(k.first, k.second);
    std::optional<Key> left;
    if (s < 0 && r->next_victim(k.first) == -1) return left;
    const int32_t ids[] = {k.second};
    r->begin(k.first, ids, {});
    if (s >= 0) {
      r->use(s);
    } else {
      s = r->reserve(k.first, k.second).slot;
      if (s < 0) return left;
      r->loaded(s);
      const std::set<Key> after = inside();
      for (const Key& b : before) {
        if (!after.contains(b)) left = b;
      }
    }
    ++clock;
    if (left) std::erase(recent, *left);
    uses[k].push_back(clock);
    to_front(k);
    if (!pin) r->unpin(s, 0);
    return left;
  }
};

TEST(Policies, LfuEvictsTheLeastUsed) {
  Diary d(3, 1, 8, "lfu");
  for (const int e : {0, 0, 0, 1, 2, 2}) d.use({0, e}, false);
  EXPECT_EQ(d.use({0, 3}, false), (Key{0, 1}));
  // 3 has one use, and 1 came back with two: it is 3 that leaves next.
  EXPECT_EQ(d.use({0, 1}, false), (Key{0, 3}));
  // Reading ahead is no use.
  const int s = d.r->reserve(0, 7, Residency::For::kReadAhead).slot;
  d.r->loaded(s);
  d.r->unpin(s, 0);
  const std::set<Key> before = d.inside();
  EXPECT_TRUE(before.contains({0, 7}));
  EXPECT_EQ(d.use({0, 6}, false), (Key{0, 7}));
}

TEST(Policies, CountsFade) {
  FadingCounts c(3, 10);
  for (uint64_t t = 0; t < 8; ++t) c.add(0, t);
  c.add(1, 100);
  EXPECT_GT(c.rank(1), c.rank(0)) << "8 uses nine half-lives ago are less than one now";
  c.add(0, 101);
  EXPECT_GT(c.rank(0), c.rank(1));
  // 2^0 + 2^(10/10) = 3, and three at once are as many.
  FadingCounts d(2, 10);
  d.add(0, 0);
  d.add(0, 10);
  d.add(1, 0, 3);
  EXPECT_NEAR(d.rank(0), std::log2(3.0), 1e-12);
  EXPECT_NEAR(d.rank(1), std::log2(3.0), 1e-12);
}

TEST(Policies, LfuAgreesWithItsRuleUnderRandomUse) {
  for (uint32_t seed = 0; seed < 40; ++seed) {
    std::mt19937 random(seed);
    const int layers = 1 + static_cast<int>(random() % 4), experts = 3 + static_cast<int>(random() % 9);
    const int slots = 2 + static_cast<int>(random() % static_cast<uint32_t>(layers * experts - 1));
    Diary d(slots, layers, experts, "lfu");
    int evictions = 0;
    for (int i = 0; i < 600; ++i) {
      // Small experts are used more.
      const Key k{static_cast<int>(random() % static_cast<uint32_t>(layers)),
                  static_cast<int>(std::min(random(), random()) % static_cast<uint32_t>(experts))};
      const std::set<Key> choice = d.evictable();
      const std::optional<Key> left = d.use(k, random() % 7 == 0);
      if (left) {
        ++evictions;
        for (const Key& c : choice) ASSERT_GE(d.rank(c), d.rank(*left) - 1e-9) << "seed " << seed << " step " << i;
      }
      if (random() % 5 == 0) {  // let go of what is pinned
        for (int s = 0; s < slots; ++s) {
          while (d.r->slot(s).num_pins > 0) d.r->unpin(s, 0);
        }
      }
      if (random() % 97 == 0) {
        d.r->evict_unpinned();
        const std::set<Key> in = d.inside();
        std::erase_if(d.recent, [&](const Key& key) { return !in.contains(key); });
      }
    }
    if (slots < layers * experts - 1) {
      EXPECT_GT(evictions, 0) << seed;
    }
  }
}

// Batches of several experts with several rows each: the ranks are those of rows, and a heap whose keys change together stays a heap.
TEST(Policies, LfuCountsTheRowsOfBatches) {
  int evictions = 0;
  for (uint32_t seed = 0; seed < 60; ++seed) {
    std::mt19937 random(seed);
    const int experts = 8 + static_cast<int>(random() % 24), slots = 4 + static_cast<int>(random() % static_cast<uint32_t>(experts - 6));
    auto made = Residency::make(slots, 1, experts, "lfu");
    ASSERT_TRUE(made.ok());
    Residency& r = **made;
    const double half_life = 4.0 * experts;
    std::vector<long double> counts(static_cast<size_t>(experts));  // faded to now
    for (int step = 0; step < 200; ++step) {
      std::vector<int32_t> ids, offsets = {0};
      for (int e = 0; e < experts; ++e) {
        const bool asked = static_cast<int>(random() % 8) > e * 8 / experts && ids.size() + 1 < static_cast<size_t>(slots);
        if (asked) ids.push_back(e);
        offsets.push_back(offsets.back() + (asked ? 1 + static_cast<int32_t>(random() % 5) : 0));
      }
      if (ids.empty()) continue;
      r.begin(0, ids, offsets);
      // Rows come one after the other: the mean of what is left of them at the end.
      const double left = (1 - std::exp2(-offsets.back() / half_life)) / (std::log(2.0) * offsets.back() / half_life);
      for (int e = 0; e < experts; ++e) {
        counts[static_cast<size_t>(e)] *= std::exp2l(-offsets.back() / half_life);
        counts[static_cast<size_t>(e)] += left * (offsets[static_cast<size_t>(e) + 1] - offsets[static_cast<size_t>(e)]);
      }
      std::vector<int> pinned;
      for (const int32_t id : ids) {
        if (const int s = r.find(0, id); s >= 0) r.use(s), pinned.push_back(s);
      }
      for (const int32_t id : ids) {
        if (r.find(0, id) >= 0) continue;
        long double least = INFINITY;
        for (int s = 0; s < slots; ++s) {
          if (r.slot(s).evictable()) least = std::min(least, counts[static_cast<size_t>(r.slot(s).expert)]);
        }
        if (const int victim = r.next_victim(0); victim >= 0) {
          ++evictions;
          ASSERT_LE(counts[static_cast<size_t>(r.slot(victim).expert)], least * (1 + 1e-9L)) << "seed " << seed << " step " << step;
        }
        const int s = r.reserve(0, id).slot;
        r.loaded(s);
        pinned.push_back(s);
      }
      for (const int s : pinned) r.unpin(s, 0);
    }
  }
  EXPECT_GT(evictions, 10000);
}

// The safe ones by the rule: as many of the last used as the last pass over the layers used.
struct Safe {
  int slots, last_layer = -1, uses = 0, most;
  std::vector<Key> keys;  // newest last

  explicit Safe(int num_slots) : slots(num_slots), most(num_slots / 2) {}
  void use(Key k, bool is_new) {
    if (is_new) push(k);  // it comes in before the pass is counted
    if (k.first < last_layer) {
      most = uses <= slots ? uses : 0;
      uses = 0;
    }
    last_layer = k.first;
    ++uses;
    push(k);
  }
  void push(Key k) {
    std::erase(keys, k);
    keys.push_back(k);
    while (static_cast<int>(keys.size()) > most) keys.erase(keys.begin());
  }
};

TEST(Policies, LfruProtectsTheLastPassAndEvictsTheLeastUsedOfTheRest) {
  for (uint32_t seed = 0; seed < 60; ++seed) {
    std::mt19937 random(seed);
    const int layers = 1 + static_cast<int>(random() % 4), experts = 4 + static_cast<int>(random() % 9);
    const int slots = 4 + static_cast<int>(random() % static_cast<uint32_t>(layers * experts - 3));
    Diary d(slots, layers, experts, "lfru");
    Safe safe(slots);
    for (int pass = 0; pass < 150; ++pass) {
      const int top_k = 1 + static_cast<int>(random() % 3);
      for (int i = 0; i < layers * top_k; ++i) {
        const Key k{i / top_k, static_cast<int>(std::min(random(), random()) % static_cast<uint32_t>(experts))};
        const std::set<Key> before = d.inside();
        const std::optional<Key> left = d.use(k, false);
        if (left) {
          const std::set<Key> protected_ones(safe.keys.begin(), safe.keys.end());
          const bool has_others = std::any_of(before.begin(), before.end(), [&](const Key& c) { return !protected_ones.contains(c); });
          if (has_others) {
            ASSERT_FALSE(protected_ones.contains(*left)) << "a safe one left: seed " << seed << " pass " << pass;
            for (const Key& c : before) {
              if (!protected_ones.contains(c)) {
                ASSERT_GE(d.rank(c), d.rank(*left) - 1e-9) << "seed " << seed << " pass " << pass;
              }
            }
          } else {
            ASSERT_EQ(*left, safe.keys.front()) << "seed " << seed << " pass " << pass;
          }
          std::erase(safe.keys, *left);
        }
        safe.use(k, !before.contains(k));
      }
    }
  }
}

TEST(Policies, StartFromWhatEarlierRunsLearned) {
  std::vector<uint32_t> learned(16, 1);
  learned[1] = learned[4] = 900;
  for (const std::string_view name : policy_names()) {
    if (!policy_learns(name)) continue;
    Diary d(8, 1, 16, name, learned);
    // One use each, then newcomers: the popular ones stay, though they are the oldest.
    for (const int e : {1, 4, 2, 3, 5, 6, 7, 8, 9, 10}) d.use({0, e}, false);
    EXPECT_GE(d.r->find(0, 1), 0) << name;
    EXPECT_GE(d.r->find(0, 4), 0) << name;
    std::swap(learned[1], learned[2]);
    std::swap(learned[4], learned[3]);
    Diary other(8, 1, 16, name, learned);
    for (const int e : {1, 4, 2, 3, 5, 6, 7, 8, 9, 10}) other.use({0, e}, false);
    EXPECT_GE(other.r->find(0, 2), 0) << name;
    EXPECT_GE(other.r->find(0, 3), 0) << name;
    std::swap(learned[1], learned[2]);
    std::swap(learned[4], learned[3]);
  }
}

TEST(Policies, UsesAreTheRowsOfEveryPolicy) {
  const std::vector<uint32_t> learned(8, 3);
  for (const std::string_view name : policy_names()) {
    Diary d(4, 1, 8, name, policy_learns(name) ? std::span<const uint32_t>(learned) : std::span<const uint32_t>());
    const std::vector<int32_t> ids = {2, 5}, offsets = {0, 0, 0, 7, 7, 7, 8, 8, 8};
    d.r->begin(0, ids, {});
    d.r->begin(0, ids, offsets);
    EXPECT_EQ(std::vector<uint32_t>(d.r->uses().begin(), d.r->uses().end()), (std::vector<uint32_t>{0, 0, 8, 0, 0, 2, 0, 0})) << name << ": this run's, not those of the past";
  }
  EXPECT_TRUE(policy_learns("lfru"));
  EXPECT_FALSE(policy_learns("lru"));
  EXPECT_FALSE(policy_learns("clock"));
}

}  // namespace
}  // namespace pointsman
