// SPDX-License-Identifier: Apache-2.0
//
// Packed models run: what pack only rearranged gives transformers' values within the limits of the golden tests; what it coded gives, in panels
// and in rows, the values of the same codes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "engine/engine_impl.h"
#include "pack/pack.h"
#include "support/golden.h"
#include "support/temp_dir.h"

namespace pointsman {
namespace {

using testing::GoldenFile;
using testing::TempDir;

void pack_model(const std::string& model, const std::string& out, const PackOptions& options) {
  const auto report = run_pack(FileSystem::real(), model, out, options, {.tool_version = "test", .created = "2026-01-01T00:00:00Z"},
                               [](uint64_t, uint64_t) { return true; });
  ASSERT_TRUE(report.ok()) << report.status().to_string();
}

struct Outcome {
  std::vector<float> logits;
  std::vector<int32_t> greedy;
};

Outcome run_model(const std::string& model, const GoldenFile& expected, Numerics numerics) {
  Outcome out;
  EngineOptions options{.model_dir = model, .memory_bytes = 64 << 20, .num_threads = 2, .numerics = numerics, .num_readers = 2, .load_tokenizer = false};
  auto device = make_cpu_device();
  auto engine = load_engine(options, {.device = device.get(), .fs = &FileSystem::real()});
  EXPECT_TRUE(engine.ok()) << engine.status().to_string();
  if (!engine.ok()) return out;
  auto session = (*engine)->new_session();
  EXPECT_TRUE(session.ok());
  auto logits = (*session)->prefill(expected.at("tokens").i32);
  EXPECT_TRUE(logits.ok()) << logits.status().to_string();
  if (!logits.ok()) return out;
  out.logits.assign(logits->begin(), logits->end());
  std::span<const float> row = *logits;
  for (size_t i = 0; i < 12; ++i) {
    out.greedy.push_back(static_cast<int32_t>(std::max_element(row.begin(), row.end()) - row.begin()));
    auto next = (*session)->decode(out.greedy.back());
    EXPECT_TRUE(next.ok()) << next.status().to_string();
    if (!next.ok()) return out;
    row = *next;
  }
  return out;
}

double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double worst = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) worst = std::max(worst, std::fabs(double{a[i]} - double{b[i]}));
  return worst;
}

GoldenFile expected_of(const std::string& model) { return testing::read_golden(testing::source_path("tests/golden/" + model + "/expected.safetensors")); }

class PackedGolden : public ::testing::TestWithParam<std::string> {};

TEST_P(PackedGolden, KeptNumbersMatchTransformers) {
  const std::string model = GetParam();
  const GoldenFile expected = expected_of(model);
  const TempDir dir;
  pack_model(testing::source_path("tests/golden/" + model), dir.file("packed"), {});
  const Outcome found = run_model(dir.file("packed"), expected, Numerics::kFp32);
  const auto& golden = expected.at("logits");
  const std::vector<float> last(golden.f32.end() - golden.cols(), golden.f32.end());
  EXPECT_LE(largest_difference(found.logits, last), model.starts_with("deepseek_v4") ? 3e-4 : 1e-4);
  if (expected.count("greedy") == 0) return;
  const auto& greedy = expected.at("greedy").i32;
  EXPECT_THAT(found.greedy, ::testing::ElementsAreArray(greedy.begin(), greedy.begin() + static_cast<long>(found.greedy.size())));
}
INSTANTIATE_TEST_SUITE_P(Families, PackedGolden,
                         ::testing::Values("qwen3_moe_base", "qwen3_moe_bf16", "qwen3_moe_fused", "qwen3_moe_odd", "gpt_oss_base", "gpt_oss_bf16",
                                           "gpt_oss_mxfp4", "gpt_oss_mxfp4_odd", "deepseek_v3_bf16", "deepseek_v3_fp8", "deepseek_v3_fp8_panels", "deepseek_v3_odd", "mixtral_base",
                                           "mixtral_v5fused", "deepseek_v4_fp4", "deepseek_v4_bf16", "glm4_moe_base", "qwen2_moe_base", "llama_base"),
                         [](const auto& test) { return test.param; });

struct CodedCase {
  std::string model;
  PackFormat format;
};
class PackedCodes : public ::testing::TestWithParam<CodedCase> {};

TEST_P(PackedCodes, PanelsAndRowsAreTheSameModel) {
  const CodedCase& c = GetParam();
  const GoldenFile expected = expected_of(c.model);
  const TempDir dir;
  const std::string source = testing::source_path("tests/golden/" + c.model);
  PackOptions options{.format = c.format};
  // Attention too, where the default would choose INT8: every kernel is met.
  if (c.format == PackFormat::kMxfp4) options.rules = {{"*.attention", PackFormat::kMxfp4}};
  pack_model(source, dir.file("panels"), options);
  options.panels = false;
  pack_model(source, dir.file("rows"), options);
  const Outcome panels = run_model(dir.file("panels"), expected, Numerics::kFp32), rows = run_model(dir.file("rows"), expected, Numerics::kFp32);
  EXPECT_LE(largest_difference(panels.logits, rows.logits), 1e-4);
  EXPECT_EQ(panels.greedy, rows.greedy);
  // And it is still the model that was packed, as far as a model of random weights can tell: unrelated logits are 1.4 apart.
  const auto& golden = expected.at("logits");
  const std::vector<float> last(golden.f32.end() - golden.cols(), golden.f32.end());
  double squares = 0, errors = 0;
  for (size_t i = 0; i < last.size(); ++i) {
    squares += double{last[i]} * double{last[i]};
    errors += (double{last[i]} - double{rows.logits[i]}) * (double{last[i]} - double{rows.logits[i]});
  }
  const double relative = std::sqrt(errors / squares);
  EXPECT_LT(relative, c.format == PackFormat::kMxfp4 ? 1.2 : c.format == PackFormat::kMxfp8 ? 0.65 : c.format == PackFormat::kBf16 ? 0.3 : 0.4);
}
std::vector<CodedCase> coded_cases() {
  std::vector<CodedCase> all;
  for (const char* model : {"qwen3_moe_base", "gpt_oss_base", "deepseek_v3_base", "mixtral_base"}) {
    for (const PackFormat f : {PackFormat::kBf16, PackFormat::kInt8, PackFormat::kInt8Wide, PackFormat::kMxfp8, PackFormat::kMxfp4}) all.push_back({model, f});
  }
  // Widths of 96, 160 and 288: the last block of 128 is a part.
  for (const char* model : {"gpt_oss_mxfp4_odd", "deepseek_v3_fp8_panels"}) all.push_back({model, PackFormat::kInt8Wide});
  return all;
}
INSTANTIATE_TEST_SUITE_P(Families, PackedCodes, ::testing::ValuesIn(coded_cases()),
                         [](const auto& test) { std::string name = test.param.model + "_" + std::string(pack_format_name(test.param.format));
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace pointsman
