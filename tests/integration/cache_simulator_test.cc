// SPDX-License-Identifier: Apache-2.0
//
// The simulator counts what the engine counts: the bundled model generates, its routes are recorded, and their replay has the same hits,
// misses and evictions in every layer.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "experts/cache_simulator.h"
#include "experts/policy.h"
#include "pointsman/engine.h"
#include "pointsman/session.h"
#include "support/golden.h"

namespace pointsman {
namespace {

// Routes of a session as it runs.
struct Recorder final : TraceSink {
  bool wants(std::string_view name) override { return name.ends_with(".router.ids"); }
  Status rows_f32(std::string_view, int64_t, int64_t, int64_t, const float*) override { return ok_status(); }
  Status rows_i32(std::string_view, int64_t, int64_t rows, int64_t cols, const int32_t* data) override {
    // Layers come in their order; one pass brings the rows of one layer after those of the one before.
    layers.emplace_back(data, data + rows * cols);
    return ok_status();
  }
  // [rows, layers, top_k] of the pass that has just run.
  void end_pass(int64_t rows, RoutingTrace& trace) {
    trace.num_layers = static_cast<int>(layers.size());
    for (int64_t row = 0; row < rows; ++row) {
      for (const auto& l : layers) trace.ids.insert(trace.ids.end(), l.begin() + row * trace.top_k, l.begin() + (row + 1) * trace.top_k);
    }
    layers.clear();
  }
  std::vector<std::vector<int32_t>> layers;
};

TEST(CacheSimulator, CountsWhatTheEngineCounts) {
  EngineOptions options{.model_dir = testing::source_path("models/pointsman-tiny-moe"), .num_threads = 1, .context_length = 320, .load_tokenizer = false};
  const auto plan = Engine::plan(options);
  ASSERT_TRUE(plan.ok());
  // With room for everything, the routes are recorded: they are the same under every budget.
  options.memory_bytes = 2 * plan->full_residency_bytes;
  RoutingTrace trace{.num_experts = 16, .top_k = 4};
  std::vector<std::vector<int32_t>> passes = {{17, 933, 204, 1500, 77}};  // a prompt in one pass, then one token at a time
  {
    auto engine = Engine::load(options);
    ASSERT_TRUE(engine.ok()) << engine.status().to_string();
    auto session = (*engine)->new_session();
    ASSERT_TRUE(session.ok());
    Recorder recorder;
    while (passes.size() < 120) {
      const auto logits = (*session)->trace(passes.back(), recorder);
      ASSERT_TRUE(logits.ok()) << logits.status().to_string();
      recorder.end_pass(static_cast<int64_t>(passes.back().size()), trace);
      // Not greedy: that runs in circles soon.
      passes.push_back({static_cast<int32_t>((passes.back()[0] * 31 + std::max_element(logits->begin(), logits->end()) - logits->begin()) % 6000)});
    }
    passes.pop_back();  // not run
  }
  for (const int part : {2, 5}) {
    options.memory_bytes = plan->smallest_budget_bytes + (plan->full_residency_bytes - plan->smallest_budget_bytes) / static_cast<uint64_t>(part);
    for (const std::string_view policy : policy_names()) {
      options.policy = policy;
      auto engine = Engine::load(options);
      ASSERT_TRUE(engine.ok()) << engine.status().to_string();
      auto session = (*engine)->new_session();
      ASSERT_TRUE(session.ok());
      for (const std::vector<int32_t>& tokens : passes) ASSERT_TRUE((*session)->prefill(tokens).ok());
      const int64_t slots = (*engine)->memory_plan().num_slots;
      ASSERT_LT(slots, (*engine)->memory_plan().num_experts_total);
      const auto counts = simulate_cache(trace, {.policy = std::string(policy), .num_slots = static_cast<int>(slots), .prompt_tokens = 5});
      ASSERT_TRUE(counts.ok()) << counts.status().to_string();
      const EngineStats stats = (*engine)->stats();
      EXPECT_EQ(counts->hits, stats.experts.hits) << policy << " " << slots;
      EXPECT_EQ(counts->misses, stats.experts.misses) << policy << " " << slots;
      EXPECT_EQ(counts->evicted, stats.experts.evicted) << policy << " " << slots;
      EXPECT_GT(counts->evicted, 0u);
      for (size_t layer = 0; layer < stats.expert_layers.size(); ++layer) {
        EXPECT_EQ(counts->layer_hits[layer], stats.expert_layers[layer].hits) << policy << " layer " << layer;
        EXPECT_EQ(counts->layer_misses[layer], stats.expert_layers[layer].misses) << policy << " layer " << layer;
      }
    }
  }
}

// Four sessions that step together: the experts of a step are read once for all of them, and the replay of their stretches counts the same.
TEST(CacheSimulator, CountsWhatTheEngineCountsForSessionsThatStepTogether) {
  constexpr int kSessions = 4, kPrompt = 5, kSteps = 40;
  EngineOptions options{.model_dir = testing::source_path("models/pointsman-tiny-moe"), .num_threads = 1, .context_length = 64, .max_sessions = kSessions, .load_tokenizer = false};
  const auto plan = Engine::plan(options);
  ASSERT_TRUE(plan.ok());
  const auto token = [](int session, int at) { return static_cast<int32_t>((session * 7919 + at * at * 31 + at * 977 + 5) % 6000); };
  const auto prompt_of = [&](int session) {
    std::vector<int32_t> ids;
    for (int t = 0; t < kPrompt; ++t) ids.push_back(token(session, t));
    return ids;
  };
  options.memory_bytes = 2 * plan->full_residency_bytes;
  RoutingTrace trace{.num_experts = 16, .top_k = 4};
  {
    auto engine = Engine::load(options);
    ASSERT_TRUE(engine.ok()) << engine.status().to_string();
    for (int s = 0; s < kSessions; ++s) {
      auto session = (*engine)->new_session();
      ASSERT_TRUE(session.ok());
      Recorder recorder;
      ASSERT_TRUE((*session)->trace(prompt_of(s), recorder).ok());
      recorder.end_pass(kPrompt, trace);
      for (int t = kPrompt; t < kPrompt + kSteps; ++t) {
        const int32_t id[] = {token(s, t)};
        ASSERT_TRUE((*session)->trace(id, recorder).ok());
        recorder.end_pass(1, trace);
      }
    }
  }
  options.memory_bytes = plan->smallest_budget_bytes + (plan->full_residency_bytes - plan->smallest_budget_bytes) / 3;
  std::map<std::string, uint64_t> hits;
  for (const std::string_view policy : policy_names()) {
    options.policy = policy;
    auto engine = Engine::load(options);
    ASSERT_TRUE(engine.ok()) << engine.status().to_string();
    std::vector<std::unique_ptr<Session>> sessions;
    for (int s = 0; s < kSessions; ++s) {
      auto session = (*engine)->new_session();
      ASSERT_TRUE(session.ok());
      sessions.push_back(std::move(*session));
      ASSERT_TRUE(sessions.back()->prefill(prompt_of(s)).ok());
    }
    for (int t = kPrompt; t < kPrompt + kSteps; ++t) {
      std::vector<BatchStep> step;
      for (int s = 0; s < kSessions; ++s) step.push_back({sessions[static_cast<size_t>(s)].get(), token(s, t)});
      ASSERT_TRUE((*engine)->decode_batch(step).ok());
    }
    const int64_t slots = (*engine)->memory_plan().num_slots;
    ASSERT_LT(slots, (*engine)->memory_plan().num_experts_total / 2);
    const auto counts = simulate_cache(trace, {.policy = std::string(policy), .num_slots = static_cast<int>(slots), .prompt_tokens = kPrompt, .sessions = kSessions});
    ASSERT_TRUE(counts.ok()) << counts.status().to_string();
    const EngineStats stats = (*engine)->stats();
    EXPECT_EQ(counts->hits, stats.experts.hits) << policy << " " << slots;
    EXPECT_EQ(counts->misses, stats.experts.misses) << policy << " " << slots;
    EXPECT_EQ(counts->evicted, stats.experts.evicted) << policy << " " << slots;
    hits[std::string(policy)] = counts->hits;
  }
  EXPECT_GT(hits["reuse"], 2 * hits["lru_per_layer"]) << "a step asks for more than fits: LRU has evicted each expert before it comes again";
}

}  // namespace
}  // namespace pointsman
