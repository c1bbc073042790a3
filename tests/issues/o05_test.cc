// SPDX-License-Identifier: Apache-2.0
//
// O5 (llama.cpp#13768, vllm#6758, transformers#43429): a tied head that is absent, present, different, or tied by a nested
// flag.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "support/golden.h"
#include "support/log_capture.h"
#include "support/memory_model.h"

namespace pointsman {
namespace {

using ::testing::HasSubstr;
using testing::MemoryModel;

std::string folder(const std::string& name) {
  return testing::source_path("tests/golden/qwen3_moe_" + name);
}

Result<std::vector<float>> logits_of(const std::string& name) {
  MemoryModel model(folder(name));
  const auto tokens =
      testing::read_golden(folder(name == "tied_off_absent" ? "tied_absent" : name) + "/expected.safetensors").at("tokens").i32;
  PM_ASSIGN_OR_RETURN(auto engine, model.load(testing::memory_model_options()));
  PM_ASSIGN_OR_RETURN(auto session, engine->new_session());
  PM_ASSIGN_OR_RETURN(auto logits, session->prefill(tokens));
  return std::vector<float>(logits.begin(), logits.end());
}

void expect_golden(const std::string& name, const std::vector<float>& logits) {
  const auto expected = testing::read_golden(folder(name) + "/expected.safetensors");
  const testing::GoldenTensor& golden = expected.at("logits");
  ASSERT_EQ(static_cast<int64_t>(logits.size()), golden.cols());
  const float* last = golden.f32.data() + (golden.rows() - 1) * golden.cols();
  for (size_t i = 0; i < logits.size(); ++i) ASSERT_NEAR(logits[i], last[i], 1e-4) << name << " " << i;
}

TEST(O05, AbsentEqualHeadOnlyAndNestedAreOneModel) {
  const auto absent = logits_of("tied_absent");
  ASSERT_TRUE(absent.ok()) << absent.status().to_string();
  for (const char* name : {"tied_absent", "tied_equal", "tied_head_only", "tied_nested"}) {
    SCOPED_TRACE(name);
    const auto logits = logits_of(name);
    ASSERT_TRUE(logits.ok()) << logits.status().to_string();
    expect_golden(name, *logits);
    ASSERT_EQ(logits->size(), absent->size());
    EXPECT_EQ(std::memcmp(logits->data(), absent->data(), absent->size() * sizeof(float)), 0);
  }
}

TEST(O05, ADifferentStoredHeadIsUsedAndNamed) {
  const testing::LogCapture log;
  const auto logits = logits_of("tied_different");
  ASSERT_TRUE(logits.ok()) << logits.status().to_string();
  expect_golden("tied_different", *logits);
  EXPECT_THAT(log.text(), AllOf(HasSubstr("lm_head.weight"), HasSubstr("stored head is used")));
}

TEST(O05, UntiedWithoutAHeadIsRefused) {
  const auto logits = logits_of("tied_off_absent");
  ASSERT_FALSE(logits.ok());
  EXPECT_EQ(logits.status().code(), StatusCode::kCorrupt) << logits.status().to_string();
  EXPECT_THAT(logits.status().message(), HasSubstr("lm_head.weight"));
}

}  // namespace
}  // namespace pointsman
