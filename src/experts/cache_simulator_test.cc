// SPDX-License-Identifier: Apache-2.0
#include "experts/cache_simulator.h"

#include <gtest/gtest.h>

#include <bit>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include "experts/policy.h"

namespace pointsman {
namespace {

RoutingTrace one_layer(std::vector<int32_t> ids, int experts) {
  return {.num_layers = 1, .num_experts = experts, .top_k = 1, .ids = std::move(ids)};
}
CacheCounts simulate(const RoutingTrace& trace, std::string_view policy, int slots, int64_t prompt = 0, int64_t chunk = 512) {
  auto counts = simulate_cache(trace, {.policy = std::string(policy), .num_slots = slots, .prompt_tokens = prompt, .chunk = chunk});
  EXPECT_TRUE(counts.ok()) << counts.status().to_string();
  return counts.ok() ? *counts : CacheCounts{};
}

TEST(CacheSimulator, HandComputedCounts) {
  // The textbook string: 1 2 3 4 1 2 5 1 2 3 4 5 has 10 faults under LRU and 7 under MIN with three frames, 8 and 6 with four.
  const RoutingTrace textbook = one_layer({1, 2, 3, 4, 1, 2, 5, 1, 2, 3, 4, 5}, 6);
  EXPECT_EQ(simulate(textbook, "lru", 3).misses, 10u);
  EXPECT_EQ(simulate(textbook, "lru_per_layer", 3).misses, 10u);
  EXPECT_EQ(simulate(textbook, kOptimalPolicy, 3).misses, 7u);
  EXPECT_EQ(simulate(textbook, "lru", 4).misses, 8u);
  EXPECT_EQ(simulate(textbook, kOptimalPolicy, 4).misses, 6u);
  const CacheCounts c = simulate(textbook, "lru", 3);
  EXPECT_EQ(c.hits, 2u);
  EXPECT_EQ(c.evicted, 7u);
  EXPECT_EQ(c.layer_misses, (std::vector<uint64_t>{10}));
  // lfu, two slots: 0 is used three times, so 1, 2, 3 take turns in the other slot.
  EXPECT_EQ(simulate(one_layer({0, 0, 0, 1, 2, 3, 0, 1}, 4), "lfu", 2).misses, 5u);
  EXPECT_EQ(simulate(one_layer({0, 0, 0, 1, 2, 3, 0, 1}, 4), "lru", 2).misses, 6u);
}

TEST(CacheSimulator, LayersShareTheSlots) {
  // Two layers, one expert each per token: lru with three slots flushes what comes next, quotas of one keep it.
  const RoutingTrace t{.num_layers = 2, .num_experts = 4, .top_k = 1, .ids = {0, 0, 1, 0, 2, 0, 3, 0}};
  // 0/0 1/0, 0/1 1/0, 0/2 1/0, 0/3 1/0: layer 1 hits from its second token on, in all policies.
  for (const std::string_view policy : policy_names()) {
    const CacheCounts c = simulate(t, policy, 3);
    EXPECT_EQ(c.layer_hits, (std::vector<uint64_t>{0, 3})) << policy;
    EXPECT_EQ(c.layer_misses, (std::vector<uint64_t>{4, 1})) << policy;
  }
}

TEST(CacheSimulator, APassAsksForEachExpertOnce) {
  // Four tokens in one pass of one layer ask for {0, 1, 2}.
  const RoutingTrace t = one_layer({0, 1, 0, 2, 0, 2}, 4);
  EXPECT_EQ(simulate(t, "lru", 4, 4, 512).misses, 3u);
  EXPECT_EQ(simulate(t, "lru", 4, 4, 512).hits, 2u) << "the last two tokens";
  EXPECT_EQ(simulate(t, "lru", 4, 4, 2).hits, 1u + 2u) << "passes of two: {0, 1}, {0, 2}";
  // More experts than slots: released in order, and the pass ends.
  EXPECT_EQ(simulate(t, "lru", 2, 6).misses, 3u);
}

TEST(CacheSimulator, EverythingFits) {
  const RoutingTrace t = make_trace({.num_layers = 3, .num_experts = 16, .top_k = 4, .num_tokens = 200, .exponent = 1, .stay = 0.5, .seed = 4});
  std::set<std::pair<int, int>> met;
  for (int64_t token = 0; token < t.num_tokens(); ++token) {
    for (int layer = 0; layer < 3; ++layer) {
      for (const int32_t e : t.experts(token, layer)) met.insert({layer, e});
    }
  }
  for (const std::string_view policy : policy_names()) EXPECT_EQ(simulate(t, policy, 48).misses, met.size()) << policy;
  EXPECT_EQ(simulate(t, kOptimalPolicy, 48).misses, met.size());
}

// The fewest misses there can be, over all ways to choose who leaves: by states of the cache.
uint64_t fewest_misses(const RoutingTrace& t, int slots) {
  std::map<uint32_t, uint64_t> best = {{0, 0}};  // set of experts in the cache: misses so far
  for (int64_t token = 0; token < t.num_tokens(); ++token) {
    for (int layer = 0; layer < t.num_layers; ++layer) {
      uint32_t batch = 0;
      for (const int32_t e : t.experts(token, layer)) batch |= 1u << (layer * t.num_experts + e);
      std::map<uint32_t, uint64_t> after;
      for (const auto& [cache, misses] : best) {
        const uint32_t others = cache & ~batch;
        const auto cost = misses + static_cast<uint64_t>(std::popcount(batch & ~cache));
        for (uint32_t kept = others;; kept = (kept - 1) & others) {
          if (std::popcount(kept | batch) <= slots) {
            const auto [it, added] = after.try_emplace(kept | batch, cost);
            if (!added) it->second = std::min(it->second, cost);
          }
          if (kept == 0) break;
        }
      }
      best = std::move(after);
    }
  }
  uint64_t fewest = UINT64_MAX;
  for (const auto& [cache, misses] : best) fewest = std::min(fewest, misses);
  return fewest;
}

TEST(CacheSimulator, TheOptimumIsTheFewestMissesThereCanBe) {
  int better_than_lru = 0;
  for (uint32_t seed = 0; seed < 120; ++seed) {
    std::mt19937 random(seed);
    const int layers = 1 + static_cast<int>(random() % 3), experts = 3 + static_cast<int>(random() % 2);
    const int top_k = 1 + static_cast<int>(random() % 2);
    RoutingTrace t{.num_layers = layers, .num_experts = experts, .top_k = top_k};
    for (int row = 0; row < layers * 8; ++row) {
      std::vector<int32_t> all(static_cast<size_t>(experts));
      std::iota(all.begin(), all.end(), 0);
      std::shuffle(all.begin(), all.end(), random);
      t.ids.insert(t.ids.end(), all.begin(), all.begin() + top_k);
    }
    const int slots = std::max(2, top_k) + static_cast<int>(random() % static_cast<uint32_t>(layers * experts - 2));
    const uint64_t fewest = fewest_misses(t, slots);
    ASSERT_EQ(simulate(t, kOptimalPolicy, slots).misses, fewest) << "seed " << seed;
    for (const std::string_view policy : policy_names()) {
      const uint64_t misses = simulate(t, policy, slots).misses;
      ASSERT_GE(misses, fewest) << policy << " seed " << seed;
      better_than_lru += policy == "lru" && misses > fewest;
    }
  }
  EXPECT_GT(better_than_lru, 40) << "the test would not notice an optimum that is LRU";
}

TEST(CacheSimulator, TheOptimumBoundsThePoliciesOnLongTraces) {
  const RoutingTrace t = make_trace({.num_layers = 6, .num_experts = 32, .top_k = 4, .num_tokens = 300, .exponent = 0.8, .stay = 0.4, .seed = 1});
  for (const int slots : {24, 48, 96, 150}) {
    const uint64_t fewest = simulate(t, kOptimalPolicy, slots).misses;
    for (const std::string_view policy : policy_names()) EXPECT_GT(simulate(t, policy, slots).misses, fewest) << policy << " " << slots;
  }
}

TEST(CacheSimulator, SessionsStepTogetherAndShareTheirReads) {
  // Stretches {0, 1, 2} and {0, 3, 2}, a token left over: steps {0}, {1, 3}, {2}.
  const RoutingTrace t = one_layer({0, 1, 2, 0, 3, 2, 1}, 4);
  const auto counts = simulate_cache(t, {.policy = "lru", .num_slots = 4, .sessions = 2});
  ASSERT_TRUE(counts.ok()) << counts.status().to_string();
  EXPECT_EQ(counts->misses, 4u);
  EXPECT_EQ(counts->hits, 0u);
  EXPECT_EQ(counts->tokens, 6);
  EXPECT_EQ(counts->steps, 3);
  EXPECT_EQ(counts->uses, (std::vector<uint32_t>{2, 1, 2, 1})) << "rows, not batches";
  // Prompts of two go one after the other, {0, 1} and {0, 3}, then {2}.
  const auto prompts = simulate_cache(t, {.policy = "lru", .num_slots = 4, .prompt_tokens = 2, .sessions = 2});
  ASSERT_TRUE(prompts.ok());
  EXPECT_EQ(prompts->hits, 1u);
  EXPECT_EQ(prompts->steps, 3);
  EXPECT_EQ(simulate_cache(t, {.num_slots = 4, .sessions = 8}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(simulate_cache(t, {.num_slots = 4, .sessions = 0}).status().code(), StatusCode::kInvalidArgument);
}

// Steps of eight sessions that ask for two thirds of all experts, a quarter of which fit: per-layer LRU has evicted each before it comes again.
TEST(CacheSimulator, ReuseKeepsAPartOfStepsThatAskForMoreThanFits) {
  const RoutingTrace uniform = make_trace({.num_layers = 24, .num_experts = 64, .top_k = 8, .num_tokens = 800, .exponent = 0, .stay = 0, .seed = 3});
  const auto rate = [&](std::string_view policy) { return simulate_cache(uniform, {.policy = std::string(policy), .num_slots = 24 * 16, .sessions = 8}).value().hit_rate(); };
  EXPECT_LT(rate("lru_per_layer"), 0.06);
  // Without memory in the routes, nobody who does not know the future can have more than c/N; slots that reads are under way to hold nothing.
  EXPECT_GT(rate("reuse"), 0.8 * 16 / 64);
  EXPECT_LT(rate("reuse"), 1.05 * 16 / 64);
  EXPECT_GT(rate(kOptimalPolicy), 0.3);
  // A pass that asks for everything, again and again: what is kept is hit, all of it but for what reads need.
  RoutingTrace all{.num_layers = 4, .num_experts = 16, .top_k = 16};
  for (int row = 0; row < 40 * 4; ++row) {
    for (int e = 0; e < 16; ++e) all.ids.push_back(e);
  }
  EXPECT_EQ(simulate(all, "lru_per_layer", 24).hits, 0u);
  EXPECT_EQ(simulate(all, "lru", 24).hits, 0u);
  EXPECT_GT(simulate(all, "reuse", 24).hits, simulate(all, kOptimalPolicy, 24).hits / 2);
}

TEST(CacheSimulator, ReuseLearnsWhatTheRoutesAreLike) {
  const auto rate = [](const RoutingTrace& t, std::string_view policy, int64_t prompt) { return simulate(t, policy, 6 * 16, prompt).hit_rate(); };
  // Routes that stick: recency. Some experts more popular than others: frequency.
  const RoutingTrace sticky = make_trace({.num_layers = 6, .num_experts = 64, .top_k = 8, .num_tokens = 400, .exponent = 0, .stay = 0.6, .seed = 5});
  const RoutingTrace popular = make_trace({.num_layers = 6, .num_experts = 64, .top_k = 8, .num_tokens = 400, .exponent = 1, .stay = 0, .seed = 6});
  for (const int64_t prompt : {0, 100}) {
    EXPECT_GT(rate(sticky, "reuse", prompt), rate(sticky, "lru_per_layer", prompt) - 0.01) << prompt;
    EXPECT_GT(rate(sticky, "reuse", prompt), rate(sticky, "lfu", prompt) + 0.02) << prompt;
    EXPECT_GT(rate(popular, "reuse", prompt), rate(popular, "lfu", prompt) - 0.01) << prompt;
    EXPECT_GT(rate(popular, "reuse", prompt), rate(popular, "lru_per_layer", prompt) + 0.02) << prompt;
  }
}

// A prompt in one pass asks for nearly every expert; counted once each, it would leave lfru without a notion of what is popular.
TEST(CacheSimulator, CountsArePopularityAlsoAfterAPrompt) {
  const RoutingTrace t = make_trace({.num_layers = 6, .num_experts = 64, .top_k = 8, .num_tokens = 240, .exponent = 1, .stay = 0.2, .seed = 8});
  const auto decode_hits = [&](int64_t prompt) {
    // Of the last 40 tokens: what the whole run has, less what it has without them.
    RoutingTrace head = t;
    head.ids.resize(static_cast<size_t>(200 * t.num_layers * t.top_k));
    return static_cast<double>(simulate(t, "lfru", 6 * 16, prompt).hits - simulate(head, "lfru", 6 * 16, prompt).hits);
  };
  EXPECT_GT(decode_hits(200), 0.94 * decode_hits(0)) << "0.926 with one count for each pass";
}

TEST(CacheSimulator, RefusesWhatCannotBe) {
  const RoutingTrace t = one_layer({0, 1}, 4);
  EXPECT_EQ(simulate_cache(t, {.policy = "fifo", .num_slots = 2}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(simulate_cache(t, {.num_slots = 1}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(simulate_cache(t, {.num_slots = 2, .chunk = 0}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(simulate_cache(t, {.num_slots = 2, .learned_uses = {1}}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(simulate_cache(one_layer({0, 4}, 4), {.num_slots = 2}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(simulate_cache(one_layer({0, -1}, 4), {.num_slots = 2}).status().code(), StatusCode::kInvalidArgument);
  const RoutingTrace twice{.num_layers = 1, .num_experts = 4, .top_k = 2, .ids = {1, 1}};
  EXPECT_NE(simulate_cache(twice, {.num_slots = 2}).status().message().find("expert 1 is chosen twice"), std::string::npos);
}

TEST(ZipfMarkov, IsWhatItSaysAndRepeats) {
  const ZipfMarkov args{.num_layers = 2, .num_experts = 32, .top_k = 4, .num_tokens = 4000, .exponent = 1, .stay = 0.5, .seed = 7};
  const RoutingTrace t = make_trace(args);
  ASSERT_TRUE(t.check().ok());
  EXPECT_EQ(t.num_tokens(), 4000);
  EXPECT_EQ(make_trace(args).ids, t.ids);
  ZipfMarkov other = args;
  other.seed = 8;
  EXPECT_NE(make_trace(other).ids, t.ids);
  double stayed = 0;
  std::vector<int> uses(32);
  for (int64_t token = 0; token < 4000; ++token) {
    for (const int32_t e : t.experts(token, 1)) {
      ++uses[static_cast<size_t>(e)];
      if (token == 0) continue;
      const auto before = t.experts(token - 1, 1);
      stayed += std::find(before.begin(), before.end(), e) != before.end();
    }
  }
  // Half by staying, and some by being drawn again.
  EXPECT_GT(stayed / (3999 * 4), 0.5);
  EXPECT_LT(stayed / (3999 * 4), 0.75);
  std::sort(uses.begin(), uses.end(), std::greater<>());
  EXPECT_GT(uses[0], 4 * uses[31]);
  // Flat and without memory: as often as chance has it.
  const RoutingTrace flat = make_trace({.num_layers = 1, .num_experts = 16, .top_k = 4, .num_tokens = 4000, .exponent = 0, .stay = 0});
  std::vector<int> flat_uses(16);
  for (const int32_t e : flat.ids) ++flat_uses[static_cast<size_t>(e)];
  for (const int n : flat_uses) EXPECT_NEAR(n, 1000, 150);
  // All the weight on one expert still gives as many different ones as asked for.
  EXPECT_TRUE(make_trace({.num_layers = 1, .num_experts = 64, .top_k = 8, .num_tokens = 20, .exponent = 8, .stay = 0}).check().ok());
}

TEST(ZipfMarkov, IsParsed) {
  const auto z = parse_zipf_markov("zipf:experts=128,top-k=6,tokens=50,s=1.25,stay=0,seed=9,layers=3");
  ASSERT_TRUE(z.ok()) << z.status().to_string();
  EXPECT_EQ(z->num_experts, 128);
  EXPECT_EQ(z->top_k, 6);
  EXPECT_EQ(z->num_tokens, 50);
  EXPECT_EQ(z->exponent, 1.25);
  EXPECT_EQ(z->stay, 0);
  EXPECT_EQ(z->seed, 9u);
  EXPECT_EQ(z->num_layers, 3);
  EXPECT_TRUE(parse_zipf_markov("zipf").ok());
  EXPECT_TRUE(parse_zipf_markov("zipf:").ok());
  for (const char* bad : {"", "uniform", "zipf:s", "zipf:s=", "zipf:s=x", "zipf:s=-1", "zipf:s=nan", "zipf:layers=0", "zipf:top-k=65", "zipf:top-k=8,experts=4", "zipf:color=1",
                          "zipf:tokens=268435456", "zipf:stay=1.5", "zipf:seed=-1"}) {
    EXPECT_EQ(parse_zipf_markov(bad).status().code(), StatusCode::kInvalidArgument) << bad;
  }
}

}  // namespace
}  // namespace pointsman
