// SPDX-License-Identifier: Apache-2.0
//
// Several sessions in one pass: whoever steps together, joins, leaves, steps back or brings a prompt along, every session's logits are those of
// its lone run bit for bit, in every family, on every budget; and what is refused or fails leaves all of them where they were.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "base/log.h"
#include "device/fake/fake_device.h"
#include "engine/engine_impl.h"
#include "pack/pack.h"
#include "support/faulty_fs.h"
#include "support/golden.h"
#include "support/temp_dir.h"

namespace pointsman {
namespace {

using ::testing::HasSubstr;
using testing::FaultyFs;

struct Model {
  const char* folder;
  Numerics numerics;
  LatentForm form = LatentForm::kAbsorbed;
  bool noise = false;
};

// Long enough for windows, rings and entries of DeepSeek-V4 to turn over; the others need no more than blocks of keys.
constexpr size_t kLongest = 150;

EngineOptions options_of(const Model& m) {
  return {.model_dir = testing::source_path(std::string("tests/golden/") + m.folder), .memory_bytes = 64 << 20, .num_threads = 1,
          .context_length = 160, .numerics = m.numerics, .latent_form = m.form, .route_noise = m.noise, .route_noise_seed = 3, .num_readers = 2,
          .load_tokenizer = false};
}

std::unique_ptr<Engine> load(const EngineOptions& options) {
  auto engine = Engine::load(options);
  EXPECT_TRUE(engine.ok()) << engine.status().to_string();
  return engine.ok() ? std::move(*engine) : nullptr;
}

using Row = std::vector<float>;

// The tokens of one sequence and its logits after each, alone in an engine of its own.
struct Timeline {
  std::vector<int32_t> tokens;
  std::vector<Row> logits;
};

Timeline alone(Engine& engine, uint64_t seed, size_t length) {
  Timeline t;
  std::mt19937 random(static_cast<uint32_t>(seed));
  auto session = engine.new_session();
  EXPECT_TRUE(session.ok()) << session.status().to_string();
  for (size_t i = 0; i < length; ++i) {
    t.tokens.push_back(static_cast<int32_t>(random() % static_cast<uint64_t>(engine.config().vocab_size)));
    auto row = (*session)->decode(t.tokens.back());
    EXPECT_TRUE(row.ok()) << row.status().to_string();
    if (!row.ok()) break;
    t.logits.emplace_back(row->begin(), row->end());
  }
  return t;
}

bool same_bits(std::span<const float> a, const Row& b) { return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0; }

// Sessions on `timelines` that step together in batches of at most `size`: at random some stay away, some bring several tokens, some
// step back, some start anew. Every row is compared.
void play(Engine& engine, const std::vector<Timeline>& timelines, size_t size, int steps, uint64_t seed) {
  std::mt19937 random(static_cast<uint32_t>(seed));
  const auto below = [&](uint64_t n) { return static_cast<size_t>(random() % n); };
  std::vector<std::unique_ptr<Session>> sessions(size);
  for (int step = 0; step < steps; ++step) {
    std::vector<BatchItem> items;
    std::vector<size_t> who;
    size_t room = static_cast<size_t>(engine.memory_plan().batch_tokens);
    for (size_t i = 0; i < size; ++i) {
      const size_t dice = below(40);
      if (sessions[i] == nullptr || dice == 0) {
        sessions[i].reset();
        auto fresh = engine.new_session();
        ASSERT_TRUE(fresh.ok()) << fresh.status().to_string();
        sessions[i] = std::move(*fresh);
      }
      const size_t at = static_cast<size_t>(sessions[i]->position()), left = timelines[i].tokens.size() - at;
      if (left == 0 || dice == 1) {
        ASSERT_TRUE(sessions[i]->rewind(static_cast<int64_t>(below(at + 1))).ok());
        continue;
      }
      if (dice < 6) continue;
      const size_t n = std::min({dice < 12 ? 1 + below(40) : 1, left, room - (size - i - 1)});
      room -= n;
      items.push_back({sessions[i].get(), std::span(timelines[i].tokens).subspan(at, n)});
      who.push_back(i);
    }
    if (items.empty()) continue;
    auto logits = engine.run_batch(items);
    ASSERT_TRUE(logits.ok()) << logits.status().to_string();
    ASSERT_EQ(logits->size(), items.size());
    for (size_t k = 0; k < items.size(); ++k) {
      const size_t end = static_cast<size_t>(sessions[who[k]]->position());
      ASSERT_TRUE(same_bits((*logits)[k], timelines[who[k]].logits[end - 1])) << "step " << step << ", session " << who[k] << " of " << size << " at " << end;
    }
  }
}

class Batch : public ::testing::TestWithParam<Model> {};

TEST_P(Batch, EveryRowHasTheBitsOfItsLoneRun) {
  constexpr size_t kMost = 16;
  EngineOptions options = options_of(GetParam());
  std::vector<Timeline> timelines;
  {
    auto engine = load(options);
    ASSERT_NE(engine, nullptr);
    for (size_t i = 0; i < kMost; ++i) timelines.push_back(alone(*engine, i, i % 4 == 0 ? kLongest : 20 + 3 * i));
  }
  uint64_t seed = 0;
  for (const size_t size : {1, 2, 3, 8, 16}) {
    // From the smallest budget, with guesses about experts, to the one that holds all.
    for (const auto& [threads, share, prefetch] : {std::tuple{1, 0.0, PrefetchMode::kOff}, {2, 0.4, PrefetchMode::kPredict}, {2, 1.0, PrefetchMode::kOff}}) {
      options.max_sessions = static_cast<int64_t>(size), options.num_threads = threads, options.prefetch = prefetch;
      options.memory_bytes = 64 << 20;
      const auto plan = Engine::plan(options);
      ASSERT_TRUE(plan.ok()) << plan.status().to_string();
      options.memory_bytes = plan->smallest_budget_bytes + static_cast<uint64_t>(share * static_cast<double>(plan->full_residency_bytes - plan->smallest_budget_bytes));
      auto engine = load(options);
      ASSERT_NE(engine, nullptr);
      SCOPED_TRACE(format("{} sessions, {} threads, share {}", size, threads, share));
      ASSERT_NO_FATAL_FAILURE(play(*engine, timelines, size, 40, ++seed));
      EXPECT_LE(engine->stats().ledger_peak_bytes, options.memory_bytes);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, Batch,
                         ::testing::Values(Model{"qwen3_moe_base", Numerics::kFp32}, Model{"qwen3_moe_bf16", Numerics::kBf16},
                                           Model{"qwen3_moe_odd", Numerics::kFp32, LatentForm::kAbsorbed, true}, Model{"qwen3_dense", Numerics::kFp32},
                                           Model{"qwen2_moe_window", Numerics::kFp32}, Model{"mixtral_base", Numerics::kFp32},
                                           Model{"olmoe_clip_gqa", Numerics::kFp32}, Model{"glm4_moe_base", Numerics::kFp32},
                                           Model{"minimax_m2_base", Numerics::kFp32}, Model{"gpt_oss_bf16", Numerics::kBf16},
                                           Model{"gpt_oss_mxfp4_odd", Numerics::kFp32}, Model{"deepseek_v3_fp8", Numerics::kBf16},
                                           Model{"deepseek_v3_odd", Numerics::kFp32}, Model{"deepseek_v3_base", Numerics::kFp32, LatentForm::kNaive},
                                           Model{"deepseek_v4_base", Numerics::kFp32}, Model{"deepseek_v4_bf16", Numerics::kBf16},
                                           Model{"deepseek_v4_native", Numerics::kVendor}, Model{"deepseek_v4_odd", Numerics::kFp32}),
                         [](const auto& p) {
                           return std::string(p.param.folder) + "_" + numerics_name(p.param.numerics) + (p.param.noise ? "_noise" : "") +
                                  (p.param.form == LatentForm::kNaive ? "_naive" : "");
                         });

// Embedding and head that stay on disk: the head is read once for all rows.
TEST(BatchOnDemand, EveryRowHasTheBitsOfItsLoneRun) {
  EngineOptions options = options_of({"qwen3_moe_base", Numerics::kFp32});
  std::vector<Timeline> timelines;
  auto resident = load(options);
  ASSERT_NE(resident, nullptr);
  for (size_t i = 0; i < 5; ++i) timelines.push_back(alone(*resident, i, 40));
  options.placement = {{.pattern = "*", .placement = Placement::kOnDemand}};
  options.max_sessions = 5;
  auto engine = load(options);
  ASSERT_NE(engine, nullptr);
  ASSERT_NO_FATAL_FAILURE(play(*engine, timelines, 5, 60, 1));

  const auto head_bytes = [&](int batch) {
    std::vector<std::unique_ptr<Session>> sessions;
    std::vector<BatchStep> steps;
    for (int i = 0; i < batch; ++i) {
      sessions.push_back(std::move(*engine->new_session()));
      steps.push_back({sessions.back().get(), 7});
    }
    engine->reset_stats();
    EXPECT_TRUE(engine->decode_batch(steps).ok());
    return engine->stats().dense_on_demand.bytes_read;
  };
  EXPECT_EQ(head_bytes(5), head_bytes(1));
}

// A head in panels, in memory and window by window, with inputs in codes and in bf16.
TEST(BatchPacked, EveryRowHasTheBitsOfItsLoneRun) {
  for (const PackFormat format : {PackFormat::kInt8, PackFormat::kMxfp8}) {
    const testing::TempDir dir;
    ASSERT_TRUE(run_pack(FileSystem::real(), testing::source_path("models/pointsman-tiny-moe"), dir.file("p"), {.format = format},
                         {.tool_version = "test", .created = "2026-01-01T00:00:00Z"}, [](uint64_t, uint64_t) { return true; }).ok());
    EngineOptions options = options_of({"", Numerics::kBf16});
    options.model_dir = dir.file("p");
    std::vector<Timeline> timelines;
    auto lone = load(options);
    ASSERT_NE(lone, nullptr);
    for (size_t i = 0; i < 7; ++i) timelines.push_back(alone(*lone, i, 30));
    options.max_sessions = 7;
    for (const bool on_demand : {false, true}) {
      if (on_demand) options.placement = {{.pattern = "lm_head", .placement = Placement::kOnDemand}};
      auto engine = load(options);
      ASSERT_NE(engine, nullptr);
      ASSERT_NO_FATAL_FAILURE(play(*engine, timelines, 7, 40, 1));
      EXPECT_EQ(engine->stats().dense_on_demand.bytes_read > 0, on_demand);
    }
  }
}

TEST(BatchDevice, ADeviceThatComputesLateGivesTheSameBits) {
  for (const Model& m : {Model{"qwen3_moe_bf16", Numerics::kBf16}, Model{"deepseek_v3_base", Numerics::kFp32}, Model{"deepseek_v4_base", Numerics::kFp32}}) {
    EngineOptions options = options_of(m);
    std::vector<Timeline> timelines;
    auto cpu = load(options);
    ASSERT_NE(cpu, nullptr);
    for (size_t i = 0; i < 3; ++i) timelines.push_back(alone(*cpu, i, 60));
    options.max_sessions = 3;
    std::unique_ptr<FakeDevice> device = make_fake_device({.max_delay_us = 20, .seed = 2});
    auto engine = load_engine(options, {.device = device.get(), .fs = &FileSystem::real()});
    ASSERT_TRUE(engine.ok()) << engine.status().to_string();
    ASSERT_NO_FATAL_FAILURE(play(**engine, timelines, 3, 40, 5));
  }
}

TEST(BatchExperts, AreAskedForOncePerStepForAllRows) {
  EngineOptions options = options_of({"qwen3_moe_base", Numerics::kFp32});
  options.max_sessions = 8;
  auto engine = load(options);
  ASSERT_NE(engine, nullptr);
  const auto asked = [&](const std::vector<int32_t>& tokens) {
    std::vector<std::unique_ptr<Session>> sessions;
    std::vector<BatchStep> steps;
    for (const int32_t t : tokens) {
      sessions.push_back(std::move(*engine->new_session()));
      steps.push_back({sessions.back().get(), t});
    }
    engine->reset_stats();
    EXPECT_TRUE(engine->decode_batch(steps).ok());
    const EngineStats s = engine->stats();
    return s.experts.hits + s.experts.misses;
  };
  const uint64_t one = asked({5});
  EXPECT_GT(one, 0u);
  EXPECT_EQ(asked({5, 5, 5, 5, 5, 5, 5, 5}), one);
  const uint64_t many = asked({1, 2, 3, 4, 5, 6, 7, 8});
  EXPECT_GT(many, one);
  EXPECT_LE(many, static_cast<uint64_t>(engine->memory_plan().num_experts_total));
}

TEST(BatchPlan, HoldsRoomForItsSessionsAndNoMore) {
  for (const char* folder : {"qwen3_moe_base", "deepseek_v3_base", "deepseek_v4_base"}) {
    EngineOptions options = options_of({folder, Numerics::kFp32});
    uint64_t last = 0;
    std::vector<uint64_t> unused;
    for (const int64_t n : {1, 2, 16, 64}) {
      options.max_sessions = n, options.memory_bytes = 256 << 20;
      options.memory_bytes = Engine::plan(options)->smallest_budget_bytes;
      EXPECT_GT(options.memory_bytes, last);
      last = options.memory_bytes;
      auto engine = load(options);
      ASSERT_NE(engine, nullptr);
      EXPECT_GE(engine->memory_plan().batch_tokens, n);
      std::vector<std::unique_ptr<Session>> sessions;
      std::vector<BatchStep> steps;
      for (int64_t i = 0; i < n; ++i) {
        auto s = engine->new_session();
        ASSERT_TRUE(s.ok()) << s.status().to_string();
        steps.push_back({s->get(), static_cast<int32_t>(i)});
        sessions.push_back(std::move(*s));
      }
      // All that the plan promised is used, but for the tables of experts that have no slot: the same bytes for any number of sessions.
      ASSERT_LE(engine->stats().ledger_bytes, engine->memory_plan().total_bytes);
      unused.push_back(engine->memory_plan().total_bytes - engine->stats().ledger_bytes);
      EXPECT_EQ(unused.back(), unused.front()) << folder << " " << n;
      EXPECT_LT(unused.back(), 8192u);
      EXPECT_EQ(engine->new_session().status().code(), StatusCode::kBudgetExceeded);
      EXPECT_TRUE(engine->decode_batch(steps).ok());
    }
  }
  EngineOptions options = options_of({"qwen3_moe_base", Numerics::kFp32});
  for (const int64_t n : {-1, 0, 65}) {
    options.max_sessions = n;
    EXPECT_EQ(Engine::plan(options).status().code(), StatusCode::kInvalidArgument) << n;
  }
}

TEST(BatchRefusals, NameTheItemAndMoveNobody) {
  EngineOptions options = options_of({"qwen3_moe_base", Numerics::kFp32});
  options.max_sessions = 3, options.prefill_chunk = 8;
  auto engine = load(options), other = load(options);
  ASSERT_NE(engine, nullptr);
  const std::vector<int32_t> prompt = {1, 2, 3};
  std::vector<std::unique_ptr<Session>> s;
  for (int i = 0; i < 3; ++i) {
    s.push_back(std::move(*engine->new_session()));
    ASSERT_TRUE(s.back()->prefill(prompt).ok());
  }
  auto foreign = other->new_session();
  const auto refusal = [&](const std::vector<BatchItem>& items) {
    const Status status = engine->run_batch(items).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    for (const auto& session : s) EXPECT_EQ(session->position(), 3);
    return status.message();
  };
  const std::vector<int32_t> one = {4}, bad = {999999}, negative = {5, -1}, nine = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  EXPECT_THAT(refusal({}), HasSubstr("no sessions"));
  EXPECT_THAT(refusal({{s[0].get(), one}, {s[1].get(), bad}}), ::testing::AllOf(HasSubstr("batch item 1"), HasSubstr("token 999999 at position 3")));
  EXPECT_THAT(refusal({{s[0].get(), negative}}), HasSubstr("token -1 at position 4"));
  EXPECT_THAT(refusal({{s[0].get(), one}, {s[1].get(), one}, {s[0].get(), one}}), ::testing::AllOf(HasSubstr("batch item 2"), HasSubstr("item 0 again")));
  EXPECT_THAT(refusal({{s[0].get(), one}, {nullptr, one}}), HasSubstr("batch item 1: no session"));
  EXPECT_THAT(refusal({{s[0].get(), one}, {foreign->get(), one}}), HasSubstr("another engine"));
  EXPECT_THAT(refusal({{s[0].get(), {}}}), HasSubstr("no tokens"));
  EXPECT_THAT(refusal({{s[0].get(), one}, {s[1].get(), nine}}), ::testing::AllOf(HasSubstr("batch item 1"), HasSubstr("9 tokens, 7 are left of the 8")));
  EXPECT_THAT(refusal({{s[0].get(), one}, {s[1].get(), one}, {s[2].get(), one}, {foreign->get(), one}}), HasSubstr("loaded for 3"));
  EXPECT_EQ(engine->decode_batch(std::vector<BatchStep>(65, BatchStep{s[0].get(), 1})).status().code(), StatusCode::kInvalidArgument);

  // A full context is refused, too, and the others go on without it.
  const std::vector<int32_t> rest(157, 9);
  ASSERT_TRUE(s[1]->prefill(rest).ok());
  const Status full = engine->run_batch(std::vector<BatchItem>{{s[0].get(), one}, {s[1].get(), one}}).status();
  EXPECT_THAT(full.message(), ::testing::AllOf(HasSubstr("batch item 1"), HasSubstr("the context holds 160")));
  EXPECT_EQ(s[0]->position(), 3);
  EXPECT_TRUE(engine->decode_batch(std::vector<BatchStep>{{s[0].get(), 4}, {s[2].get(), 4}}).ok());
}

// Reads that fail in the middle of a batch: nobody moved, and the next attempt has the right bits.
TEST(BatchFaults, AFailedReadLeavesEverySessionWhereItWas) {
  for (const char* folder : {"qwen3_moe_base", "deepseek_v4_base"}) {
    EngineOptions options = options_of({folder, Numerics::kFp32});
    std::vector<Timeline> timelines;
    auto clean = load(options);
    ASSERT_NE(clean, nullptr);
    for (size_t i = 0; i < 4; ++i) timelines.push_back(alone(*clean, i, 40));
    options.max_sessions = 4, options.num_threads = 2;
    options.memory_bytes = Engine::plan(options)->smallest_budget_bytes;  // every step reads
    FaultyFs fs(FileSystem::real());
    std::unique_ptr<Device> device = make_cpu_device();
    auto engine = load_engine(options, {.device = device.get(), .fs = &fs});
    ASSERT_TRUE(engine.ok()) << engine.status().to_string();
    std::vector<std::unique_ptr<Session>> sessions;
    for (size_t i = 0; i < 4; ++i) {
      sessions.push_back(std::move(*(*engine)->new_session()));
      ASSERT_TRUE(sessions.back()->prefill(std::span(timelines[i].tokens).first(3 + i)).ok());
    }
    int failures = 0;
    for (size_t step = 0; step < 24; ++step) {
      std::vector<BatchStep> steps;
      std::vector<int64_t> before;
      for (size_t i = 0; i < 4; ++i) {
        before.push_back(sessions[i]->position());
        steps.push_back({sessions[i].get(), timelines[i].tokens[static_cast<size_t>(before[i])]});
      }
      // The experts of this step are not here: a read comes, and fails until the retries are spent.
      (*engine)->evict_experts();
      fs.fail(FaultyFs::Op::kRead, fs.calls(FaultyFs::Op::kRead) + step % 7, FaultyFs::Fault::kIoError, 1000000);
      const auto failed = (*engine)->decode_batch(steps);
      failures += !failed.ok();
      fs.fail(FaultyFs::Op::kRead, 0, FaultyFs::Fault::kIoError, 0);
      if (failed.ok()) continue;
      for (size_t i = 0; i < 4; ++i) ASSERT_EQ(sessions[i]->position(), before[i]) << folder << " step " << step;
      const auto logits = (*engine)->decode_batch(steps);
      ASSERT_TRUE(logits.ok()) << logits.status().to_string();
      for (size_t i = 0; i < 4; ++i) {
        ASSERT_TRUE(same_bits((*logits)[i], timelines[i].logits[static_cast<size_t>(before[i])])) << folder << " step " << step << " session " << i;
      }
    }
    EXPECT_GT(failures, 12) << folder;
  }
}

}  // namespace
}  // namespace pointsman
