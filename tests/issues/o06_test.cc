// SPDX-License-Identifier: Apache-2.0
//
// O6 (MoE-Infinity#108 and #109, TransformerLens#1668): one model in three expert layouts; a misspelt key is named, on both
// sides.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "support/golden.h"
#include "support/memory_model.h"

namespace pointsman {
namespace {

using ::testing::HasSubstr;
using testing::MemoryModel;

std::string folder(const std::string& name) {
  return testing::source_path("tests/golden/qwen3_moe_layout_" + name);
}

Result<std::vector<float>> logits_of(const std::string& name) {
  MemoryModel model(folder(name));
  const auto tokens = testing::read_golden(folder("per_expert") + "/expected.safetensors").at("tokens").i32;
  PM_ASSIGN_OR_RETURN(auto engine, model.load(testing::memory_model_options()));
  PM_ASSIGN_OR_RETURN(auto session, engine->new_session());
  PM_ASSIGN_OR_RETURN(auto logits, session->prefill(tokens));
  return std::vector<float>(logits.begin(), logits.end());
}

TEST(O06, LayoutsAgree) {
  const auto expected = logits_of("per_expert");
  ASSERT_TRUE(expected.ok()) << expected.status().to_string();
  for (const char* name : {"fused", "w123"}) {
    const auto logits = logits_of(name);
    ASSERT_TRUE(logits.ok()) << name << ": " << logits.status().to_string();
    ASSERT_EQ(logits->size(), expected->size());
    for (size_t i = 0; i < logits->size(); ++i) ASSERT_NEAR((*logits)[i], (*expected)[i], 1e-6) << name << " " << i;
  }
}

TEST(O06, AMisspeltKeyIsNamedOnBothSides) {
  const auto logits = logits_of("misspelt");
  ASSERT_FALSE(logits.ok());
  EXPECT_EQ(logits.status().code(), StatusCode::kCorrupt) << logits.status().to_string();
  EXPECT_THAT(logits.status().message(), HasSubstr("model.layers.1.mlp.experts.3.gate_porj.weight"));
  EXPECT_THAT(logits.status().message(), HasSubstr("model.layers.1.mlp.experts.3.gate_proj.weight"));
}

}  // namespace
}  // namespace pointsman
