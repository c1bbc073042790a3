// SPDX-License-Identifier: Apache-2.0
//
// Memory and speed settings never change the model: on the bundled model, greedy tokens and logits are compared bit for bit over
// budgets, thread counts, prefill splits, passes per prefill, policies, cold and warm caches; and with transformers' tokens.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "base/fs.h"
#include "base/hash.h"
#include "base/json.h"
#include "experts/policy.h"
#include "pointsman/engine.h"
#include "pointsman/session.h"
#include "support/golden.h"

namespace pointsman {
namespace {

constexpr int64_t kContext = 320;

struct Prompt {
  std::vector<int32_t> ids;
  std::vector<int32_t> greedy;        // transformers, fp32 eager
  std::vector<int32_t> greedy_bf16;   // transformers, bf16
};

std::vector<int32_t> ints(const Json* array) {
  std::vector<int32_t> v;
  for (const Json& x : array->as_array()) v.push_back(static_cast<int32_t>(x.as_int()));
  return v;
}

const std::vector<Prompt>& prompts() {
  static const std::vector<Prompt> all = [] {
    auto text = read_text_file(FileSystem::real(), testing::source_path("tests/golden/bundled/greedy.json"), 16 << 20);
    auto json = parse_json(text.value());
    std::vector<Prompt> list;
    for (const Json& p : json->find("prompts")->as_array()) {
      list.push_back({ints(p.find("ids")), ints(p.find("greedy_ids_fp32")), ints(p.find("greedy_ids_bf16"))});
    }
    return list;
  }();
  return all;
}

EngineOptions base_options(Numerics numerics) {
  return {.model_dir = testing::source_path("models/pointsman-tiny-moe"), .memory_bytes = 64 << 20, .num_threads = 1,
          .context_length = kContext, .numerics = numerics, .load_tokenizer = false};
}

// Greedy tokens, and a digest of the logits of every step.
struct Generation {
  std::vector<int32_t> tokens;
  Xxh3Digest logits;
  friend bool operator==(const Generation&, const Generation&) = default;
};

Generation greedy(Engine& engine, const std::vector<int32_t>& prompt, size_t n, size_t split) {
  Generation run;
  Xxh3 hash;
  auto session = engine.new_session();
  EXPECT_TRUE(session.ok()) << session.status().to_string();
  std::span<const float> row;
  std::span<const int32_t> rest = prompt;
  while (!rest.empty()) {
    const size_t part = split == 0 ? rest.size() : std::min(split, rest.size());
    auto logits = (*session)->prefill(rest.first(part));
    EXPECT_TRUE(logits.ok()) << logits.status().to_string();
    if (!logits.ok()) return run;
    row = *logits;
    rest = rest.subspan(part);
  }
  for (size_t i = 0; i < n; ++i) {
    hash.update(std::as_bytes(row));
    run.tokens.push_back(static_cast<int32_t>(std::max_element(row.begin(), row.end()) - row.begin()));
    if (i + 1 == n) break;
    auto logits = (*session)->decode(run.tokens.back());
    EXPECT_TRUE(logits.ok()) << logits.status().to_string();
    if (!logits.ok()) return run;
    row = *logits;
  }
  run.logits = hash.finish();
  return run;
}

std::unique_ptr<Engine> load(const EngineOptions& options) {
  auto engine = Engine::load(options);
  EXPECT_TRUE(engine.ok()) << engine.status().to_string();
  return engine.ok() ? std::move(*engine) : nullptr;
}

TEST(Bundled, TwoHundredGreedyTokensEqualTransformersInFp32) {
  auto engine = load(base_options(Numerics::kFp32));
  ASSERT_NE(engine, nullptr);
  ASSERT_GE(prompts().size(), 20u);
  for (size_t i = 0; i < prompts().size(); ++i) {
    const Generation run = greedy(*engine, prompts()[i].ids, prompts()[i].greedy.size(), 0);
    EXPECT_THAT(run.tokens, ::testing::ElementsAreArray(prompts()[i].greedy)) << "prompt " << i;
  }
}

TEST(Bundled, Bf16AgreesWithTransformersBf16MostOfTheTime) {
  auto engine = load(base_options(Numerics::kBf16));
  ASSERT_NE(engine, nullptr);
  // Teacher-forced on the reference's own tokens, so that one flip does not count for all that follow.
  size_t same = 0, total = 0;
  for (const Prompt& p : prompts()) {
    auto session = engine->new_session();
    ASSERT_TRUE(session.ok());
    auto logits = (*session)->prefill(p.ids);
    for (const int32_t expected : p.greedy_bf16) {
      ASSERT_TRUE(logits.ok()) << logits.status().to_string();
      same += std::max_element(logits->begin(), logits->end()) - logits->begin() == expected;
      ++total;
      logits = (*session)->decode(expected);
    }
  }
  RecordProperty("agreement", std::to_string(static_cast<double>(same) / static_cast<double>(total)));
  EXPECT_GE(static_cast<double>(same), 0.9 * static_cast<double>(total)) << same << " of " << total;
}

class Invariance : public ::testing::TestWithParam<Numerics> {};

TEST_P(Invariance, BudgetsThreadsAndCachesChangeNothing) {
  EngineOptions options = base_options(GetParam());
  auto plan = Engine::plan(options);
  ASSERT_TRUE(plan.ok()) << plan.status().to_string();
  const uint64_t smallest = plan->smallest_budget_bytes;
  const uint64_t all = plan->full_residency_bytes;

  std::vector<Generation> reference;
  for (const int threads : {1, 2}) {
    for (const double share : {0.0, 0.25, 0.5, 1.0}) {
      options.num_threads = threads;
      // One thread more needs its stack; the smallest budget is asked for anew.
      auto p = Engine::plan(options);
      options.memory_bytes = p->smallest_budget_bytes + static_cast<uint64_t>(share * static_cast<double>(all - smallest));
      auto engine = load(options);
      ASSERT_NE(engine, nullptr);
      for (size_t i = 0; i < prompts().size(); ++i) {
        const Generation run = greedy(*engine, prompts()[i].ids, 200, 0);
        if (threads == 1 && share == 0.0) reference.push_back(run);
        EXPECT_EQ(run, reference[i]) << "prompt " << i << " threads " << threads << " share " << share;
      }
      if (share == 0.0 && threads == 1) {
        EXPECT_GT(engine->stats().experts.evicted, 0u);
      }
      if (share == 1.0) {
        EXPECT_EQ(engine->stats().experts.evicted, 0u);
      }
      options.memory_bytes = 64 << 20;
    }
  }
}

TEST_P(Invariance, EmbeddingAndHeadOnDemandChangeNoBit) {
  EngineOptions options = base_options(GetParam());
  auto engine = load(options);
  ASSERT_NE(engine, nullptr);
  std::vector<Generation> expected;
  for (const Prompt& p : prompts()) expected.push_back(greedy(*engine, p.ids, 60, 0));
  options.placement = {{.pattern = "*", .placement = Placement::kOnDemand}};
  for (const int threads : {1, 2}) {
    options.num_threads = threads;
    options.memory_bytes = Engine::plan(options)->smallest_budget_bytes;
    auto on_demand = load(options);
    ASSERT_NE(on_demand, nullptr);
    for (size_t i = 0; i < prompts().size(); ++i) {
      EXPECT_EQ(greedy(*on_demand, prompts()[i].ids, 60, i % 2 == 0 ? 0 : 7), expected[i]) << "prompt " << i << " threads " << threads;
    }
    EXPECT_GT(on_demand->stats().dense_on_demand.verified_xxh3, 0u);
  }
}

TEST_P(Invariance, PrefillSplitsAndColdCachesChangeNoBit) {
  EngineOptions options = base_options(GetParam());
  options.num_threads = 2;
  auto engine = load(options);
  ASSERT_NE(engine, nullptr);
  options.prefill_chunk = 7;
  auto small_chunks = load(options);
  ASSERT_NE(small_chunks, nullptr);
  // One long prompt, so that 64 splits it too.
  std::vector<int32_t> ids;
  for (const Prompt& p : prompts()) ids.insert(ids.end(), p.ids.begin(), p.ids.end());
  ids.resize(std::min<size_t>(ids.size(), 200));
  const Generation whole = greedy(*engine, ids, 16, 0);
  for (const size_t split : {size_t{1}, size_t{7}, size_t{64}}) EXPECT_EQ(greedy(*engine, ids, 16, split), whole) << "split " << split;
  EXPECT_EQ(greedy(*small_chunks, ids, 16, 0), whole) << "passes of 7";
  engine->evict_experts();
  EXPECT_EQ(greedy(*engine, ids, 16, 0), whole) << "cold";
}

TEST_P(Invariance, RewindRepeatsTheContinuation) {
  auto engine = load(base_options(GetParam()));
  ASSERT_NE(engine, nullptr);
  auto session = engine->new_session();
  ASSERT_TRUE(session.ok());
  const std::vector<int32_t>& ids = prompts()[0].ids;
  std::vector<std::vector<float>> rows;
  for (const int32_t id : ids) {
    auto logits = (*session)->decode(id);
    ASSERT_TRUE(logits.ok());
    rows.emplace_back(logits->begin(), logits->end());
  }
  for (size_t i = 0; i < ids.size(); ++i) {
    ASSERT_TRUE((*session)->rewind(static_cast<int64_t>(i)).ok());
    auto logits = (*session)->prefill(std::span(ids).subspan(i));
    ASSERT_TRUE(logits.ok());
    EXPECT_EQ(std::memcmp(logits->data(), rows.back().data(), logits->size_bytes()), 0) << "rewound to " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Numerics, Invariance, ::testing::Values(Numerics::kFp32, Numerics::kBf16),
                         [](const auto& param_info) { return numerics_name(param_info.param); });

TEST(Policies, AllGiveTheSameTokens) {
  EngineOptions options = base_options(Numerics::kBf16);
  auto plan = Engine::plan(options);
  ASSERT_TRUE(plan.ok());
  options.memory_bytes = plan->smallest_budget_bytes + (plan->full_residency_bytes - plan->smallest_budget_bytes) / 3;
  Generation first;
  for (const std::string_view policy : policy_names()) {
    options.policy = policy;
    auto engine = load(options);
    ASSERT_NE(engine, nullptr);
    const Generation run = greedy(*engine, prompts()[1].ids, 40, 0);
    if (first.tokens.empty()) first = run;
    EXPECT_EQ(run, first) << policy;
  }
}

}  // namespace
}  // namespace pointsman
