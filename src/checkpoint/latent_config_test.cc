// SPDX-License-Identifier: Apache-2.0
//
// deepseek_v3, kimi_k2 and gpt_oss: what their configs say, leave out, and must not say.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "checkpoint/model_config.h"

namespace pointsman {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Result<ModelConfig> read(const std::string& base, const std::string& more) {
  std::string text = base;
  if (!more.empty()) text.insert(text.size() - 1, "," + more);
  auto json = parse_json(text);
  EXPECT_TRUE(json.ok()) << text;
  return normalize_config(*json, Json());
}

constexpr const char* kDeepSeek = R"({"model_type":"deepseek_v3","hidden_size":7168,"num_hidden_layers":61,"num_attention_heads":128,
  "intermediate_size":18432,"moe_intermediate_size":2048,"n_routed_experts":256,"num_experts_per_tok":8,"vocab_size":129280,
  "max_position_embeddings":163840})";
constexpr const char* kYarn = R"("rope_scaling":{"type":"yarn","factor":40,"mscale":1.0,"mscale_all_dim":1.0,"original_max_position_embeddings":4096})";

TEST(LatentConfig, DefaultsAreThoseOfTheClass) {
  const auto c = read(kDeepSeek, kYarn);
  ASSERT_TRUE(c.ok()) << c.status().to_string();
  EXPECT_EQ(c->latent.q_lora_rank, 1536);
  EXPECT_EQ(c->latent.kv_lora_rank, 512);
  EXPECT_EQ(c->latent.nope, 128);
  EXPECT_EQ(c->latent.rope, 64);
  EXPECT_EQ(c->latent.v, 128);
  EXPECT_EQ(c->head_dim, 192);
  EXPECT_EQ(c->rotary_dim, 64);
  EXPECT_TRUE(c->latent.rope_interleave);
  EXPECT_EQ(c->n_group, 8);
  EXPECT_EQ(c->topk_group, 4);
  EXPECT_DOUBLE_EQ(c->routed_scaling_factor, 2.5);
  EXPECT_TRUE(c->norm_topk_prob);
  EXPECT_EQ(c->num_mtp_layers, 1);
  EXPECT_FALSE(c->layer_is_moe[2]);
  EXPECT_TRUE(c->layer_is_moe[3]);
  EXPECT_EQ(c->shared_expert_intermediate_size, 2048);
}

// m = 0.1 ln 40 + 1 goes into the scale, squared; cos and sin keep mscale / mscale_all_dim.
TEST(LatentConfig, YarnTemperatureGoesIntoTheScaleOfTheScores) {
  auto c = read(kDeepSeek, kYarn);
  ASSERT_TRUE(c.ok());
  EXPECT_NEAR(c->latent.scale, 0.1352337789, 1e-10);
  EXPECT_NEAR(c->rope.attention_factor, 1, 1e-12);
  c = read(kDeepSeek, R"("rope_scaling":{"type":"yarn","factor":40,"mscale":1.0,"mscale_all_dim":0,"original_max_position_embeddings":4096})");
  ASSERT_TRUE(c.ok());
  EXPECT_NEAR(c->latent.scale, 1 / std::sqrt(192.0), 1e-12) << "mscale_all_dim 0: no temperature";
  EXPECT_EQ(c->rope.attention_factor, 0) << "cos and sin carry 0.1 ln 40 + 1";
  c = read(kDeepSeek, "");
  ASSERT_TRUE(c.ok());
  EXPECT_NEAR(c->latent.scale, 1 / std::sqrt(192.0), 1e-12);
}

TEST(LatentConfig, NullMeansNoLowRankOfQueries) {
  const auto c = read(kDeepSeek, R"("q_lora_rank":null)");
  ASSERT_TRUE(c.ok()) << c.status().to_string();
  EXPECT_EQ(c->latent.q_lora_rank, 0);
}

TEST(LatentConfig, WhatTheRecipeCannotExpressIsRefusedByKey) {
  for (const auto& [more, text] : {
           std::pair{R"("scoring_func":"softmax")", "scoring_func \"softmax\""},
           {R"("topk_method":"greedy")", "topk_method \"greedy\""},
           {R"("moe_layer_freq":2)", "moe_layer_freq"},
           {R"("kv_lora_rank":520)", "keys of 520 + 64"},
           {R"("qk_rope_head_dim":63)", "even number of rotated channels"},
           {R"("kv_lora_rank":0)", "kv_lora_rank: 0"},
           {R"("v_head_dim":100000)", "v_head_dim: 100000"},
           {R"("q_lora_rank":"none")", "q_lora_rank"},
           {R"("quantization_config":{"quant_method":"compressed-tensors"})", "quant_method \"compressed-tensors\""},
       }) {
    const auto c = read(kDeepSeek, more);
    ASSERT_FALSE(c.ok()) << more;
    EXPECT_THAT(c.status().message(), HasSubstr(text)) << more;
  }
}

