// SPDX-License-Identifier: Apache-2.0
//
// Quantised weights, interleaved experts and latent attention: prefill splits, threads and budgets leave no trace in the logits, in both
// numerics and both forms of attention.
#include <gtest/gtest.h>

#include <cstring>

#include "engine/engine_impl.h"
#include "support/golden.h"

namespace pointsman {
namespace {

std::vector<float> last_logits(EngineOptions options, const std::vector<int32_t>& tokens) {
  std::unique_ptr<Device> device = make_cpu_device();
  auto engine = load_engine(options, {.device = device.get(), .fs = &FileSystem::real()});
  EXPECT_TRUE(engine.ok()) << engine.status().to_string();
  if (!engine.ok()) return {};
  auto session = (*engine)->new_session();
  EXPECT_TRUE(session.ok());
  auto logits = (*session)->prefill(tokens);
  EXPECT_TRUE(logits.ok()) << logits.status().to_string();
  std::vector<float> all(logits->begin(), logits->end());
  for (const int32_t token : {3, 5, 7}) {
    auto next = (*session)->decode(token);
    EXPECT_TRUE(next.ok());
    all.insert(all.end(), next->begin(), next->end());
  }
  return all;
}

class FormatsInvariance : public ::testing::TestWithParam<const char*> {};

TEST_P(FormatsInvariance, SplitsThreadsAndBudgetsLeaveNoTrace) {
  const std::string folder = testing::source_path(std::string("tests/golden/") + GetParam());
  const std::vector<int32_t> tokens = testing::read_golden(folder + "/expected.safetensors").at("tokens").i32;
  const bool latent = std::string_view(GetParam()).starts_with("deepseek");
  for (const Numerics numerics : {Numerics::kFp32, Numerics::kBf16}) {
    for (const LatentForm form : {LatentForm::kAbsorbed, LatentForm::kNaive}) {
      if (form == LatentForm::kNaive && !latent) continue;
      const EngineOptions base{.model_dir = folder, .memory_bytes = 64 << 20, .num_threads = 2, .numerics = numerics, .latent_form = form, .num_readers = 2,
                               .load_tokenizer = false};
      const std::vector<float> expected = last_logits(base, tokens);
      ASSERT_FALSE(expected.empty());
      for (const auto& [chunk, threads, memory] : {std::tuple{1, 1, 64}, {7, 3, 64}, {33, 2, 12}}) {
        EngineOptions o = base;
        o.prefill_chunk = chunk, o.num_threads = threads, o.memory_bytes = uint64_t{1} << 20;
        o.memory_bytes *= static_cast<uint64_t>(memory);
        const std::vector<float> found = last_logits(o, tokens);
        ASSERT_EQ(found.size(), expected.size());
        EXPECT_EQ(std::memcmp(found.data(), expected.data(), found.size() * sizeof(float)), 0) << "chunk " << chunk << ", " << threads << " threads";
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Folders, FormatsInvariance, ::testing::Values("gpt_oss_mxfp4", "gpt_oss_bf16", "deepseek_v3_fp8", "deepseek_v3_odd"),
                         [](const auto& param_info) { return std::string(param_info.param); });

}  // namespace
}  // namespace pointsman
