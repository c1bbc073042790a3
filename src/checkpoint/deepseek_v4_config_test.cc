// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/model_config.h"
#include "support/golden.h"

namespace pointsman {
namespace {

using ::testing::HasSubstr;

Json config_of(const char* folder) {
  auto text = read_text_file(FileSystem::real(), testing::source_path(std::string("tests/golden/") + folder + "/config.json"), 1 << 20);
  EXPECT_TRUE(text.ok());
  return *parse_json(*text);
}

Json without(const Json& object, std::initializer_list<std::string_view> keys) {
  Json out = Json::object();
  for (const auto& [key, value] : object.as_object()) {
    if (std::find(keys.begin(), keys.end(), key) == keys.end()) out.set(key, value);
  }
  return out;
}
Json with(Json object, std::string_view key, const char* value) {
  object.set(key, *parse_json(value));
  return object;
}

void expect_same(const ModelConfig& a, const ModelConfig& b) {
  EXPECT_EQ(a.compressed.layers, b.compressed.layers);
  EXPECT_EQ(a.compressed.sparse_ratio, b.compressed.sparse_ratio);
  EXPECT_EQ(a.compressed.heavy_ratio, b.compressed.heavy_ratio);
  EXPECT_EQ(a.num_hash_layers, b.num_hash_layers);
  EXPECT_EQ(a.rotary_dim, b.rotary_dim);
  for (const auto& [x, y] : {std::pair{&a.rope, &b.rope}, {&a.compressed.rope, &b.compressed.rope}}) {
    EXPECT_EQ(x->type, y->type);
    EXPECT_EQ(x->theta, y->theta);
    EXPECT_EQ(x->factor, y->factor);
    EXPECT_EQ(x->original_max_position_embeddings, y->original_max_position_embeddings);
    EXPECT_EQ(x->attention_factor, y->attention_factor);
  }
}

// The published spelling and that of transformers 5 say the same. A reader of flat keys alone loses YaRN in the second.
TEST(DeepseekV4Config, BothSpellingsAreOneModel) {
  const Json native = config_of("deepseek_v4_native");
  const auto a = normalize_config(native, {});
  ASSERT_TRUE(a.ok()) << a.status().to_string();
  EXPECT_EQ(a->compressed.layers, (std::vector{CompressKind::kNone, CompressKind::kSparse, CompressKind::kHeavy, CompressKind::kSparse}));
  EXPECT_EQ(a->compressed.rope.type, RopeType::kYarn);
  EXPECT_EQ(a->compressed.rope.theta, 160000);
  EXPECT_EQ(a->compressed.rope.attention_factor, 1) << "cos and sin are never scaled";
  EXPECT_EQ(a->rope.type, RopeType::kDefault);
  EXPECT_EQ(a->rope.theta, 10000);

  Json v5 = without(native, {"compress_ratios", "num_hash_layers", "qk_rope_head_dim", "rope_scaling", "rope_theta", "compress_rope_theta"});
  v5 = with(v5, "layer_types", R"(["sliding_attention","compressed_sparse_attention","heavily_compressed_attention","compressed_sparse_attention"])");
  v5 = with(v5, "mlp_layer_types", R"(["hash_moe","moe","moe","moe"])");
  v5 = with(v5, "compress_rates", R"({"compressed_sparse_attention":4,"heavily_compressed_attention":128})");
  v5 = with(v5, "partial_rotary_factor", "0.25");
  v5 = with(v5, "rope_parameters", R"({"main":{"rope_type":"default","rope_theta":10000.0,"partial_rotary_factor":0.25},"compress":{"rope_type":"yarn",
      "rope_theta":160000.0,"factor":16,"beta_fast":32,"beta_slow":1,"original_max_position_embeddings":256,"partial_rotary_factor":0.25}})");
  const auto b = normalize_config(v5, {});
  ASSERT_TRUE(b.ok()) << b.status().to_string();
  expect_same(*a, *b);

