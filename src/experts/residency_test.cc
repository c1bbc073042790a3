// SPDX-License-Identifier: Apache-2.0
#include "experts/residency.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

namespace pointsman {
namespace {

std::unique_ptr<Residency> make(int slots, int layers, int experts, std::string_view policy, std::vector<bool> keep = {}) {
  auto r = Residency::make(slots, layers, experts, policy, keep);
  EXPECT_TRUE(r.ok()) << r.status().to_string();
  return std::move(r).value();
}
// Brings an expert in and lets go of it.
int visit(Residency& r, int layer, int expert) {
  int s = r.find(layer, expert);
  if (s >= 0) {
    r.use(s);
  } else {
    s = r.reserve(layer, expert).slot;
    if (s < 0) return s;
    r.loaded(s);
  }
  r.unpin(s, 0);
  return s;
}

TEST(Residency, UnknownPolicyListsTheNames) {
  const auto r = Residency::make(4, 1, 8, "clock");
  ASSERT_FALSE(r.ok());
  EXPECT_EQ(r.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(r.status().message().find("lru, lru_per_layer"), std::string::npos) << r.status().message();
  EXPECT_TRUE(std::is_sorted(policy_names().begin(), policy_names().end()));
}

// A policy that counts what it is told.
struct Told final : ResidencyPolicy {
  explicit Told(int& c) : calls(c) {}
  void asked(int, std::span<const int32_t>, std::span<const int32_t>) override { ++calls; }
  void inserted(int) override { ++calls; }
  void used(int) override { ++calls; }
  void touched(int) override { ++calls; }
  void removed(int) override { ++calls; }
  int victim(int) const override { return -1; }
  uint64_t table_bytes() const override { return 0; }
  int& calls;
};

TEST(Residency, APolicyHearsNothingWhereEveryExpertHasASlot) {
  for (const bool fits : {true, false}) {
    int calls = 0;
    auto made = Residency::make_with(fits ? 8 : 7, 2, 4, [&](const PolicyArgs&) -> Result<std::unique_ptr<ResidencyPolicy>> { return std::unique_ptr<ResidencyPolicy>(new Told(calls)); });
    ASSERT_TRUE(made.ok());
    Residency& r = **made;
    const int32_t ids[] = {1, 2};
    for (int layer = 0; layer < 2; ++layer) {
      r.begin(layer, ids, {});
      for (const int e : ids) visit(r, layer, e);
      for (const int e : ids) visit(r, layer, e);
    }
    r.touch(r.find(0, 1));
    EXPECT_EQ(calls > 0, !fits);
    EXPECT_EQ(r.uses()[1], 1u) << "counted all the same: later runs learn from it";
    r.evict_unpinned();
    EXPECT_EQ(r.find(0, 1), -1);
    EXPECT_EQ(calls > 0, !fits);
  }
}

TEST(Residency, LruEvictsTheOldestOfAllLayers) {
  auto r = make(3, 2, 8, "lru");
  visit(*r, 0, 0);
  visit(*r, 1, 0);
  visit(*r, 0, 1);
  visit(*r, 0, 0);  // now 1/0 is the oldest
  const auto reservation = r->reserve(0, 5);
  EXPECT_EQ(reservation.evicted_layer, 1);
  EXPECT_EQ(r->find(1, 0), -1);
  EXPECT_GE(r->find(0, 0), 0);
}

TEST(Residency, LruPerLayerKeepsALongPassFromFlushingOtherLayers) {
  auto r = make(8, 4, 16, "lru_per_layer");  // quota 2
  for (int layer = 0; layer < 4; ++layer) {
    for (int e = 0; e < 2; ++e) visit(*r, layer, e);
  }
  for (int e = 2; e < 10; ++e) visit(*r, 3, e);
  for (int layer = 0; layer < 3; ++layer) {
    EXPECT_GE(r->find(layer, 0), 0) << layer;
    EXPECT_GE(r->find(layer, 1), 0) << layer;
  }
  EXPECT_GE(r->find(3, 9), 0);
  EXPECT_GE(r->find(3, 8), 0);
}

TEST(Residency, ALayerBelowItsQuotaTakesFromALayerAboveIt) {
  auto r = make(8, 4, 16, "lru_per_layer");
  for (int e = 0; e < 6; ++e) visit(*r, 0, e);
  for (int e = 0; e < 2; ++e) visit(*r, 1, e);
  EXPECT_EQ(r->reserve(2, 0).evicted_layer, 0);
  EXPECT_EQ(r->find(0, 0), -1);  // its oldest
}

TEST(Residency, FewerSlotsThanLayersStillWork) {
  auto r = make(2, 5, 4, "lru_per_layer");
  for (int i = 0; i < 100; ++i) EXPECT_GE(visit(*r, i % 5, i % 4), 0);
}

TEST(Residency, PinnedAndLoadingSlotsAreNeverTaken) {
  for (const std::string_view policy : policy_names()) {
    auto r = make(2, 1, 4, policy);
    const int pinned = r->reserve(0, 0).slot;
    r->loaded(pinned);
    const int loading = r->reserve(0, 1).slot;
    EXPECT_EQ(r->reserve(0, 2).slot, -1) << policy;
    r->loaded(loading);
    EXPECT_EQ(r->reserve(0, 2).slot, -1) << policy;
    r->unpin(loading, 7);
    EXPECT_EQ(r->reserve(0, 2).slot, loading) << policy;
    EXPECT_EQ(r->slot(loading).ticket, 7u) << "the ticket belongs to the bytes";
    r->evict_unpinned();
    EXPECT_GE(r->find(0, 0), 0);
    EXPECT_EQ(r->num_pinned(), 2);
  }
}

TEST(Residency, AnAbandonedSlotIsFree) {
  auto r = make(2, 1, 4, "lru");
  r->abandon(r->reserve(0, 0).slot);
  EXPECT_EQ(r->find(0, 0), -1);
  EXPECT_EQ(r->num_pinned(), 0);
  EXPECT_GE(r->reserve(0, 0).slot, 0);
}

TEST(Residency, KeptLayersStayAndAreOutOfTheQuota) {
  for (const std::string_view policy : policy_names()) {
    auto r = make(4 + 2, 3, 4, policy, {false, true, false});
    for (int e = 0; e < 4; ++e) visit(*r, 1, e);
    for (int i = 0; i < 20; ++i) visit(*r, i % 2 * 2, i % 4);
    r->evict_unpinned();
    for (int e = 0; e < 4; ++e) EXPECT_GE(r->find(1, e), 0) << policy;
  }
  EXPECT_EQ(Residency::make(5, 3, 4, "lru", {false, true, false}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(Residency::make(12, 3, 4, "lru", {true, true, true}).ok());
}

// The rules of the header written down again, naively.
struct Model {
  struct Entry {
    int layer, expert, pins;
    bool loading;
    uint64_t last_use;
  };
  int slots, layers;
  bool per_layer;
  std::vector<Entry> entries;
  uint64_t clock = 0;

  Entry* find(int layer, int expert) {
    for (Entry& e : entries) {
      if (e.layer == layer && e.expert == expert) return &e;
    }
    return nullptr;
  }
  int held(int layer) const {
    return static_cast<int>(std::count_if(entries.begin(), entries.end(), [&](const Entry& e) { return e.layer == layer; }));
  }
  template <class Pred>
  int oldest(Pred pred) const {
    int best = -1;
    for (size_t i = 0; i < entries.size(); ++i) {
      const Entry& e = entries[i];
      if (e.pins > 0 || e.loading || !pred(e)) continue;
      if (best < 0 || e.last_use < entries[static_cast<size_t>(best)].last_use) best = static_cast<int>(i);
    }
    return best;
  }
  bool reserve(int layer, int expert) {
    if (static_cast<int>(entries.size()) == slots) {
      int v = -1;
      if (per_layer) {
        const int quota = slots / layers;
        if (held(layer) >= std::max(1, quota)) v = oldest([&](const Entry& e) { return e.layer == layer; });
        if (v < 0) v = oldest([&](const Entry& e) { return held(e.layer) > quota; });
      }
      if (v < 0) v = oldest([](const Entry&) { return true; });
      if (v < 0) return false;
      entries.erase(entries.begin() + v);
    }
    entries.push_back({layer, expert, 1, true, ++clock});
    return true;
  }
};

TEST(Residency, AgreesWithASimpleModelUnderRandomUse) {
  for (const bool per_layer : {false, true}) {
    for (uint32_t seed = 0; seed < 60; ++seed) {
      std::mt19937 rng(seed);
      const int layers = 1 + static_cast<int>(rng() % 5), experts = 2 + static_cast<int>(rng() % 9);
      const int slots = 2 + static_cast<int>(rng() % static_cast<uint32_t>(layers * experts));
      auto r = make(slots, layers, experts, per_layer ? "lru_per_layer" : "lru");
      Model m{slots, layers, per_layer, {}};
      for (int step = 0; step < 800; ++step) {
        const int layer = static_cast<int>(rng() % static_cast<uint32_t>(layers));
        const int expert = static_cast<int>(rng() % static_cast<uint32_t>(experts));
        Model::Entry* e = m.find(layer, expert);
        const int s = r->find(layer, expert);
        ASSERT_EQ(e != nullptr, s >= 0) << "seed " << seed << " step " << step;
        if (e == nullptr) {
          const auto got = r->reserve(layer, expert);
          ASSERT_EQ(m.reserve(layer, expert), got.slot >= 0);
        } else if (e->loading) {
          if (rng() % 4 == 0) {
            r->abandon(s);
            m.entries.erase(m.entries.begin() + (e - m.entries.data()));
          } else {
            r->loaded(s);
            e->loading = false;
          }
        } else if (e->pins > 0 && rng() % 2 == 0) {
          r->unpin(s, 0);
          --e->pins;
        } else {
          r->use(s);
          ++e->pins;
          e->last_use = ++m.clock;
        }
        // The same experts are in after every step.
        for (int l = 0; l < layers; ++l) {
          for (int x = 0; x < experts; ++x)
            ASSERT_EQ(m.find(l, x) != nullptr, r->find(l, x) >= 0) << "seed " << seed << " step " << step;
        }
      }
    }
  }
}

}  // namespace
}  // namespace pointsman
