// SPDX-License-Identifier: Apache-2.0
//
// How the scales of a quantised checkpoint are found, described and refused, from headers alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "model/binding.h"
#include "support/sparse_model.h"

namespace pointsman {
namespace {

using testing::SparseModel;
using testing::TempDir;
using ::testing::HasSubstr;

// A dense qwen3 of hidden 256 and width 384 in FP8: grids of 2 x 2, 3 x 2 and 2 x 3.
constexpr const char* kConfig = R"({"model_type":"qwen3","hidden_size":256,"num_hidden_layers":1,"num_attention_heads":2,"num_key_value_heads":2,
  "head_dim":128,"intermediate_size":384,"vocab_size":64,"tie_word_embeddings":true,
  "quantization_config":{"quant_method":"fp8","fmt":"e4m3","weight_block_size":[128,128]}})";

struct Written {
  std::string weight_dtype = "F8_E4M3", scale_dtype = "F32", suffix = ".weight_scale_inv";
  bool transposed = false;
};
using Change = std::function<void(SparseModel&, const std::string& name, int64_t out, int64_t in)>;

// `change` may write one linear in its own way; returns what binding says.
Result<Binding> bind(const Written& w, const Change& change = nullptr, std::string_view changed = "", std::string config_json = kConfig) {
  SparseModel m;
  const std::string at = "model.layers.0.";
  m.add("model.embed_tokens.weight", {64, 256});
  m.add("model.norm.weight", {256});
  for (const char* name : {"input_layernorm", "post_attention_layernorm"}) m.add(at + name + ".weight", {256});
  for (const char* name : {"q_norm", "k_norm"}) m.add(at + "self_attn." + name + ".weight", {128});
  const auto linear = [&](const std::string& name, int64_t out, int64_t in) {
    if (change != nullptr && name.ends_with(changed)) return change(m, name, out, in);
    m.add(name + ".weight", {out, in}, w.weight_dtype);
    const int64_t r = (out + 127) / 128, c = (in + 127) / 128;
    m.add(name + w.suffix, {w.transposed ? c : r, w.transposed ? r : c}, w.scale_dtype);
  };
  for (const char* name : {"q_proj", "k_proj", "v_proj", "o_proj"}) linear(at + "self_attn." + name, 256, 256);
  for (const char* name : {"gate_proj", "up_proj"}) linear(at + "mlp." + name, 384, 256);
  linear(at + "mlp.down_proj", 256, 384);
  const TempDir dir;
  EXPECT_TRUE(m.write(dir, config_json, 1));
  PM_ASSIGN_OR_RETURN(const ModelConfig config, read_model_config(FileSystem::real(), dir.path()));
  // Entries live in the checkpoint; only messages and weights outlive this call.
  PM_ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> checkpoint, Checkpoint::open(FileSystem::real(), dir.path()));
  return bind_model(*checkpoint, config);
}

TEST(QuantizedBinding, ScalesOfEveryNameAndTypeAreDescribed) {
  for (const char* suffix : {".weight_scale_inv", ".scale", ".weight_scale"}) {
    for (const auto& [stored, held] : {std::pair{"F32", DType::kF32}, {"BF16", DType::kBF16}, {"F8_E8M0", DType::kF8E8M0}, {"U8", DType::kF8E8M0}}) {
      const auto b = bind({.scale_dtype = stored, .suffix = suffix});
      ASSERT_TRUE(b.ok()) << b.status().to_string();
      const Weight& gate = b->weights->layers[0].mlp.gate.weight;
      EXPECT_EQ(gate.dtype, DType::kF8E4M3);
      EXPECT_EQ(gate.format, (BlockFormat{.scale_dtype = held, .transposed = false, .block_rows = 128, .block_cols = 128}));
      // Seven linears in FP8 with their grids, five vectors in fp32, the embedding; nothing is expanded.
      EXPECT_LT(b->dense_device_bytes(), 4u * 256 * 256 + 3u * 384 * 256 + 64 * 256 * 2 + 16384);
    }
  }
}

