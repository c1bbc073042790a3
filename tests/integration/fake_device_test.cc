// SPDX-License-Identifier: Apache-2.0
//
// The whole engine on a device that computes late, hands out addresses the host cannot follow, and fails on command; and with
// kernels missing: the same bits as on the CPU, or a named error.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "base/log.h"
#include "device/fake/fake_device.h"
#include "support/golden.h"
#include "support/log_capture.h"
#include "support/memory_model.h"

namespace pointsman {
namespace {

using ::testing::HasSubstr;
using testing::MemoryModel;

const std::vector<int32_t> kTokens = {3, 17, 101, 250, 9, 64, 200, 33, 5, 118, 77, 119};

EngineOptions options_for(Numerics numerics) {
  EngineOptions o = testing::memory_model_options();
  o.numerics = numerics;
  o.num_readers = 2;
  return o;
}

// Prefill, then three decodes: the logits of the last.
Result<std::vector<float>> run(Engine& engine) {
  PM_ASSIGN_OR_RETURN(auto session, engine.new_session());
  PM_ASSIGN_OR_RETURN(auto logits, session->prefill(std::span(kTokens).first(kTokens.size() - 3)));
  for (size_t i = kTokens.size() - 3; i < kTokens.size(); ++i) {
    PM_ASSIGN_OR_RETURN(logits, session->decode(kTokens[i]));
  }
  return std::vector<float>(logits.begin(), logits.end());
}

Result<std::vector<float>> load_and_run(MemoryModel& model, Device& device, const EngineOptions& options) {
  PM_ASSIGN_OR_RETURN(auto engine, load_engine(options, {.device = &device, .fs = &model.fs}));
  return run(*engine);
}

void expect_same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  ASSERT_EQ(a.size(), b.size());
  EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)), 0);
}

class FakeEngine : public ::testing::TestWithParam<Numerics> {
 protected:
  // Weights in bf16, so that both numerics use their own kernels.
  MemoryModel model_{testing::source_path("tests/golden/qwen3_moe_bf16")};
  EngineOptions options_ = options_for(GetParam());

  std::vector<float> on_cpu() {
    auto logits = load_and_run(model_, *model_.device, options_);
    EXPECT_TRUE(logits.ok()) << logits.status().to_string();
    return logits.ok() ? *logits : std::vector<float>{};
  }
  // Room for a few experts, on a device that needs staging.
  void shrink_budget() {
    options_.memory_bytes = 1 << 20;
    std::unique_ptr<FakeDevice> device = make_fake_device();
    const auto refused = load_engine(options_, {.device = device.get(), .fs = &model_.fs});
    ASSERT_EQ(refused.status().code(), StatusCode::kBudgetExceeded) << refused.status().to_string();
    constexpr std::string_view kAtLeast = "at least ";
    const std::string& text = refused.status().message();
    options_.memory_bytes = std::stoull(text.substr(text.find(kAtLeast) + kAtLeast.size()));
  }
};

TEST_P(FakeEngine, WithDelaysGivesTheBitsOfTheCpu) {
  const std::vector<float> expected = on_cpu();
  ASSERT_NO_FATAL_FAILURE(shrink_budget());
  options_.prefetch = PrefetchMode::kPredict;  // on the CPU above it is off
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    std::unique_ptr<FakeDevice> device = make_fake_device({.max_delay_us = 60, .seed = seed});
    const auto logits = load_and_run(model_, *device, options_);
    ASSERT_TRUE(logits.ok()) << logits.status().to_string();
    expect_same_bits(*logits, expected);
  }
}

TEST_P(FakeEngine, EveryFailureOfTheDeviceIsANamedErrorAndNothingLeaks) {
  const std::vector<float> expected = on_cpu();
  ASSERT_NO_FATAL_FAILURE(shrink_budget());
  for (uint64_t FakeOptions::*const which :
       {&FakeOptions::fail_allocation, &FakeOptions::fail_copy, &FakeOptions::fail_kernel}) {
    uint64_t n = 1;
    for (bool done = false; !done; ++n) {
      SCOPED_TRACE(format("operation {} of kind {}", n,
                          which == &FakeOptions::fail_allocation ? "allocation"
                          : which == &FakeOptions::fail_copy     ? "copy"
                                                                 : "kernel"));
      std::string leaks = "the device was not destroyed";
      FakeOptions fake{.leak_report = &leaks};
      fake.*which = n;
      {
        std::unique_ptr<FakeDevice> device = make_fake_device(fake);
        const auto logits = load_and_run(model_, *device, options_);
        if (logits.ok()) {
          done = true;
          expect_same_bits(*logits, expected);
        } else {
          EXPECT_EQ(logits.status().code(), which == &FakeOptions::fail_copy ? StatusCode::kIo : StatusCode::kUnavailable)
              << logits.status().to_string();
          EXPECT_THAT(logits.status().message(), HasSubstr("injected"));
        }
      }
      EXPECT_EQ(leaks, "");
      ASSERT_FALSE(HasFailure());
    }
    EXPECT_GT(n, which == &FakeOptions::fail_allocation ? 3u : 50u);
  }
}

// Without experts nothing waits for the device within a pass: host tables must not change under copies that are still to run.
TEST_P(FakeEngine, SeveralPassesOfADenseModelGiveTheBitsOfTheCpu) {
  MemoryModel model(testing::source_path("tests/golden/qwen3_dense"));
  options_.prefill_chunk = 3;
  const auto expected = load_and_run(model, *model.device, options_);
  ASSERT_TRUE(expected.ok()) << expected.status().to_string();
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    std::unique_ptr<FakeDevice> device = make_fake_device({.max_delay_us = 200, .seed = seed});
    const auto logits = load_and_run(model, *device, options_);
    ASSERT_TRUE(logits.ok()) << logits.status().to_string();
    expect_same_bits(*logits, *expected);
  }
}

