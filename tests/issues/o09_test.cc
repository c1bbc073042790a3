// SPDX-License-Identifier: Apache-2.0
//
// O9 (sglang#22455, transformers#32283): every token goes to one of six experts; a call without tokens; ops on zero rows.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <mutex>
#include <set>

#include "ops/kernels.h"
#include "support/golden.h"
#include "support/memory_model.h"

namespace pointsman {
namespace {

using testing::MemoryModel;

std::string folder() {
  return testing::source_path("tests/golden/qwen3_moe_experts6_one");
}

TEST(O09, ExpertsWithoutATokenAreNeverRead) {
  MemoryModel model(folder());
  const auto ranges = model.ranges();
  std::set<int> layers;
  for (const auto& r : ranges) {
    if (r.expert >= 0) layers.insert(r.layer);
  }
  auto engine = model.load(testing::memory_model_options());
  ASSERT_TRUE(engine.ok()) << engine.status().to_string();
  // By what is read, not by what the engine says about itself.
  std::mutex mutex;
  std::set<std::pair<int, int>> read;
  model.fs.set_hook([&](const testing::ReadCall& call) -> std::optional<Result<size_t>> {
    const std::lock_guard lock(mutex);
    for (const auto& r : ranges) {
      if (r.file == call.path && call.offset < r.offset + r.size_bytes && r.offset < call.offset + call.out.size())
        read.insert({r.layer, r.expert});
    }
    return std::nullopt;
  });
  auto session = (*engine)->new_session();
  ASSERT_TRUE(session.ok());
  const auto expected = testing::read_golden(folder() + "/expected.safetensors");
  const auto logits = (*session)->prefill(expected.at("tokens").i32);
  ASSERT_TRUE(logits.ok()) << logits.status().to_string();
  for (const float x : *logits) ASSERT_TRUE(std::isfinite(x));
  for (int i = 0; i < 4; ++i) ASSERT_TRUE((*session)->decode(i).ok());
  const EngineStats stats = (*engine)->stats();
  EXPECT_EQ(stats.experts.misses, layers.size());
  EXPECT_EQ(read.size(), layers.size());
  for (const auto& [layer, expert] : read) EXPECT_EQ(expert, 5) << "layer " << layer;
}

TEST(O09, NoTokensIsNamedAndChangesNothing) {
  MemoryModel model(folder());
  auto engine = model.load(testing::memory_model_options());
  ASSERT_TRUE(engine.ok());
  auto session = (*engine)->new_session();
  ASSERT_TRUE(session.ok());
  ASSERT_TRUE((*session)->decode(1).ok());
  const auto none = (*session)->prefill({});
  EXPECT_EQ(none.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ((*session)->position(), 1);
  EXPECT_TRUE((*session)->decode(2).ok());
}

TEST(O09, OpsOnZeroRowsDoNothing) {
  const std::unique_ptr<Device> device = make_cpu_device();
  auto stream = device->make_stream();
  ASSERT_TRUE(stream.ok());
  ThreadPool pool(2);
  const ops::KernelTable kernels = ops::make_cpu_kernels(detect_cpu_features().best_isa(), detect_cpu_features());
  ops::OpContext ctx{.stream = stream->get(), .pool = &pool, .kernels = &kernels};
  alignas(64) float w[16 * 16] = {}, memory[16] = {};
  const Tensor none = Tensor::matrix(memory, DType::kF32, 0, 16);
  const Tensor weight = Tensor::matrix(w, DType::kF32, 16, 16);
  EXPECT_TRUE(ops::matmul(ctx, {.x = none, .w = weight, .y = none}).ok());
  EXPECT_TRUE(ops::rms_norm(ctx, {.x = none, .weight = w, .out_f32 = none}).ok());
  EXPECT_TRUE(
      ops::swiglu_ffn(ctx, {.x = none, .act = none, .out = none, .experts = {{.w_gate = weight, .w_up = weight, .w_down = weight, .rows = 0}}})
          .ok());
  for (const float x : memory) EXPECT_EQ(x, 0);
}

}  // namespace
}  // namespace pointsman