TEST(QuantizedBinding, AMissingScaleIsNamedAndTwoAreRefused) {
  auto b = bind({}, [](SparseModel& m, const std::string& n, int64_t out, int64_t in) { m.add(n + ".weight", {out, in}, "F8_E4M3"); }, "up_proj");
  EXPECT_THAT(b.status().message(), HasSubstr("missing from the checkpoint (1): model.layers.0.mlp.up_proj.weight_scale_inv (or .scale, .weight_scale)"));
  b = bind({}, [](SparseModel& m, const std::string& n, int64_t out, int64_t in) {
    m.add(n + ".weight", {out, in}, "F8_E4M3"), m.add(n + ".scale", {3, 2}, "F32"), m.add(n + ".weight_scale_inv", {3, 2}, "F32");
  }, "up_proj");
  EXPECT_THAT(b.status().message(), HasSubstr("has both"));
  // A scale beside a weight that is not coded is left over, never ignored.
  b = bind({}, [](SparseModel& m, const std::string& n, int64_t out, int64_t in) {
    m.add(n + ".weight", {out, in}, "BF16"), m.add(n + ".weight_scale_inv", {3, 2}, "F32");
  }, "up_proj");
  EXPECT_THAT(b.status().message(), HasSubstr("in the checkpoint but not used (1): model.layers.0.mlp.up_proj.weight_scale_inv"));
}

// A qwen2_moe layer whose experts are fused FP8 tensors.
Status bind_fused(int64_t width, int64_t block, std::vector<int64_t> gate_up_grid, std::vector<int64_t> down_grid, const std::string& down_dtype = "F8_E4M3") {
  SparseModel m;
  const std::string at = "model.layers.0.";
  m.add("model.embed_tokens.weight", {32, 64}), m.add("lm_head.weight", {32, 64}), m.add("model.norm.weight", {64});
  for (const char* name : {"input_layernorm", "post_attention_layernorm"}) m.add(at + name + ".weight", {64});
  for (const char* name : {"q_proj", "k_proj", "v_proj"}) m.add(at + "self_attn." + name + ".weight", {64, 64}), m.add(at + "self_attn." + name + ".bias", {64});
  m.add(at + "self_attn.o_proj.weight", {64, 64});
  m.add(at + "mlp.gate.weight", {4, 64});
  for (const char* name : {"gate_proj", "up_proj"}) m.add(at + "mlp.shared_expert." + name + ".weight", {16, 64});
  m.add(at + "mlp.shared_expert.down_proj.weight", {64, 16}), m.add(at + "mlp.shared_expert_gate.weight", {1, 64});
  m.add(at + "mlp.experts.gate_up_proj", {4, 2 * width, 64}, "F8_E4M3"), m.add(at + "mlp.experts.down_proj", {4, 64, width}, down_dtype);
  m.add(at + "mlp.experts.gate_up_proj_scale_inv", {gate_up_grid[0], gate_up_grid[1], gate_up_grid[2]}, "F32");
  if (down_dtype == "F8_E4M3") m.add(at + "mlp.experts.down_proj_scale_inv", {down_grid[0], down_grid[1], down_grid[2]}, "F32");
  const TempDir dir;
  EXPECT_TRUE(m.write(dir, R"({"model_type":"qwen2_moe","hidden_size":64,"num_hidden_layers":1,"num_attention_heads":4,"num_key_value_heads":4,"intermediate_size":64,
    "moe_intermediate_size":)" + std::to_string(width) + R"(,"shared_expert_intermediate_size":16,"num_experts":4,"num_experts_per_tok":2,"vocab_size":32,
    "quantization_config":{"quant_method":"fp8","fmt":"e4m3","weight_block_size":[)" + std::to_string(block) + "," + std::to_string(block) + "]}}", 1));
  PM_ASSIGN_OR_RETURN(const ModelConfig config, read_model_config(FileSystem::real(), dir.path()));
  PM_ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> checkpoint, Checkpoint::open(FileSystem::real(), dir.path()));
  return bind_model(*checkpoint, config).status();
}

TEST(QuantizedBinding, FusedExpertsHaveAGridEachThatNoBlockCrosses) {
  EXPECT_TRUE(bind_fused(96, 32, {4, 6, 2}, {4, 2, 3}).ok()) << bind_fused(96, 32, {4, 6, 2}, {4, 2, 3}).to_string();
  EXPECT_THAT(bind_fused(48, 32, {4, 3, 2}, {4, 2, 2}).message(), HasSubstr("blocks of 32 rows go across gate and up of 48 rows each"));
  EXPECT_THAT(bind_fused(96, 32, {3, 6, 2}, {4, 2, 3}).message(), HasSubstr("a grid for each of 4 experts"));
  EXPECT_THAT(bind_fused(96, 32, {4, 2, 6}, {4, 2, 3}).message(), HasSubstr("transposed are not supported"));
  EXPECT_THAT(bind_fused(96, 32, {4, 6, 3}, {4, 2, 3}).message(), HasSubstr("expected [6, 2]"));
  EXPECT_THAT(bind_fused(96, 32, {4, 6, 2}, {}, "BF16").message(), HasSubstr("are stored as F8_E4M3 and BF16"));
}

