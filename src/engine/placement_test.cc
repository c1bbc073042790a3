// SPDX-License-Identifier: Apache-2.0
#include "engine/placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/model_config.h"
#include "support/golden.h"
#include "support/log_capture.h"

namespace pointsman {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(Glob, MatchesStarsAndQuestionMarks) {
  for (const char* pattern :
       {"layers.3.experts", "layers.*.experts", "layers.?.experts", "*", "*experts", "l*", "*.3.*", "**"}) {
    EXPECT_TRUE(glob_match(pattern, "layers.3.experts")) << pattern;
  }
  for (const char* pattern : {"", "layers.4.experts", "layers.??.experts", "experts", "layers", "*x", "layers.3.experts?"}) {
    EXPECT_FALSE(glob_match(pattern, "layers.3.experts")) << pattern;
  }
  EXPECT_TRUE(glob_match("a*b*c", "aXbYbZc"));
  EXPECT_TRUE(glob_match("", ""));
}

struct Opened {
  std::unique_ptr<Checkpoint> checkpoint;
  Binding binding;
};

Opened open(const std::string& folder) {
  Opened o;
  const std::string path = testing::source_path("tests/golden/" + folder);
  auto config = read_model_config(FileSystem::real(), path);
  EXPECT_TRUE(config.ok()) << config.status().to_string();
  auto checkpoint = Checkpoint::open(FileSystem::real(), path);
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status().to_string();
  o.checkpoint = std::move(*checkpoint);
  auto binding = bind_model(*o.checkpoint, *config);
  EXPECT_TRUE(binding.ok()) << binding.status().to_string();
  o.binding = std::move(*binding);
  return o;
}

std::vector<std::string> on_demand(const Binding& binding) {
  std::vector<std::string> names;
  for (const DenseBinding& b : binding.dense) {
    if (b.on_demand) names.emplace_back(b.entry->name);
  }
  return names;
}

Result<PlacementMap> resolve(Binding& binding, std::initializer_list<const char*> texts) {
  std::vector<PlacementRule> rules;
  for (const char* text : texts) {
    PM_ASSIGN_OR_RETURN(PlacementRule rule, parse_placement_rule(text));
    rules.push_back(std::move(rule));
  }
  return resolve_placement(binding, rules);
}

TEST(Placement, TheVocabularysMatricesStayOnDiskWhenAsked) {
  Opened o = open("qwen3_moe_base");
  const uint64_t all = o.binding.dense_device_bytes();
  ASSERT_TRUE(resolve(o.binding, {}).ok());
  EXPECT_THAT(on_demand(o.binding), ::testing::IsEmpty());
  ASSERT_TRUE(resolve(o.binding, {"embed_tokens=on-demand"}).ok());
  EXPECT_THAT(on_demand(o.binding), ::testing::ElementsAre("model.embed_tokens.weight"));
  EXPECT_LT(o.binding.dense_device_bytes(), all);
  ASSERT_TRUE(resolve(o.binding, {"lm_*=on-demand"}).ok());
  EXPECT_THAT(on_demand(o.binding), ::testing::ElementsAre("lm_head.weight"));
  // The last match wins, and everything that can be means both, and experts.
  const auto map = resolve(o.binding, {"experts=pinned", "*=on-demand"});
  ASSERT_TRUE(map.ok()) << map.status().to_string();
  EXPECT_EQ(map->num_kept_layers(), 0);
  EXPECT_THAT(on_demand(o.binding), ::testing::UnorderedElementsAre("model.embed_tokens.weight", "lm_head.weight"));
  ASSERT_TRUE(resolve(o.binding, {"*=on-demand", "embed_tokens=resident", "lm_head=pinned"}).ok());
  EXPECT_THAT(on_demand(o.binding), ::testing::IsEmpty());
  EXPECT_EQ(o.binding.dense_device_bytes(), all);
}

TEST(Placement, ATiedMatrixStaysOnDiskOnlyForBothUses) {
  for (const char* folder : {"qwen3_moe_tied", "qwen3_moe_tied_head_only"}) {
    Opened o = open(folder);
    const testing::LogCapture log;
    for (const char* one : {"embed_tokens=on-demand", "lm_head=on-demand"}) {
      ASSERT_TRUE(resolve(o.binding, {one}).ok());
      EXPECT_THAT(on_demand(o.binding), ::testing::IsEmpty());
    }
    EXPECT_EQ(log.lines.size(), 2u);
    EXPECT_THAT(log.text(), AllOf(HasSubstr("embed_tokens is on demand"), HasSubstr("lm_head is on demand")));
    ASSERT_TRUE(resolve(o.binding, {"embed_tokens=on-demand", "lm_head=on-demand"}).ok());
    EXPECT_EQ(on_demand(o.binding).size(), 1u);
    EXPECT_EQ(log.lines.size(), 2u);
  }
}

TEST(Placement, OtherDenseWeightsOnDemandAreRefusedByName) {
  Opened o = open("qwen3_moe_base");
  for (const char* rule :
       {"norm=on-demand", "layers.0.attention=on-demand", "layers.*=on-demand", "layers.1.router=on-demand"}) {
    const auto map = resolve(o.binding, {rule});
    EXPECT_EQ(map.status().code(), StatusCode::kUnsupported) << rule;
    EXPECT_THAT(map.status().message(), AllOf(HasSubstr("embed_tokens"), HasSubstr("lm_head"))) << rule;
  }
  EXPECT_EQ(resolve(o.binding, {"layers.99.experts=pinned"}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(resolve(o.binding, {"layers.0.attention=resident", "norm=pinned"}).ok());
}

}  // namespace
}  // namespace pointsman