// What a failed step leaves in the stream must not reach the next one.
TEST_P(FakeEngine, AfterAFailedStepTheSameEngineGoesOn) {
  const std::vector<float> expected = on_cpu();
  std::unique_ptr<FakeDevice> device = make_fake_device({.max_delay_us = 20});
  auto engine = load_engine(options_, {.device = device.get(), .fs = &model_.fs});
  ASSERT_TRUE(engine.ok()) << engine.status().to_string();
  const uint64_t ledger = (*engine)->stats().ledger_bytes;
  for (uint64_t n = 1; n <= 120; n += 7) {
    for (const bool copy : {true, false}) {
      SCOPED_TRACE(format("{} {}", copy ? "copy" : "kernel", n));
      (*engine)->evict_experts();
      device->set_failures(0, copy ? n : 0, copy ? 0 : n);
      const auto failed = run(**engine);
      if (!failed.ok()) {
        EXPECT_THAT(failed.status().message(), HasSubstr("injected"));
      }
      device->set_failures(0, 0, 0);
      const auto logits = run(**engine);
      ASSERT_TRUE(logits.ok()) << logits.status().to_string();
      expect_same_bits(*logits, expected);
      EXPECT_EQ((*engine)->stats().ledger_bytes, ledger);
    }
  }
}

TEST_P(FakeEngine, AfterAFailedReadTheSameEngineGoesOn) {
  const std::vector<float> expected = on_cpu();
  std::unique_ptr<FakeDevice> device = make_fake_device({.max_delay_us = 200});
  auto engine = load_engine(options_, {.device = device.get(), .fs = &model_.fs});
  ASSERT_TRUE(engine.ok()) << engine.status().to_string();
  for (uint64_t n = 0; n < 24; ++n) {
    SCOPED_TRACE(format("read {}", n));
    (*engine)->evict_experts();
    model_.fs.reset_reads();
    model_.fs.set_hook([n](const testing::ReadCall& call) -> std::optional<Result<size_t>> {
      if (call.call != n) return std::nullopt;
      return error(StatusCode::kIo, "{}: pread: Input/output error", call.path);
    });
    const auto failed = run(**engine);
    EXPECT_EQ(failed.status().code(), StatusCode::kIo) << failed.status().to_string();
    model_.fs.set_hook({});
    const auto logits = run(**engine);
    ASSERT_TRUE(logits.ok()) << logits.status().to_string();
    expect_same_bits(*logits, expected);
  }
}

// Work that a failed step left in the stream must not outlive what it reads and writes.
TEST_P(FakeEngine, AnEngineMayEndRightAfterAFailedStep) {
  const testing::LogCapture log;
  for (const uint64_t n : {0, 4}) {
    SCOPED_TRACE(format("read {}", n));
    std::unique_ptr<FakeDevice> device = make_fake_device({.max_delay_us = 30'000});
    auto engine = load_engine(options_, {.device = device.get(), .fs = &model_.fs});
    ASSERT_TRUE(engine.ok()) << engine.status().to_string();
    model_.fs.reset_reads();
    model_.fs.set_hook([n](const testing::ReadCall& call) -> std::optional<Result<size_t>> {
      if (call.call < n) return std::nullopt;
      return error(StatusCode::kIo, "{}: pread: Input/output error", call.path);
    });
    EXPECT_EQ(run(**engine).status().code(), StatusCode::kIo);
    model_.fs.set_hook({});
  }
  EXPECT_THAT(log.text(), ::testing::Not(HasSubstr("ended with an error")));
}

TEST_P(FakeEngine, AMissingKernelRunsOnTheReferenceOrIsRefused) {
  for (const char* folder : {"qwen3_moe_bf16", "qwen3_moe_base", "qwen3_moe_f16"}) {
    MemoryModel model(testing::source_path(std::string("tests/golden/") + folder));
    const auto expected = load_and_run(model, *model.device, options_);
    ASSERT_TRUE(expected.ok()) << expected.status().to_string();
    size_t used = 0;
    for (const std::string_view op : ops::op_names()) {
      SCOPED_TRACE(format("{} {}", folder, op));
      EngineOptions options = options_;
      const Platform platform{.device = model.device.get(), .fs = &model.fs, .missing_ops = {op}};
      auto engine = load_engine(options, platform);
      ASSERT_TRUE(engine.ok()) << engine.status().to_string();
      const auto logits = run(**engine);
      ASSERT_TRUE(logits.ok()) << logits.status().to_string();
      expect_same_bits(*logits, *expected);
      const auto fallbacks = (*engine)->stats().fallbacks;
      const bool is_used = !fallbacks.empty();
      if (is_used) {
        ASSERT_EQ(fallbacks.size(), 1u);
        EXPECT_EQ(fallbacks[0].first, op);
        EXPECT_GT(fallbacks[0].second, 0u);
        ++used;
      }
      options.allow_fallback = false;
      const auto refused = [&]() -> Status {
        PM_ASSIGN_OR_RETURN(auto strict, load_engine(options, platform));
        return run(*strict).status();
      }();
      EXPECT_EQ(refused.code(), is_used ? StatusCode::kUnavailable : StatusCode::kOk) << refused.to_string();
      if (is_used) {
        EXPECT_THAT(refused.message(), HasSubstr(std::string(op)));
      }
    }
    EXPECT_GE(used, 7u) << folder;
  }
}

INSTANTIATE_TEST_SUITE_P(Numerics, FakeEngine, ::testing::Values(Numerics::kFp32, Numerics::kBf16),
                         [](const auto& param_info) { return numerics_name(param_info.param); });

}  // namespace
}  // namespace pointsman