TEST(QuantizedBinding, OneCheckpointHasOneOrientation) {
  // All transposed: the square grids of attention cannot be told.
  auto b = bind({.transposed = true});
  EXPECT_THAT(b.status().message(), HasSubstr("its scale grid is square, and others (model.layers.0.mlp.gate_proj.weight_scale_inv) are transposed"));
  // One transposed among straight ones.
  b = bind({}, [](SparseModel& m, const std::string& n, int64_t out, int64_t in) {
    m.add(n + ".weight", {out, in}, "F8_E4M3"), m.add(n + ".weight_scale_inv", {2, 3}, "F32");
  }, "up_proj");
  EXPECT_THAT(b.status().message(), HasSubstr("mlp.up_proj.weight_scale_inv: its scale grid is transposed, that of"));
  // Attention in BF16: nothing is undecided, and the grids are read as they lie.
  b = bind({.transposed = true}, [](SparseModel& m, const std::string& n, int64_t out, int64_t in) { m.add(n + ".weight", {out, in}); }, "self_attn.q_proj");
  EXPECT_FALSE(b.ok());
  const Change plain = [](SparseModel& m, const std::string& n, int64_t out, int64_t in) {
    if (n.find("self_attn") != std::string::npos) return m.add(n + ".weight", {out, in});
    m.add(n + ".weight", {out, in}, "F8_E4M3");
    m.add(n + ".weight_scale_inv", {in / 128, out / 128}, "F32");
  };
  b = bind({}, plain, "_proj");
  ASSERT_TRUE(b.ok()) << b.status().to_string();
  EXPECT_TRUE(b->weights->layers[0].mlp.gate.weight.format.transposed);
  EXPECT_THAT(b->notes, ::testing::Contains(HasSubstr("stored transposed (3 tensors)")));
}

TEST(QuantizedBinding, WhatTheCodesAreNotIsSaid) {
  const auto as = [](const char* dtype, std::initializer_list<int64_t> shape, const char* scale_dtype, std::initializer_list<int64_t> grid) {
    const std::vector<int64_t> s(shape), g(grid);
    return bind({}, [=](SparseModel& m, const std::string& n, int64_t, int64_t) {
      m.add(n + ".weight", {s[0], s[1]}, dtype), m.add(n + ".scale", {g[0], g[1]}, scale_dtype);
    }, "up_proj").status().message();
  };
  EXPECT_THAT(as("F8_E4M3", {384, 256}, "F32", {4, 2}), HasSubstr("expected [3, 2] (blocks of 128 x 128) as weight_block_size in config.json says"));
  EXPECT_THAT(as("I8", {384, 128}, "U8", {384, 16}), HasSubstr("NVFP4"));
  EXPECT_THAT(as("I8", {384, 256}, "U8", {384, 8}), HasSubstr("[384, 128] of packed FP4"));
  EXPECT_THAT(as("I32", {384, 32}, "F32", {3, 2}), HasSubstr("stored as I32"));
  EXPECT_THAT(as("F8_E4M3FNUZ", {384, 256}, "F32", {3, 2}), HasSubstr("F8_E4M3FNUZ"));
  // Packed FP4 between FP8 neighbours is fine: each tensor says what it is.
  EXPECT_EQ(as("I8", {384, 128}, "F8_E8M0", {384, 8}), "");
}

TEST(QuantizedBinding, WithoutABlockSizeTheGridMustSayIt) {
  const std::string silent = std::string(kConfig).substr(0, std::string(kConfig).find(",\n  \"quantization_config\"")) + "}";
  const auto b = bind({}, nullptr, "", silent);
  ASSERT_TRUE(b.ok()) << b.status().to_string();
  EXPECT_EQ(b->weights->layers[0].mlp.down.weight.format.block_cols, 128);
}

}  // namespace
}  // namespace pointsman
