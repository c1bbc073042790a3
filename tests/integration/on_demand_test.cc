// SPDX-License-Identifier: Apache-2.0
//
// Embedding and LM head on demand: the bits of the resident model for every combination, tied or not, on both devices; the plan
// is the accounting; wrong bytes and failing reads are named errors and no token.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <set>

#include "base/log.h"
#include "device/fake/fake_device.h"
#include "engine/planner.h"
#include "pack/pack.h"
#include "support/golden.h"
#include "support/log_capture.h"
#include "support/memory_model.h"
#include "support/recorder.h"
#include "support/temp_dir.h"

namespace pointsman {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::MemoryModel;
using testing::ReadCall;

const std::vector<int32_t> kTokens = {3, 17, 91, 50, 9, 64, 20, 33, 5, 18, 77, 95, 3, 3};

std::vector<PlacementRule> rules(bool embedding, bool head) {
  std::vector<PlacementRule> r;
  if (embedding) r.push_back({.pattern = "embed_tokens", .placement = Placement::kOnDemand});
  if (head) r.push_back({.pattern = "lm_head", .placement = Placement::kOnDemand});
  return r;
}

// Traced logits of a prefill, unless the budget has no room for a trace, then those of its end and of three decodes.
Result<std::vector<float>> run(Engine& engine, bool with_trace = true) {
  PM_ASSIGN_OR_RETURN(auto session, engine.new_session());
  testing::Recorder recorder;
  const std::span<const int32_t> tokens = kTokens, prompt = tokens.first(tokens.size() - 3);
  PM_ASSIGN_OR_RETURN(auto row, with_trace ? session->trace(prompt, recorder) : session->prefill(prompt));
  std::vector<float> all;
  if (with_trace) all = recorder.f32.at("logits");
  all.insert(all.end(), row.begin(), row.end());
  for (const int32_t id : tokens.last(3)) {
    PM_ASSIGN_OR_RETURN(row, session->decode(id));
    all.insert(all.end(), row.begin(), row.end());
  }
  return all;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

uint64_t ledger_of(const EngineStats& stats, MemoryClass c) {
  for (const auto& [name, bytes] : stats.ledger) {
    if (name == memory_class_name(c)) return bytes;
  }
  return 0;
}

uint64_t item_of(const MemoryPlan& plan, std::string_view name) {
  for (const PlanItem& i : plan.items) {
    if (i.name == name) return i.bytes;
  }
  return 0;
}

class OnDemand : public ::testing::TestWithParam<std::tuple<const char*, Numerics>> {
 protected:
  // "model" or "model:format", which is packed first.
  std::string folder() const {
    const std::string name = std::get<0>(GetParam());
    const size_t colon = name.find(':');
    const std::string source = testing::source_path(name.substr(0, colon));
    if (colon == std::string::npos) return source;
    const auto format = parse_pack_format(name.substr(colon + 1));
    EXPECT_TRUE(format.ok());
    PackOptions options{.format = *format};
    if (*format == PackFormat::kMxfp4) options.rules = {{"lm_head", PackFormat::kMxfp4}};  // not the default's INT8: every kernel is met
    const auto report = run_pack(FileSystem::real(), source, dir_.file("packed"), options, {.tool_version = "test", .created = "2026-01-01T00:00:00Z"},
                                 [](uint64_t, uint64_t) { return true; });
    EXPECT_TRUE(report.ok()) << report.status().to_string();
    return dir_.file("packed");
  }
  testing::TempDir dir_;
  MemoryModel model_{folder()};
  EngineOptions options_ = [] {
    EngineOptions o = testing::memory_model_options();
    o.numerics = std::get<1>(GetParam());
    return o;
  }();
};

TEST_P(OnDemand, EveryCombinationGivesTheBitsOfTheResidentModel) {
  const testing::LogCapture log;  // of a tied matrix of which one use is on demand
  auto resident = model_.load(options_);
  ASSERT_TRUE(resident.ok()) << resident.status().to_string();
  const auto expected = run(**resident);
  ASSERT_TRUE(expected.ok()) << expected.status().to_string();
  EXPECT_EQ((*resident)->stats().dense_on_demand.bytes_read, 0u);
  for (const bool locked : {false, true}) {
    if (locked) model_.add_lock();
    for (const auto& [embedding, head] : {std::pair(true, false), {false, true}, {true, true}}) {
      options_.placement = rules(embedding, head);
      for (const int threads : {1, 2}) {
        options_.num_threads = threads;
        const uint64_t smallest = model_.smallest_budget(options_);
        for (const uint64_t budget : {smallest, uint64_t{64} << 20}) {
          for (const bool is_fake : {false, true}) {
            SCOPED_TRACE(
                format("embedding {} head {} threads {} budget {} fake {}", embedding, head, threads, budget, is_fake));
            if (is_fake && budget == smallest) continue;  // a device that needs staging needs more
            options_.memory_bytes = budget;
            const std::unique_ptr<Device> device = is_fake ? make_fake_device({.max_delay_us = 10}) : make_cpu_device();
            auto engine = load_engine(options_, {.device = device.get(), .fs = &model_.fs});
            ASSERT_TRUE(engine.ok()) << engine.status().to_string();
            const auto found = run(**engine, budget != smallest);
            ASSERT_TRUE(found.ok()) << found.status().to_string();
            EXPECT_TRUE(same_bits(*found, {expected->end() - static_cast<ptrdiff_t>(found->size()), expected->end()}));
          }
        }
      }
    }
  }
}

TEST_P(OnDemand, ThePlanIsTheAccounting) {
  const testing::LogCapture log;
  for (const auto& [embedding, head] : {std::pair(false, false), {true, false}, {false, true}, {true, true}}) {
    SCOPED_TRACE(format("embedding {} head {}", embedding, head));
    options_.placement = rules(embedding, head);
    auto engine = model_.load(options_);
    ASSERT_TRUE(engine.ok()) << engine.status().to_string();
    auto session = (*engine)->new_session();
    ASSERT_TRUE(session.ok());
    const MemoryPlan& plan = (*engine)->memory_plan();
    const EngineStats stats = (*engine)->stats();
    EXPECT_EQ(ledger_of(stats, MemoryClass::kWeights), item_of(plan, "weights"));
    EXPECT_EQ(ledger_of(stats, MemoryClass::kReadBuffers), item_of(plan, "read buffers"));
    EXPECT_EQ(ledger_of(stats, MemoryClass::kThreadStacks), item_of(plan, "thread stacks"));
    EXPECT_EQ(ledger_of(stats, MemoryClass::kOutput), item_of(plan, "sampler"));
    EXPECT_LE(ledger_of(stats, MemoryClass::kCatalogue), item_of(plan, "catalogue"));
    EXPECT_LE(stats.ledger_peak_bytes, plan.total_bytes);
    // What the map calls on demand is not in memory; the rest is.
    uint64_t dense = 0, on_demand = 0;
    for (const PlanUnit& u : plan.units) {
      if (u.name.ends_with(".experts")) continue;
      (u.placement == Placement::kOnDemand ? on_demand : dense) += u.bytes;
    }
    EXPECT_GE(item_of(plan, "weights"), dense);
    EXPECT_LT(item_of(plan, "weights"), dense + 64 * 64 + 2 * kPageBytes);
    const Binding& binding = (*engine)->impl().binding;
    const bool is_tied = std::any_of(binding.dense.begin(), binding.dense.end(),
                                     [&](const DenseBinding& b) { return binding.is_embedding(b) && binding.is_head(b); });
    EXPECT_EQ(on_demand > 0, is_tied ? embedding && head : embedding || head);
  }
}

TEST_P(OnDemand, AByteThatChangesAfterLoadIsANamedErrorAndNoToken) {
  options_.placement = rules(true, true);
  model_.add_lock();
  auto engine = model_.load(options_);
  ASSERT_TRUE(engine.ok()) << engine.status().to_string();
  const auto expected = run(**engine);
  ASSERT_TRUE(expected.ok()) << expected.status().to_string();
  auto session = (*engine)->new_session();
  ASSERT_TRUE(session.ok());
  size_t named = 0;
  std::set<std::string> on_demand;
  for (const DenseBinding& b : (*engine)->impl().binding.dense) {
    if (b.on_demand) on_demand.emplace(b.entry->name);
  }
  for (const MemoryModel::Range& range : model_.ranges()) {
    if (on_demand.count(range.tensor) == 0) continue;
    SCOPED_TRACE(range.tensor);
    for (const int32_t row : {0, kTokens[0], kTokens[1], 95}) {
      std::byte& byte = model_.byte_at(
          range, range.size_bytes / static_cast<uint64_t>((*engine)->config().vocab_size) * static_cast<uint64_t>(row));
      byte ^= std::byte{2};
      const auto logits = (*session)->prefill(std::span(&row, 1));
      byte ^= std::byte{2};
      ASSERT_FALSE(logits.ok());
      EXPECT_EQ(logits.status().code(), StatusCode::kCorrupt) << logits.status().to_string();
      EXPECT_THAT(logits.status().message(),
                  AllOf(HasSubstr(range.tensor + " rows "), HasSubstr(".safetensors @ 0x"), HasSubstr("xxh3")));
      EXPECT_EQ((*session)->position(), 0);
      ++named;
    }
    // Before load: against the lock file.
    std::byte& byte = model_.byte_at(range, range.size_bytes - 1);
    byte ^= std::byte{0x80};
    const auto refused = model_.load(options_);
    byte ^= std::byte{0x80};
    ASSERT_FALSE(refused.ok());
    EXPECT_THAT(refused.status().message(), AllOf(HasSubstr(range.tensor), HasSubstr("sha256")));
  }
  EXPECT_GE(named, 4u);
  session->reset();
  const auto after = run(**engine);
  ASSERT_TRUE(after.ok()) << after.status().to_string();
  EXPECT_TRUE(same_bits(*after, *expected));
}

TEST_P(OnDemand, EveryFailingReadIsNamedAndTheEngineGoesOn) {
  options_.placement = rules(true, true);
  auto engine = model_.load(options_);
  ASSERT_TRUE(engine.ok()) << engine.status().to_string();
  const auto expected = run(**engine);
  ASSERT_TRUE(expected.ok()) << expected.status().to_string();
  bool fired = true;
  for (uint64_t n = 0; fired && n < 400; n += 11) {
    for (const bool is_short : {false, true}) {
      SCOPED_TRACE(format("read {} {}", n, is_short ? "short" : "EIO"));
      (*engine)->evict_experts();
      fired = false;
      model_.fs.reset_reads();
      model_.fs.set_hook([&](const ReadCall& call) -> std::optional<Result<size_t>> {
        if (call.call != n) return std::nullopt;
        fired = true;
        if (is_short) return size_t{0};
        return error(StatusCode::kIo, "{}: pread: Input/output error", call.path);
      });
      const uint64_t dropped = (*engine)->stats().experts.prefetch_failed;
      const auto failed = run(**engine);
      model_.fs.set_hook({});
      if (!fired) break;
      if (failed.ok() && (*engine)->stats().experts.prefetch_failed > dropped) {
        // An expert was being read ahead: its layer read it again.
        EXPECT_TRUE(same_bits(*failed, *expected));
        continue;
      }
      ASSERT_FALSE(failed.ok());
      EXPECT_EQ(failed.status().code(), is_short ? StatusCode::kCorrupt : StatusCode::kIo) << failed.status().to_string();
      EXPECT_THAT(failed.status().message(),
                  ::testing::AnyOf(AllOf(HasSubstr("layer "), HasSubstr("expert ")),
                                   AllOf(HasSubstr(".weight rows "), HasSubstr(".safetensors @ 0x"))));
      const auto logits = run(**engine);
      ASSERT_TRUE(logits.ok()) << logits.status().to_string();
      EXPECT_TRUE(same_bits(*logits, *expected));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models, OnDemand,
    ::testing::Combine(::testing::Values("tests/golden/qwen3_dense", "tests/golden/qwen3_moe_bf16",
                                         "tests/golden/qwen3_moe_f16", "tests/golden/qwen3_moe_odd",
                                         "tests/golden/qwen3_moe_tied", "tests/golden/qwen3_moe_tied_different",
                                         "tests/golden/qwen3_moe_tied_head_only", "tests/golden/deepseek_v4_base",
                                         "tests/golden/deepseek_v4_native", "tests/golden/deepseek_v4_odd",
                                         "models/pointsman-tiny-moe", "models/pointsman-tiny-moe:int8",
                                         "models/pointsman-tiny-moe:mxfp8", "models/pointsman-tiny-moe:mxfp4",
                                         "tests/golden/qwen3_moe_base:mxfp8", "tests/golden/qwen3_moe_tied:mxfp4"),
                       ::testing::Values(Numerics::kFp32, Numerics::kBf16)),
    [](const auto& param_info) {
      std::string name = std::filesystem::path(std::get<0>(param_info.param)).filename().string();
      std::replace_if(name.begin(), name.end(), [](char c) { return c == '-' || c == ':'; }, '_');
      return name + "_" + numerics_name(std::get<1>(param_info.param));
    });

}  // namespace
}  // namespace pointsman
