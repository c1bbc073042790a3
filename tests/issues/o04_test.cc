// SPDX-License-Identifier: Apache-2.0
//
// O4 (onnxruntime-genai#2609, TorchSpec#101, transformers#32167): the same rope in every spelling gives the same bits; an
// unknown type is refused by name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "base/json.h"
#include "support/golden.h"
#include "support/memory_model.h"

namespace pointsman {
namespace {

using testing::MemoryModel;

constexpr const char* kFolder = "tests/golden/qwen3_moe_base";

std::string read_text(const std::string& path) {
  auto text = read_text_file(FileSystem::real(), path, 1 << 20);
  EXPECT_TRUE(text.ok()) << text.status().to_string();
  return text.ok() ? *text : "";
}

Result<std::vector<float>> logits_of(MemoryModel& model) {
  const std::vector<int32_t> tokens = {3, 17, 101, 250, 9, 64, 200, 33, 5, 118, 77, 301, 12, 8};
  PM_ASSIGN_OR_RETURN(auto engine, model.load(testing::memory_model_options()));
  PM_ASSIGN_OR_RETURN(auto session, engine->new_session());
  PM_ASSIGN_OR_RETURN(auto logits, session->prefill(tokens));
  return std::vector<float>(logits.begin(), logits.end());
}

TEST(O04, EverySpellingOfTheSameRopeGivesTheSameBits) {
  MemoryModel model(testing::source_path(kFolder));
  const auto expected = logits_of(model);
  ASSERT_TRUE(expected.ok()) << expected.status().to_string();
  const std::string configs = testing::source_path(std::string(kFolder) + "/configs/");
  const auto index = parse_json(read_text(configs + "index.json"));
  ASSERT_TRUE(index.ok());
  size_t same = 0, refused = 0;
  for (const Json& entry : index->as_array()) {
    const std::string file = entry.find("file")->as_string(), expect = entry.find("expect")->as_string();
    SCOPED_TRACE(file);
    const std::string config = read_text(configs + file);
    const auto bytes = std::as_bytes(std::span(config));
    model.fs.put(join_path(testing::kMemoryModelDir, "config.json"), {bytes.begin(), bytes.end()});
    const auto logits = logits_of(model);
    if (expect == "same") {
      ASSERT_TRUE(logits.ok()) << logits.status().to_string();
    }
    if (expect == "refuse") {
      ASSERT_FALSE(logits.ok());
    }
    if (logits.ok()) {
      ++same;
      ASSERT_EQ(logits->size(), expected->size());
      EXPECT_EQ(std::memcmp(logits->data(), expected->data(), expected->size() * sizeof(float)), 0);
      continue;
    }
    ++refused;
    EXPECT_THAT(logits.status().code(),
                ::testing::AnyOf(StatusCode::kUnsupported, StatusCode::kCorrupt, StatusCode::kInvalidArgument));
    EXPECT_THAT(logits.status().message(), ::testing::HasSubstr("rope_"));
    // The type that was not understood.
    const auto parsed = parse_json(config);
    ASSERT_TRUE(parsed.ok());
    for (const char* dictionary : {"rope_scaling", "rope_parameters"}) {
      const Json* rope = parsed->find(dictionary);
      if (rope == nullptr || !rope->is_object()) continue;
      for (const char* key : {"rope_type", "type"}) {
        const Json* type = rope->find(key);
        if (type != nullptr && file.starts_with("unknown")) {
          EXPECT_THAT(logits.status().message(), ::testing::HasSubstr(type->as_string()));
        }
      }
    }
    if (file.find("without_factor") != std::string::npos) {
      EXPECT_THAT(logits.status().message(), ::testing::HasSubstr("factor"));
    }
  }
  EXPECT_GE(same, 12u);
  EXPECT_GE(refused, 4u);
}

}  // namespace
}  // namespace pointsman
