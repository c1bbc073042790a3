// SPDX-License-Identifier: Apache-2.0
//
// Packed folders of the bundled model: prefill splits, threads and budgets leave no trace in the logits, and they stay near
// those of the source in fp32.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "engine/engine_impl.h"
#include "ops/path_table.h"
#include "pack/pack.h"
#include "support/golden.h"
#include "support/log_capture.h"
#include "support/temp_dir.h"

namespace pointsman {
namespace {

// Logits of the last token of a prompt and of three more, one after the other.
std::vector<float> some_logits(const EngineOptions& options, EngineStats* stats = nullptr) {
  std::unique_ptr<Device> device = make_cpu_device();
  auto engine = load_engine(options, {.device = device.get(), .fs = &FileSystem::real()});
  EXPECT_TRUE(engine.ok()) << engine.status().to_string();
  if (!engine.ok()) return {};
  auto session = (*engine)->new_session();
  EXPECT_TRUE(session.ok());
  std::vector<int32_t> prompt;
  for (int32_t i = 0; i < 45; ++i) prompt.push_back(200 + i * 37 % 1500);
  auto logits = (*session)->prefill(prompt);
  EXPECT_TRUE(logits.ok()) << logits.status().to_string();
  if (!logits.ok()) return {};
  std::vector<float> all(logits->begin(), logits->end());
  for (const int32_t token : {300, 500, 700}) {
    auto next = (*session)->decode(token);
    EXPECT_TRUE(next.ok());
    all.insert(all.end(), next->begin(), next->end());
  }
  if (stats != nullptr) *stats = (*engine)->stats();
  return all;
}

// Mean KL divergence of four rows of logits, nats.
double divergence(const std::vector<float>& reference, const std::vector<float>& found) {
  const size_t vocab = reference.size() / 4;
  double sum = 0;
  for (size_t r = 0; r < 4; ++r) {
    const auto log_sum = [&](const std::vector<float>& l) {
      double most = -INFINITY, s = 0;
      for (size_t i = 0; i < vocab; ++i) most = std::max(most, double{l[r * vocab + i]});
      for (size_t i = 0; i < vocab; ++i) s += std::exp(double{l[r * vocab + i]} - most);
      return most + std::log(s);
    };
    const double a = log_sum(reference), b = log_sum(found);
    for (size_t i = 0; i < vocab; ++i) {
      const double p = double{reference[r * vocab + i]} - a, q = double{found[r * vocab + i]} - b;
      sum += std::exp(p) * (p - q);
    }
  }
  return sum / 4;
}

struct Packed {
  const char* name;
  PackFormat format;
  double most_kl;  // some three times what was measured for these tokens
};

class PackedInvariance : public ::testing::TestWithParam<Packed> {};

TEST_P(PackedInvariance, SplitsThreadsAndBudgetsLeaveNoTrace) {
  const std::string source = testing::source_path("models/pointsman-tiny-moe");
  testing::TempDir dir;
  const std::string folder = dir.file("packed");
  const auto report = run_pack(FileSystem::real(), source, folder, {.format = GetParam().format}, {.tool_version = "test", .created = "2026-01-01T00:00:00Z"},
                               [](uint64_t, uint64_t) { return true; });
  ASSERT_TRUE(report.ok()) << report.status().to_string();
  const EngineOptions plain{.model_dir = source, .memory_bytes = 128 << 20, .num_threads = 2, .numerics = Numerics::kFp32, .load_tokenizer = false};
  const std::vector<float> reference = some_logits(plain);
  for (const Numerics numerics : {Numerics::kBf16, Numerics::kFp32}) {
    EngineOptions base = plain;
    base.model_dir = folder, base.numerics = numerics;
    const std::vector<float> expected = some_logits(base);
    ASSERT_EQ(expected.size(), reference.size());
    const double kl = divergence(reference, expected);
    EXPECT_LT(kl, GetParam().most_kl);
    if (GetParam().format != PackFormat::kBf16) {
      EXPECT_GT(kl, 1e-6) << "as if nothing had been quantised";
    }
    for (const auto& [chunk, threads, memory] : {std::tuple{1, 1, 128}, {7, 3, 128}, {33, 2, 16}}) {
      EngineOptions o = base;
      o.prefill_chunk = chunk, o.num_threads = threads, o.memory_bytes = static_cast<uint64_t>(memory) << 20;
      const auto plan = Engine::plan(o);
      ASSERT_TRUE(plan.ok());
      o.memory_bytes = std::max(o.memory_bytes, plan->smallest_budget_bytes);  // the stacks of sanitizer builds are larger
      const std::vector<float> found = some_logits(o);
      ASSERT_EQ(found.size(), expected.size());
      EXPECT_EQ(std::memcmp(found.data(), expected.data(), found.size() * sizeof(float)), 0) << "chunk " << chunk << ", " << threads << " threads";
    }
  }
}

// A table of other paths changes what is counted and no bit; what is no table is a warning.
TEST_P(PackedInvariance, MeasuredPathsLeaveNoTrace) {
  testing::TempDir dir;
  const std::string folder = dir.file("packed"), tables = dir.file("tables");
  const auto report = run_pack(FileSystem::real(), testing::source_path("models/pointsman-tiny-moe"), folder, {.format = GetParam().format},
                               {.tool_version = "test", .created = "2026-01-01T00:00:00Z"}, [](uint64_t, uint64_t) { return true; });
  ASSERT_TRUE(report.ok()) << report.status().to_string();
  EngineOptions o{.model_dir = folder, .memory_bytes = 128 << 20, .num_threads = 2, .numerics = Numerics::kBf16, .load_tokenizer = false};
  const std::vector<float> expected = some_logits(o);
  ASSERT_FALSE(expected.empty());
  const CpuFeatures cpu = detect_cpu_features();
  ops::PathTable table{.key = {.cpu = cpu.model_name, .isa = isa_name(*choose_isa("", cpu)), .threads = 2}, .shapes = {}};
  const std::string file = join_path(tables, ops::path_table_file_name(table.key));
  o.tuning_dir = tables;
  for (int p = 0; p < ops::kNumPanelPaths; ++p) {
    ops::TunedShape forced{.shape = {.experts = 3, .top_k = 1, .hidden = 32, .width = 32}, .paths = {}};
    for (auto& of_format : forced.paths.of) std::fill(std::begin(of_format), std::end(of_format), static_cast<ops::PanelPath>(p));
    table.shapes = {forced};
    ASSERT_TRUE(ops::write_path_table(FileSystem::real(), tables, table).ok());
    EngineStats stats;
    const std::vector<float> found = some_logits(o, &stats);
    ASSERT_EQ(found.size(), expected.size());
    EXPECT_EQ(std::memcmp(found.data(), expected.data(), found.size() * sizeof(float)), 0) << "path " << p;
    EXPECT_EQ(stats.kernel_paths, file);
    int taken = 0;
    for (const auto& [name, times] : stats.launches) {
      const size_t slash = name.find('/');
      if (slash == std::string::npos) continue;
      ++taken;
      EXPECT_EQ(name.substr(slash + 1), ops::panel_path_name(static_cast<ops::PanelPath>(p)));
      EXPECT_GT(times, 0u);
    }
    EXPECT_GT(taken, 0);
  }
  for (const char* text : {"", "{}", "not a table"}) {
    ASSERT_TRUE(write_text_file(FileSystem::real(), file, text).ok());
    const testing::LogCapture log;
    EngineStats stats;
    const std::vector<float> found = some_logits(o, &stats);
    ASSERT_EQ(found.size(), expected.size());
    EXPECT_EQ(std::memcmp(found.data(), expected.data(), found.size() * sizeof(float)), 0);
    EXPECT_EQ(stats.kernel_paths, "built in");
    EXPECT_THAT(log.text(), ::testing::HasSubstr("the built-in rule chooses"));
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, PackedInvariance,
                         ::testing::Values(Packed{"bf16", PackFormat::kBf16, 0.003}, Packed{"int8", PackFormat::kInt8, 0.01},
                                           Packed{"int8_128", PackFormat::kInt8Wide, 0.012},
                                           Packed{"mxfp8", PackFormat::kMxfp8, 0.02}, Packed{"mxfp4", PackFormat::kMxfp4, 0.2}),
                         [](const auto& param_info) { return std::string(param_info.param.name); });

}  // namespace
}  // namespace pointsman