  // Some write 1 for "no compression".
  const auto ones = normalize_config(with(native, "compress_ratios", "[1,4,128,4]"), {});
  ASSERT_TRUE(ones.ok());
  expect_same(*a, *ones);
  // Flat keys under the newer name.
  const auto renamed = normalize_config(with(without(native, {"rope_scaling"}), "rope_parameters",
                                             R"({"rope_type":"yarn","factor":16,"beta_fast":32,"beta_slow":1,"original_max_position_embeddings":256})"), {});
  ASSERT_TRUE(renamed.ok()) << renamed.status().to_string();
  expect_same(*a, *renamed);
}

TEST(DeepseekV4Config, WhatIsNotSaidIsTheClassDefault) {
  const Json native = without(config_of("deepseek_v4_native"), {"compress_ratios", "num_hash_layers", "scoring_func", "swiglu_limit", "sliding_window"});
  const auto c = normalize_config(native, {});
  ASSERT_TRUE(c.ok()) << c.status().to_string();
  EXPECT_EQ(c->compressed.layers, (std::vector{CompressKind::kHeavy, CompressKind::kHeavy, CompressKind::kHeavy, CompressKind::kSparse}));
  EXPECT_EQ(c->num_hash_layers, 3);
  EXPECT_EQ(c->swiglu_limit, 10);
  EXPECT_EQ(c->layer_window, std::vector<int64_t>(4, 128));
  EXPECT_EQ(c->router_score, RouterScore::kSqrtSoftplus);
}

TEST(DeepseekV4Config, ContradictionsAndUnknownsAreRefusedByKey) {
  const Json native = config_of("deepseek_v4_native"), base = config_of("deepseek_v4_base");
  const auto refused = [](const Json& config, const char* text) {
    const auto c = normalize_config(config, {});
    ASSERT_FALSE(c.ok()) << text;
    EXPECT_THAT(c.status().message(), HasSubstr(text));
  };
  refused(with(native, "compress_ratios", "[0,4,128]"), "compress_ratios: 3 entries, expected at least num_hidden_layers = 4");
  refused(with(native, "compress_ratios", "[0,4,16,4]"), "compress_ratios[2]: ratio 16");
  refused(with(native, "compress_ratios", R"({"a":1})"), "compress_ratios");
  refused(with(native, "layer_types", R"(["sliding_attention","sliding_attention","sliding_attention","sliding_attention"])"), "layer_types: says other layers");
  refused(with(base, "layer_types", R"(["full_attention","a","a","a","a","a"])"), "layer_types[0]");
  refused(with(base, "mlp_layer_types", R"(["moe","hash_moe","moe","moe","moe","moe"])"), "mlp_layer_types[1]");
  refused(with(base, "num_hash_layers", "2"), "num_hash_layers is 2");
  refused(with(base, "compress_rates", R"({"full_attention":4})"), "compress_rates.full_attention");
  refused(with(base, "rope_parameters", R"({"main":{"rope_type":"default"}})"), "expected both \"main\" and \"compress\"");
  refused(with(base, "rope_scaling", R"({"type":"yarn","factor":4})"), "keep one of them");
  refused(with(base, "qk_rope_head_dim", "16"), "disagree");
  refused(with(native, "qk_rope_head_dim", "7"), "expected an even number");
  refused(with(native, "num_key_value_heads", "2"), "num_key_value_heads 2");
  refused(with(native, "n_shared_experts", "2"), "n_shared_experts 2");
  refused(with(native, "scoring_func", "\"relu\""), "scoring_func \"relu\"");
  refused(with(native, "topk_method", "\"greedy\""), "topk_method \"greedy\"");
  refused(with(native, "o_groups", "3"), "no multiple of o_groups 3");
  refused(with(native, "index_topk", "5000"), "index_topk");
  refused(with(native, "hc_mult", "17"), "hc_mult");
  refused(with(native, "sliding_window", "0"), "sliding_window");
}

}  // namespace
}  // namespace pointsman
