// SPDX-License-Identifier: Apache-2.0
//
// Guesses about the next layer's experts: what is guessed, and that it never changes a bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "experts/policy.h"
#include "pointsman/engine.h"
#include "pointsman/session.h"
#include "support/golden.h"
#include "support/memory_model.h"

namespace pointsman {
namespace {

using testing::MemoryModel;

// Tokens by the argmax of every step, and all logits.
struct Steps {
  std::vector<int32_t> tokens;
  std::vector<float> logits;
  friend bool operator==(const Steps&, const Steps&) = default;
};
Steps run(Engine& engine, int n) {
  Steps steps;
  auto session = engine.new_session();
  EXPECT_TRUE(session.ok());
  auto row = (*session)->prefill(std::vector<int32_t>{17, 933, 204, 1500, 77, 12, 9, 4, 3001, 18, 700, 701, 702, 5, 6, 7, 8, 19});
  for (int i = 0; i < n; ++i) {
    EXPECT_TRUE(row.ok()) << row.status().to_string();
    if (!row.ok()) break;
    steps.logits.insert(steps.logits.end(), row->begin(), row->end());
    // Not the best one: that runs in circles soon.
    steps.tokens.push_back(static_cast<int32_t>((std::max_element(row->begin(), row->end()) - row->begin() + i * 37) % 6000));
    row = (*session)->decode(steps.tokens.back());
  }
  return steps;
}

TEST(Prediction, NeverChangesABit) {
  EngineOptions options{.model_dir = testing::source_path("models/pointsman-tiny-moe"), .num_threads = 2, .context_length = 320, .load_tokenizer = false};
  const auto plan = Engine::plan(options);
  ASSERT_TRUE(plan.ok());
  Steps expected;
  for (const uint64_t part : {6, 2}) {
    for (const std::string_view policy : policy_names()) {
      for (const PrefetchMode mode : {PrefetchMode::kOff, PrefetchMode::kLog, PrefetchMode::kPredict}) {
        options.memory_bytes = plan->smallest_budget_bytes + (plan->full_residency_bytes - plan->smallest_budget_bytes) / part;
        options.policy = policy;
        options.prefetch = mode;
        auto engine = Engine::load(options);
        ASSERT_TRUE(engine.ok()) << engine.status().to_string();
        const Steps steps = run(**engine, 100);
        if (expected.tokens.empty()) expected = steps;
        ASSERT_EQ(steps, expected) << policy << " " << prefetch_name(mode);
        const EngineStats s = (*engine)->stats();
        EXPECT_EQ(s.prediction.chosen, mode == PrefetchMode::kOff    ? 0u
                                       : mode == PrefetchMode::kLog  ? 100u * 5 * 4  // five layers have one before them
                                                                     : s.prediction.passes_acted * 5 * 4);
        EXPECT_EQ(s.experts.predicted_reads > 0, mode == PrefetchMode::kPredict);
        EXPECT_LE(s.experts.predicted_used + s.experts.predicted_dropped + s.experts.predicted_failed, s.experts.predicted_reads);
        if (mode == PrefetchMode::kPredict) {
          EXPECT_GE(s.prediction.passes_acted, 32u) << "every other block of the first trial";
          EXPECT_EQ(s.prediction.passes, 100u);
          EXPECT_EQ(s.prediction.trials, 1u);
          EXPECT_GT(s.experts.predicted_used, 0u);
        }
        if (mode == PrefetchMode::kLog) {
          EXPECT_GT(s.prediction.right * 2, s.prediction.chosen) << "a trained model: far beyond the quarter that chance gives";
        }
      }
    }
  }
}

TEST(Prediction, NothingIsGuessedWhenEverythingIsInMemory) {
  EngineOptions options{.model_dir = testing::source_path("models/pointsman-tiny-moe"), .memory_bytes = 64 << 20, .num_threads = 1, .context_length = 64,
                        .prefetch = PrefetchMode::kPredict, .load_tokenizer = false};
  auto engine = Engine::load(options);
  ASSERT_TRUE(engine.ok()) << engine.status().to_string();
  run(**engine, 20);
  EXPECT_EQ((*engine)->stats().prediction.chosen, 0u);
  EXPECT_EQ((*engine)->stats().prediction.passes_acted, 0u);
}

// Residual streams and routes of every layer.
struct Recorder final : TraceSink {
  bool wants(std::string_view name) override { return name.ends_with(".attention.residual") || name.ends_with(".router.ids"); }
  Status rows_f32(std::string_view name, int64_t, int64_t rows, int64_t cols, const float* data) override {
    auto& all = residual[std::string(name)];
    all.insert(all.end(), data, data + rows * cols);
    return ok_status();
  }
  Status rows_i32(std::string_view name, int64_t, int64_t rows, int64_t cols, const int32_t* data) override {
    auto& all = ids[std::string(name)];
    all.insert(all.end(), data, data + rows * cols);
    return ok_status();
  }
  std::map<std::string, std::vector<float>> residual;
  std::map<std::string, std::vector<int32_t>> ids;
};

// The guess written down again in float64: the next layer's norm and router on the stream after this layer's attention.
TEST(Prediction, GuessesAreTheNextRouterOnTheStreamBeforeTheExperts) {
  const std::string folder = testing::source_path("tests/golden/qwen3_moe_base");
  const testing::GoldenFile weights = testing::read_golden(folder + "/model.safetensors");
  MemoryModel model(folder);
  EngineOptions options = testing::memory_model_options();
  options.prefetch = PrefetchMode::kLog;
  auto engine = model.load(options);
  ASSERT_TRUE(engine.ok()) << engine.status().to_string();
  auto session = (*engine)->new_session();
  ASSERT_TRUE(session.ok());
  Recorder recorder;
  int64_t tokens = 0;
  for (const size_t n : {5, 1, 1, 16, 1, 8}) {
    std::vector<int32_t> ids;
    for (size_t i = 0; i < n; ++i) ids.push_back(static_cast<int32_t>((tokens * 53 + 11) % 256)), ++tokens;
    ASSERT_TRUE((*session)->trace(ids, recorder).ok());
  }
  constexpr size_t kHidden = 48, kExperts = 8, kTopK = 2;
  const PredictionStats stats = (*engine)->stats().prediction;
  ASSERT_EQ(stats.layers.size(), 3u);
  EXPECT_EQ(stats.layers[0], (std::pair<uint64_t, uint64_t>{0, 0})) << "nothing before the first layer";
  for (size_t layer = 1; layer < 3; ++layer) {
    const std::string name = "model.layers." + std::to_string(layer);
    const auto& norm = weights.at(name + ".post_attention_layernorm.weight").f32;
    const auto& router = weights.at(name + ".mlp.gate.weight").f32;
    const auto& h = recorder.residual.at("layers." + std::to_string(layer - 1) + ".attention.residual");
    const auto& chosen = recorder.ids.at("layers." + std::to_string(layer) + ".router.ids");
    uint64_t right = 0;
    for (size_t t = 0; t < static_cast<size_t>(tokens); ++t) {
      double squares = 0;
      for (size_t i = 0; i < kHidden; ++i) squares += double{h[t * kHidden + i]} * h[t * kHidden + i];
      const double scale = 1 / std::sqrt(squares / kHidden + 1e-6);
      std::vector<std::pair<double, size_t>> logits;
      for (size_t e = 0; e < kExperts; ++e) {
        double z = 0;
        for (size_t i = 0; i < kHidden; ++i) z += scale * h[t * kHidden + i] * norm[i] * router[e * kHidden + i];
        logits.emplace_back(-z, e);
      }
      std::sort(logits.begin(), logits.end());
      for (size_t k = 0; k < kTopK; ++k) {
        const auto id = static_cast<size_t>(chosen[t * kTopK + k]);
        right += std::any_of(logits.begin(), logits.begin() + kTopK, [&](const auto& l) { return l.second == id; });
      }
    }
    EXPECT_EQ(stats.layers[layer].first, static_cast<uint64_t>(tokens) * kTopK);
    EXPECT_EQ(stats.layers[layer].second, right) << "layer " << layer;
    EXPECT_GT(right, 0u);
    EXPECT_LT(right, static_cast<uint64_t>(tokens) * kTopK);
  }
}

}  // namespace
}  // namespace pointsman
