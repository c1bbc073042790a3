// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/gpt_oss_names.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace pointsman {
namespace {

using ::testing::HasSubstr;

// BF16, at `offset`.
SafetensorsEntry entry(std::string name, std::vector<int64_t> shape, uint64_t offset = 1000) {
  SafetensorsEntry e{.name = std::move(name), .dtype = DType::kBF16, .num_dims = static_cast<uint8_t>(shape.size()), .offset = offset, .size_bytes = 2};
  for (size_t i = 0; i < shape.size(); ++i) e.shape[i] = shape[i], e.size_bytes *= static_cast<uint64_t>(shape[i]);
  return e;
}

struct Renamed {
  std::vector<SafetensorsEntry> entries;
  std::vector<CutEntry> more;
  Status status;
};
Renamed rename(std::vector<SafetensorsEntry> entries) {
  Renamed r{.entries = std::move(entries)};
  std::vector<SafetensorsEntry*> pointers;
  for (SafetensorsEntry& e : r.entries) pointers.push_back(&e);
  r.status = rename_gpt_oss(pointers, r.more);
  return r;
}

TEST(GptOssNames, EveryNameHasOneOfTransformers) {
  const std::pair<const char*, const char*> names[] = {
      {"embedding.weight", "model.embed_tokens.weight"},
      {"unembedding.weight", "lm_head.weight"},
      {"norm.scale", "model.norm.weight"},
      {"block.12.attn.norm.scale", "model.layers.12.input_layernorm.weight"},
      {"block.12.attn.sinks", "model.layers.12.self_attn.sinks"},
      {"block.12.attn.out.bias", "model.layers.12.self_attn.o_proj.bias"},
      {"block.12.mlp.norm.scale", "model.layers.12.post_attention_layernorm.weight"},
      {"block.12.mlp.gate.weight", "model.layers.12.mlp.router.weight"},
      {"block.12.mlp.gate.bias", "model.layers.12.mlp.router.bias"},
      {"block.12.mlp.mlp1_weight.blocks", "model.layers.12.mlp.experts.gate_up_proj_blocks"},
      {"block.12.mlp.mlp1_weight.scales", "model.layers.12.mlp.experts.gate_up_proj_scales"},
      {"block.12.mlp.mlp1_bias", "model.layers.12.mlp.experts.gate_up_proj_bias"},
      {"block.12.mlp.mlp2_weight.blocks", "model.layers.12.mlp.experts.down_proj_blocks"},
      {"block.12.mlp.mlp2_weight.scales", "model.layers.12.mlp.experts.down_proj_scales"},
      {"block.12.mlp.mlp2_bias", "model.layers.12.mlp.experts.down_proj_bias"},
      // Not gpt-oss's: left alone, so that binding names them.
      {"block.12.mlp.mlp3_bias", "block.12.mlp.mlp3_bias"},
      {"block.x.attn.sinks", "block.x.attn.sinks"},
      {"block.12", "block.12"},
      {"block..attn.sinks", "block..attn.sinks"},
  };
  for (const auto& [from, to] : names) {
    const Renamed r = rename({entry(from, {4})});
    ASSERT_TRUE(r.status.ok());
    EXPECT_EQ(r.entries[0].name, to);
    EXPECT_TRUE(r.more.empty());
  }
}

TEST(GptOssNames, QkvIsCutWhereOutSays) {
  // 6 heads of 2 channels on 2, hidden 5.
  const Renamed r = rename({entry("block.3.attn.out.weight", {5, 12}), entry("block.3.attn.qkv.weight", {20, 5}, 3000), entry("block.3.attn.qkv.bias", {20}, 7000)});
  ASSERT_TRUE(r.status.ok()) << r.status.to_string();
  ASSERT_EQ(r.more.size(), 4u);
  struct Part {
    const SafetensorsEntry& entry;
    const char* name;
    int64_t rows;
    uint64_t offset, bytes;
  };
  for (const Part& p : {Part{r.entries[1], "q_proj.weight", 12, 3000, 120}, {r.more[0].entry, "k_proj.weight", 4, 3120, 40}, {r.more[1].entry, "v_proj.weight", 4, 3160, 40},
                        {r.entries[2], "q_proj.bias", 12, 7000, 24}, {r.more[2].entry, "k_proj.bias", 4, 7024, 8}, {r.more[3].entry, "v_proj.bias", 4, 7032, 8}}) {
    EXPECT_EQ(p.entry.name, std::string("model.layers.3.self_attn.") + p.name);
    EXPECT_EQ(p.entry.shape[0], p.rows) << p.name;
    EXPECT_EQ(p.entry.offset, p.offset) << p.name;
    EXPECT_EQ(p.entry.size_bytes, p.bytes) << p.name;
  }
  EXPECT_EQ(r.more[0].from, 1u);
  EXPECT_EQ(r.more[3].from, 2u);
}

TEST(GptOssNames, AQkvThatDoesNotFitIsRefused) {
  const auto out = entry("block.0.attn.out.weight", {5, 12});
  for (const SafetensorsEntry& qkv : {entry("block.0.attn.qkv.weight", {12, 5}), entry("block.0.attn.qkv.weight", {19, 5}), entry("block.0.attn.qkv.weight", {0, 5}),
                                      entry("block.0.attn.qkv.weight", {20}), entry("block.0.attn.qkv.bias", {20, 1})}) {
    const Renamed r = rename({out, qkv});
    ASSERT_EQ(r.status.code(), StatusCode::kCorrupt) << qkv.shape[0];
    EXPECT_THAT(r.status.message(), HasSubstr("expected 12 of q (as block.0.attn.out.weight has columns) and as many of k as of v"));
  }
  const Renamed alone = rename({entry("block.0.attn.qkv.weight", {20, 5}), entry("block.1.attn.out.weight", {5, 12})});
  ASSERT_EQ(alone.status.code(), StatusCode::kCorrupt);
  EXPECT_THAT(alone.status.message(), HasSubstr("there is no block.0.attn.out.weight"));
}

}  // namespace
}  // namespace pointsman
