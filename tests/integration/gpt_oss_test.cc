// SPDX-License-Identifier: Apache-2.0
//
// What must hold of gpt-oss whatever its weights are.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "pointsman/engine.h"
#include "support/golden.h"
#include "support/recorder.h"
#include "support/stored_tensors.h"
#include "support/temp_dir.h"
#include "tensor/dtype.h"

namespace pointsman {
namespace {

using testing::Stored;

// The bias of the last product belongs to the expert: it is weighed with it. When every expert is its bias alone, and that the same for all, the
// weights, which sum to 1, leave just that bias; beside the weights it would be there once for every chosen expert.
TEST(GptOss, DownBiasIsInsideTheRoutingWeight) {
  const std::string source = testing::source_path("tests/golden/gpt_oss_mxfp4");
  const testing::TempDir dir;
  std::filesystem::copy(source + "/config.json", dir.file("config.json"));
  auto tensors = testing::tensors_of(source + "/model.safetensors");
  std::vector<float> bias;
  for (Stored& t : tensors) {
    if (t.name.ends_with(".down_proj_blocks")) t.bytes.assign(t.bytes.size(), '\0');
    if (!t.name.ends_with(".down_proj_bias")) continue;
    ASSERT_EQ(t.dtype, "BF16");
    const auto experts = static_cast<size_t>(t.shape[0]), hidden = static_cast<size_t>(t.shape[1]);
    const std::string first = t.bytes.substr(0, 2 * hidden);
    for (size_t e = 0; e < experts; ++e) t.bytes.replace(e * 2 * hidden, 2 * hidden, first);
    if (!t.name.starts_with("model.layers.1.")) continue;
    for (size_t i = 0; i < hidden; ++i) {
      bf16 b;
      std::memcpy(&b, first.data() + 2 * i, 2);
      bias.push_back(to_float(b));
    }
  }
  ASSERT_FALSE(bias.empty());
  ASSERT_GT(std::fabs(bias[0]) + std::fabs(bias[1]), 1e-2f);
  dir.write("model.safetensors", testing::safetensors_of(tensors));
  auto engine = Engine::load({.model_dir = dir.path(), .memory_bytes = 64 << 20, .num_threads = 2, .context_length = 128, .numerics = Numerics::kFp32, .num_readers = 2, .load_tokenizer = false});
  ASSERT_TRUE(engine.ok()) << engine.status().to_string();
  auto session = (*engine)->new_session();
  testing::Recorder r;
  ASSERT_TRUE((*session)->trace(std::vector<int32_t>{3, 9, 27, 81, 5, 11}, r).ok());
  const auto &before = r.f32.at("layers.1.attention.residual"), &after = r.f32.at("layers.1.hidden");
  ASSERT_EQ(before.size(), 6 * bias.size());
  for (size_t i = 0; i < before.size(); ++i) EXPECT_NEAR(after[i] - before[i], bias[i % bias.size()], 2e-5) << i;
}

}  // namespace
}  // namespace pointsman
