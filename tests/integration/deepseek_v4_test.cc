// SPDX-License-Identifier: Apache-2.0
//
// State of DeepSeek-V4's attention: however a prompt is cut, and however often a session steps back, every logit is the same bit for
// bit. Boundaries that broke other engines: 3, 4, 5, 127, 128, 129, 131, 132 tokens (ratio 4 and 128, the window).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "engine/engine_impl.h"
#include "support/faulty_fs.h"
#include "support/golden.h"
#include "support/recorder.h"

namespace pointsman {
namespace {

using testing::FaultyFs;
using testing::Recorder;

struct Model {
  const char* folder;
  Numerics numerics;
};

EngineOptions options_of(const Model& m) {
  return {.model_dir = testing::source_path(std::string("tests/golden/") + m.folder), .memory_bytes = 64 << 20, .num_threads = 2,
          .context_length = 320, .numerics = m.numerics, .num_readers = 2, .load_tokenizer = false};
}

std::vector<int32_t> prompt_of(const Model& m, size_t n) {
  std::mt19937 random(5);
  const auto golden = testing::read_golden(options_of(m).model_dir + "/expected.safetensors");
  std::vector<int32_t> tokens = golden.at("tokens").i32;
  const int64_t vocab = golden.at("logits").cols();
  while (tokens.size() < n) tokens.push_back(static_cast<int32_t>(random() % static_cast<uint64_t>(vocab)));
  tokens.resize(n);
  return tokens;
}

std::unique_ptr<Engine> load(const EngineOptions& options) {
  auto engine = Engine::load(options);
  EXPECT_TRUE(engine.ok()) << engine.status().to_string();
  return engine.ok() ? std::move(*engine) : nullptr;
}

// Logits of every position, token by token from an empty session: [tokens][vocab].
std::vector<std::vector<float>> token_by_token(Engine& engine, const std::vector<int32_t>& tokens) {
  std::vector<std::vector<float>> rows;
  auto session = engine.new_session();
  EXPECT_TRUE(session.ok()) << session.status().to_string();
  for (const int32_t t : tokens) {
    auto row = (*session)->decode(t);
    EXPECT_TRUE(row.ok()) << row.status().to_string();
    rows.emplace_back(row->begin(), row->end());
  }
  return rows;
}

bool same_bits(std::span<const float> a, const std::vector<float>& b) { return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0; }

class DeepseekV4 : public ::testing::TestWithParam<Model> {};

TEST_P(DeepseekV4, AnySplitOfAPromptGivesTheSameBits) {
  const std::vector<int32_t> tokens = prompt_of(GetParam(), 300);
  EngineOptions options = options_of(GetParam());
  auto engine = load(options);
  ASSERT_NE(engine, nullptr);
  const auto expected = token_by_token(*engine, tokens);

  for (const size_t split : {0u, 1u, 3u, 4u, 5u, 7u, 8u, 9u, 127u, 128u, 129u, 131u, 132u}) {
    auto session = engine->new_session();
    ASSERT_TRUE(session.ok());
    Recorder recorder;
    if (split > 0) {
      ASSERT_TRUE((*session)->trace(std::span(tokens).first(split), recorder).ok());
    }
    ASSERT_TRUE((*session)->trace(std::span(tokens).subspan(split), recorder).ok());
    const std::vector<float>& logits = recorder.f32["logits"];
    ASSERT_EQ(logits.size(), tokens.size() * expected[0].size());
    for (size_t t = 0; t < tokens.size(); ++t) {
      ASSERT_TRUE(same_bits(std::span(logits).subspan(t * expected[t].size(), expected[t].size()), expected[t])) << "split " << split << " token " << t;
    }
  }
  // Passes of every small size, so that entries close at every place of a pass.
  for (const int64_t chunk : {2, 3, 5, 7, 16, 100}) {
    options.prefill_chunk = chunk;
    auto chunked = load(options);
    ASSERT_NE(chunked, nullptr);
    auto session = chunked->new_session();
    auto logits = (*session)->prefill(tokens);
    ASSERT_TRUE(logits.ok());
    EXPECT_TRUE(same_bits(*logits, expected.back())) << "passes of " << chunk;
  }
}

TEST_P(DeepseekV4, ASessionStepsBackToEveryToken) {
  const std::vector<int32_t> tokens = prompt_of(GetParam(), 300);
  auto engine = load(options_of(GetParam()));
  ASSERT_NE(engine, nullptr);
  const auto expected = token_by_token(*engine, tokens);
  const auto go_on = [&](Session& session, size_t n) {
    const size_t at = static_cast<size_t>(session.position());
    for (size_t t = at; t < std::min(at + n, tokens.size()); ++t) {
      auto row = session.decode(tokens[t]);
      ASSERT_TRUE(row.ok()) << row.status().to_string();
      ASSERT_TRUE(same_bits(*row, expected[t])) << "token " << t << " after stepping back to " << at;
    }
  };
  // From the full length to every position; of the other models, to some.
  const bool every = std::string(GetParam().folder) == "deepseek_v4_native" && GetParam().numerics == Numerics::kFp32;
  for (int64_t position = 0; position <= 300; position += every ? 1 : 11) {
    auto session = engine->new_session();
    ASSERT_TRUE(session.ok());
    // In parts, so that there are snapshots at places that no ratio divides.
    for (size_t at = 0; at < tokens.size(); at += 37) {
      ASSERT_TRUE((*session)->prefill(std::span(tokens).subspan(at, std::min<size_t>(37, tokens.size() - at))).ok());
    }
    ASSERT_TRUE((*session)->rewind(position).ok());
    ASSERT_EQ((*session)->position(), position);
    go_on(**session, 6);
    if (HasFatalFailure()) return;
  }
  // One session that wanders, and meets other tokens on the way.
  auto session = engine->new_session();
  std::mt19937 random(3);
  ASSERT_TRUE((*session)->prefill(tokens).ok());
  for (int step = 0; step < 60; ++step) {
    const int64_t position = static_cast<int64_t>(random() % static_cast<uint64_t>((*session)->position() + 1));
    ASSERT_TRUE((*session)->rewind(position).ok());
    if (step % 3 == 0) {
      std::vector<int32_t> others(tokens.begin() + position, tokens.end());
      std::reverse(others.begin(), others.end());
      if (!others.empty()) {
        ASSERT_TRUE((*session)->prefill(others).ok());
      }
      ASSERT_TRUE((*session)->rewind(position).ok());
    }
    go_on(**session, 1 + random() % 200);
    if (HasFatalFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(State, DeepseekV4,
                         ::testing::Values(Model{"deepseek_v4_native", Numerics::kFp32}, Model{"deepseek_v4_native", Numerics::kBf16},
                                           Model{"deepseek_v4_odd", Numerics::kFp32}, Model{"deepseek_v4_bf16", Numerics::kBf16},
                                           Model{"deepseek_v4_fp4", Numerics::kBf16}, Model{"deepseek_v4_fp4", Numerics::kVendor}),
                         [](const auto& param_info) {
                           return std::string(param_info.param.folder) + "_" + numerics_name(param_info.param.numerics) + "_numerics";
                         });

// The vendor's numerics on a model stored as published: other numbers than bf16, but the same model. On a model without coded weights only keys,
// entries and the indexer are quantised.
TEST(DeepseekV4Vendor, IsCloseToFp32AndNotTheSame) {
  for (const char* folder : {"deepseek_v4_fp4", "deepseek_v4_bf16"}) {
    const Model vendor{folder, Numerics::kVendor}, plain{folder, Numerics::kBf16}, exact{folder, Numerics::kFp32};
    const std::vector<int32_t> tokens = prompt_of(vendor, 140);
    const auto logits = [&](const Model& m) {
      auto engine = load(options_of(m));
      EXPECT_NE(engine, nullptr);
      auto session = engine->new_session();
      Recorder recorder;
      EXPECT_TRUE((*session)->trace(tokens, recorder).ok());
      return recorder.f32["logits"];
    };
    const auto v = logits(vendor), b = logits(plain), e = logits(exact);
    ASSERT_EQ(v.size(), e.size());
    const auto distance = [&](const std::vector<float>& x, const std::vector<float>& y) {
      double difference = 0, size = 0;
      for (size_t i = 0; i < x.size(); ++i) difference += std::pow(double{x[i]} - double{y[i]}, 2), size += std::pow(double{y[i]}, 2);
      return std::sqrt(difference / size);
    };
    RecordProperty(std::string(folder) + "_vendor_to_fp32", std::to_string(distance(v, e)));
    RecordProperty(std::string(folder) + "_bf16_to_fp32", std::to_string(distance(b, e)));
    EXPECT_GT(distance(v, e), 2 * distance(b, e)) << folder << ": nothing was quantised";
    EXPECT_LT(distance(v, e), 0.6) << folder;
  }
}

TEST(DeepseekV4Vendor, IsRefusedWhereItIsNotDefined) {
  EngineOptions options = options_of({"deepseek_v4_odd", Numerics::kVendor});
  auto odd = Engine::load(options);
  ASSERT_FALSE(odd.ok());
  EXPECT_EQ(odd.status().code(), StatusCode::kUnsupported) << odd.status().to_string();
  options.model_dir = testing::source_path("tests/golden/qwen3_moe_base");
  options.context_length = 0;
  auto other = Engine::load(options);
  ASSERT_FALSE(other.ok());
  EXPECT_EQ(other.status().code(), StatusCode::kUnsupported) << other.status().to_string();
  EXPECT_FALSE(Engine::plan(options).ok());
}

// A pass that fails half way has overwritten rings of the first layers; the session is as it was all the same.
TEST(DeepseekV4Faults, AFailedPassLeavesTheSessionAsItWas) {
  const Model model{"deepseek_v4_native", Numerics::kFp32};
  const std::vector<int32_t> tokens = prompt_of(model, 300);
  EngineOptions options = options_of(model);
  std::vector<std::vector<float>> expected;
  {
    auto engine = load(options);
    ASSERT_NE(engine, nullptr);
    expected = token_by_token(*engine, tokens);
  }
  options.memory_bytes = 0;
  auto plan = Engine::plan(options);
  ASSERT_TRUE(plan.ok());
  options.memory_bytes = plan->smallest_budget_bytes;  // every expert is read again and again
  std::unique_ptr<Device> device = make_cpu_device();
  FaultyFs fs(FileSystem::real());
  auto engine = load_engine(options, {.device = device.get(), .fs = &fs});
  ASSERT_TRUE(engine.ok()) << engine.status().to_string();
  auto session = (*engine)->new_session();
  ASSERT_TRUE((*session)->prefill(std::span(tokens).first(200)).ok());
  int failures = 0;
  for (uint64_t n = 1; n <= 40; n += 3) {
    fs.fail(FaultyFs::Op::kRead, fs.calls(FaultyFs::Op::kRead) + n, FaultyFs::Fault::kIoError);
    const int64_t before = (*session)->position();
    // Sixty wrong tokens: more than rings can spare.
    const std::vector<int32_t> wrong(60, tokens[0]);
    failures += (*session)->prefill(wrong).ok() ? 0 : 1;
    fs.fail(FaultyFs::Op::kRead, UINT64_MAX, FaultyFs::Fault::kIoError);
    ASSERT_TRUE((*session)->rewind(before).ok());
    auto row = (*session)->decode(tokens[static_cast<size_t>(before)]);
    ASSERT_TRUE(row.ok()) << row.status().to_string();
    ASSERT_TRUE(same_bits(*row, expected[static_cast<size_t>(before)])) << "after a failure at read " << n;
  }
  EXPECT_GE(failures, 10);
}

// The experts of hash layers are known from the token ids: all that fit are read before their layer is reached, none twice.
TEST(DeepseekV4Prefetch, HashLayersHitWhatWasReadAhead) {
  const Model model{"deepseek_v4_odd", Numerics::kFp32};  // layers 0 and 1
  const std::vector<int32_t> tokens = prompt_of(model, 40);
  auto engine = load(options_of(model));
  ASSERT_NE(engine, nullptr);
  auto session = engine->new_session();
  for (const int32_t t : tokens) {
    engine->evict_experts();
    ASSERT_TRUE((*session)->decode(t).ok());
  }
  const EngineStats stats = engine->stats();
  ASSERT_EQ(stats.expert_layers.size(), 4u);
  for (size_t layer = 0; layer < 4; ++layer) {
    const ExpertStats& s = stats.expert_layers[layer];
    const uint64_t asked = tokens.size() * 3;
    EXPECT_EQ(s.hits + s.misses, asked);
    EXPECT_EQ(s.prefetch_hits, layer < 2 ? asked : 0) << "layer " << layer;
    EXPECT_EQ(s.prefetched, layer < 2 ? asked : 0) << "layer " << layer;
    EXPECT_EQ(s.bytes_read, asked * engine->memory_plan().expert_bytes) << "layer " << layer;
  }
  // Less when a batch comes before its read ahead has begun.
  EXPECT_LE(stats.experts.prefetch_bytes, 2 * tokens.size() * 3 * engine->memory_plan().expert_bytes);
}

}  // namespace
}  // namespace pointsman