constexpr const char* kGptOss = R"({"model_type":"gpt_oss","hidden_size":2880,"num_hidden_layers":4,"num_attention_heads":64,"intermediate_size":2880,
  "num_local_experts":32,"num_experts_per_tok":4,"vocab_size":201088})";

TEST(GptOssConfig, DefaultsAreThoseOfTheClass) {
  const auto c = read(kGptOss, "");
  ASSERT_TRUE(c.ok()) << c.status().to_string();
  EXPECT_THAT(c->layer_window, ElementsAre(128, 0, 128, 0)) << "windows in turn, the first layer slides";
  EXPECT_TRUE(c->attention_bias && c->attention_output_bias);
  EXPECT_EQ(c->head_dim, 64);
  EXPECT_EQ(c->num_key_value_heads, 8);
  EXPECT_DOUBLE_EQ(c->rope.theta, 150000);
  EXPECT_EQ(c->rope.type, RopeType::kYarn);
  EXPECT_FALSE(c->rope.truncate);
  EXPECT_DOUBLE_EQ(c->rope.factor, 32);
  EXPECT_DOUBLE_EQ(c->swiglu_limit, 7);
  EXPECT_DOUBLE_EQ(c->swiglu_alpha, 1.702);
  EXPECT_DOUBLE_EQ(c->swiglu_up_offset, 1);
  EXPECT_DOUBLE_EQ(c->rms_norm_eps, 1e-5);
  EXPECT_EQ(c->moe_intermediate_size, 2880);
}

TEST(GptOssConfig, LayerTypesAndNullWindow) {
  auto c = read(kGptOss, R"("layer_types":["full_attention","sliding_attention","full_attention","full_attention"],"sliding_window":5)");
  ASSERT_TRUE(c.ok()) << c.status().to_string();
  EXPECT_THAT(c->layer_window, ElementsAre(0, 5, 0, 0));
  c = read(kGptOss, R"("sliding_window":null)");
  ASSERT_TRUE(c.ok());
  EXPECT_THAT(c->layer_window, ElementsAre(0, 0, 0, 0));
  EXPECT_FALSE(read(kGptOss, R"("layer_types":["full_attention"])").ok());
  EXPECT_FALSE(read(kGptOss, R"("layer_types":["full_attention","chunked_attention","full_attention","full_attention"])").ok());
  EXPECT_FALSE(read(kGptOss, R"("swiglu_limit":0)").ok());
}

// The folder `original` of the published repositories.
constexpr const char* kGptOssOriginal = R"({"num_hidden_layers":24,"num_experts":32,"experts_per_token":4,"vocab_size":201088,"hidden_size":2880,
  "intermediate_size":2880,"swiglu_limit":7.0,"head_dim":64,"num_attention_heads":64,"num_key_value_heads":8,"sliding_window":128,
  "initial_context_length":4096,"rope_theta":150000,"rope_scaling_factor":32.0,"rope_ntk_alpha":1,"rope_ntk_beta":32})";

TEST(GptOssConfig, OriginalKeysMeanTheSame) {
  const auto c = read(kGptOssOriginal, "");
  ASSERT_TRUE(c.ok()) << c.status().to_string();
  EXPECT_EQ(c->model_type, "gpt_oss");
  EXPECT_EQ(c->num_experts, 32);
  EXPECT_EQ(c->num_experts_per_tok, 4);
  EXPECT_EQ(c->max_position_embeddings, 131072);
  EXPECT_EQ(c->rope.type, RopeType::kYarn);
  EXPECT_DOUBLE_EQ(c->rope.factor, 32);
  EXPECT_DOUBLE_EQ(c->rope.beta_fast, 32);
  EXPECT_DOUBLE_EQ(c->rope.beta_slow, 1);
  EXPECT_DOUBLE_EQ(c->rope.original_max_position_embeddings, 4096);
  EXPECT_FALSE(c->rope.truncate);
  EXPECT_EQ(c->layer_window.size(), 24u);
  EXPECT_EQ(c->layer_window[0], 128);
  EXPECT_EQ(c->layer_window[1], 0);
  EXPECT_TRUE(c->attention_bias && c->attention_output_bias);
  EXPECT_DOUBLE_EQ(c->rms_norm_eps, 1e-5);
  EXPECT_THAT(c->ignored_keys, ::testing::IsEmpty());
  // Values keep their checks, under the keys of transformers.
  const auto bad = read(std::string(kGptOssOriginal).replace(std::string(kGptOssOriginal).find("32.0"), 4, "\"32\""), "");
  ASSERT_FALSE(bad.ok());
  EXPECT_THAT(bad.status().message(), HasSubstr("gpt-oss as first published"));
  EXPECT_THAT(bad.status().message(), HasSubstr("factor"));
  // With a model_type it is a file of transformers, whatever else it says.
  EXPECT_FALSE(read(kGptOssOriginal, R"("model_type":"mixtral")").ok());
}

}  // namespace
}  // namespace pointsman
