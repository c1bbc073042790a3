// SPDX-License-Identifier: Apache-2.0
//
// Keys and values as fp32, bf16 or eight-bit codes: what each costs in memory and in distance on the bundled model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/fs.h"
#include "base/json.h"
#include "model/kv_cache.h"
#include "pointsman/engine.h"
#include "pointsman/session.h"
#include "support/golden.h"

namespace pointsman {
namespace {

EngineOptions with(KvCacheType type, Numerics numerics = Numerics::kBf16) {
  return {.model_dir = testing::source_path("models/pointsman-tiny-moe"), .memory_bytes = 64 << 20, .num_threads = 1, .context_length = 320,
          .numerics = numerics, .kv_cache = type, .load_tokenizer = false};
}

std::unique_ptr<Engine> load(const EngineOptions& options) {
  auto engine = Engine::load(options);
  EXPECT_TRUE(engine.ok()) << engine.status().to_string();
  return engine.ok() ? std::move(*engine) : nullptr;
}

// Prompt and greedy continuation of transformers: text that the model finds likely.
std::vector<std::vector<int32_t>> texts() {
  auto text = read_text_file(FileSystem::real(), testing::source_path("tests/golden/bundled/greedy.json"), 16 << 20);
  auto json = parse_json(text.value());
  std::vector<std::vector<int32_t>> all;
  for (const Json& p : json->find("prompts")->as_array()) {
    auto& ids = all.emplace_back();
    for (const char* key : {"ids", "greedy_ids_fp32"}) {
      for (const Json& id : p.find(key)->as_array()) ids.push_back(static_cast<int32_t>(id.as_int()));
    }
  }
  return all;
}

// Log-probabilities after every token of a text, the first `prefilled` in one call.
std::vector<std::vector<double>> log_probabilities(Engine& engine, std::span<const int32_t> ids, size_t prefilled) {
  std::vector<std::vector<double>> rows;
  auto session = engine.new_session();
  EXPECT_TRUE(session.ok()) << session.status().to_string();
  auto logits = (*session)->prefill(ids.first(prefilled));
  for (size_t i = prefilled;; ++i) {
    EXPECT_TRUE(logits.ok()) << logits.status().to_string();
    if (!logits.ok()) return rows;
    double largest = -INFINITY, sum = 0;
    for (const float z : *logits) largest = std::max<double>(largest, z);
    for (const float z : *logits) sum += std::exp(z - largest);
    auto& row = rows.emplace_back();
    for (const float z : *logits) row.push_back(z - largest - std::log(sum));
    if (i == ids.size()) return rows;
    logits = (*session)->decode(ids[i]);
  }
}

struct Distance {
  double mean = 0, largest = 0;
  size_t same_best = 0, rows = 0;
};
Distance distance(KvCacheType exact, KvCacheType type, Numerics numerics) {
  auto a = load(with(exact, numerics)), b = load(with(type, numerics));
  Distance d;
  if (a == nullptr || b == nullptr) return d;
  for (const auto& ids : texts()) {
    const auto p = log_probabilities(*a, ids, 16), q = log_probabilities(*b, ids, 16);
    EXPECT_EQ(p.size(), q.size());
    for (size_t i = 0; i < std::min(p.size(), q.size()); ++i) {
      double kl = 0;
      for (size_t t = 0; t < p[i].size(); ++t) kl += std::exp(p[i][t]) * (p[i][t] - q[i][t]);
      d.mean += kl;
      d.largest = std::max(d.largest, kl);
      d.same_best += std::max_element(p[i].begin(), p[i].end()) - p[i].begin() == std::max_element(q[i].begin(), q[i].end()) - q[i].begin() ? 1 : 0;
      ++d.rows;
    }
  }
  d.mean /= static_cast<double>(d.rows);
  return d;
}

TEST(KvCache, EightBitCodesAreNearBf16AndBf16IsNearFp32) {
  for (const auto& [exact, type, numerics, limit] :
       {std::tuple{KvCacheType::kBf16, KvCacheType::kInt8, Numerics::kBf16, 1e-3}, {KvCacheType::kFp32, KvCacheType::kBf16, Numerics::kFp32, 1e-3},
        {KvCacheType::kFp32, KvCacheType::kInt8, Numerics::kFp32, 1e-3}}) {
    const Distance d = distance(exact, type, numerics);
    std::printf("numerics %s: KL of %s from %s: mean %.3g, largest %.3g, same best token %zu of %zu\n", numerics_name(numerics), kv_cache_name(type),
                kv_cache_name(exact), d.mean, d.largest, d.same_best, d.rows);
    EXPECT_GT(d.rows, 3000u);
    EXPECT_GT(d.mean, 0) << "not the same cache";
    EXPECT_LT(d.mean, limit);
    EXPECT_GT(static_cast<double>(d.same_best), 0.98 * static_cast<double>(d.rows));
  }
}

TEST(KvCache, TheBudgetHasItsBytesToTheLast) {
  for (const auto& [type, bits] : {std::pair{KvCacheType::kFp32, 32}, {KvCacheType::kBf16, 16}, {KvCacheType::kInt8, 8}}) {
    auto engine = load(with(type));
    ASSERT_NE(engine, nullptr);
    const ModelConfig& c = engine->config();
    const auto per_head = static_cast<uint64_t>(c.head_dim * bits / 8 + (bits == 8 ? 4 : 0));
    const uint64_t per_token = static_cast<uint64_t>(2 * c.num_hidden_layers * c.num_key_value_heads) * per_head;
    EXPECT_EQ(KvCache::bytes(c, KvCache::dtype_for(Numerics::kBf16, type), 320), 320 * per_token);
    EXPECT_EQ(engine->memory_plan().kv_bytes_per_token, per_token);
  }
}

TEST(KvCache, SplitsOfAPromptChangeNoBitWithEightBitCodes) {
  auto engine = load(with(KvCacheType::kInt8));
  ASSERT_NE(engine, nullptr);
  const auto ids = texts()[0];
  const auto whole = log_probabilities(*engine, ids, ids.size()), steps = log_probabilities(*engine, ids, 1), half = log_probabilities(*engine, ids, ids.size() / 2);
  EXPECT_EQ(whole.back(), steps.back());
  EXPECT_EQ(whole.back(), half.back());
}

TEST(KvCache, LatentKeysAreRefusedAsCodes) {
  ModelConfig latent;
  latent.model_type = "deepseek_v3";
  latent.latent.kv_lora_rank = 512;
  EXPECT_EQ(KvCache::check(latent, Numerics::kBf16, KvCacheType::kInt8).code(), StatusCode::kUnsupported);
  EXPECT_TRUE(KvCache::check(latent, Numerics::kBf16, KvCacheType::kFp32).ok());
}

}  // namespace
}  // namespace pointsman
