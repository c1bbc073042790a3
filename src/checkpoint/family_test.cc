// SPDX-License-Identifier: Apache-2.0
//
// What each family's config means: defaults of its transformers class, and the rules that differ from its neighbours'.
#include "checkpoint/family.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "checkpoint/model_config.h"

namespace pointsman {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// The keys that have no default, then `changes` over them; null in `changes` stays null.
Json config_of(const std::string& model_type, const std::string& changes = "{}") {
  Json config = *parse_json(R"({"hidden_size":64,"num_hidden_layers":4,"num_attention_heads":32,"vocab_size":100,
    "intermediate_size":96})");
  config.set("model_type", model_type);
  if (model_type != "llama" && model_type != "qwen2" && model_type != "qwen3") {
    config.set("num_experts", 8);
    config.set("num_experts_per_tok", 2);
  }
  if (model_type == "qwen2_moe" || model_type == "qwen3_moe" || model_type == "glm4_moe") config.set("moe_intermediate_size", 24);
  if (model_type == "qwen2_moe") config.set("shared_expert_intermediate_size", 40);
  const Json merged = *parse_json(changes);
  for (const auto& [key, value] : merged.as_object()) config.set(key, value);
  return config;
}
Result<ModelConfig> normalize(const Json& config) { return normalize_config(config, Json()); }
ModelConfig good(const std::string& model_type, const std::string& changes = "{}") {
  Result<ModelConfig> c = normalize(config_of(model_type, changes));
  EXPECT_TRUE(c.ok()) << model_type << " " << changes << ": " << c.status().to_string();
  return c.ok() ? *c : ModelConfig();
}
std::string refusal(const std::string& model_type, const std::string& changes) {
  const Result<ModelConfig> c = normalize(config_of(model_type, changes));
  EXPECT_FALSE(c.ok()) << model_type << " " << changes;
  return c.ok() ? "" : c.status().message();
}
std::string source_of(const ModelConfig& c, std::string_view key) {
  for (const auto& o : c.origins) {
    if (o.key == key) return o.source;
  }
  return "(no origin)";
}

TEST(Family, ListIsSorted) {
  EXPECT_TRUE(std::is_sorted(families().begin(), families().end(),
                             [](const Family& a, const Family& b) { return a.model_type < b.model_type; }));
}

TEST(Family, DefaultsAreThoseOfTheTransformersClasses) {
  struct Row {
    const char* model_type;
    int64_t kv_heads, head_dim, max_position;
    double eps, theta;
    bool norm_topk;
    int64_t rotary_dim;
  };
  for (const Row& row : {Row{"glm4_moe", 8, 2, 131072, 1e-5, 1e4, true, 0},
                         Row{"llama", 32, 2, 2048, 1e-6, 1e4, false, 2},
                         Row{"minimax_m2", 8, 128, 196608, 1e-6, 5e6, true, 128},
                         Row{"mixtral", 8, 2, 131072, 1e-5, 1e6, true, 2},
                         Row{"olmoe", 32, 2, 4096, 1e-5, 1e4, false, 2},
                         Row{"qwen2", 32, 2, 32768, 1e-6, 1e4, false, 2},
                         Row{"qwen2_moe", 16, 2, 32768, 1e-6, 1e4, false, 2},
                         Row{"qwen3", 32, 128, 32768, 1e-6, 1e4, false, 128},
                         Row{"qwen3_moe", 4, 2, 32768, 1e-6, 1e4, false, 2}}) {
    const bool halves = row.rotary_dim == 0;  // half of a derived head_dim of 2 turns nothing: give it 4
    const ModelConfig c = good(row.model_type, halves ? R"({"head_dim":4})" : "{}");
    EXPECT_EQ(c.num_key_value_heads, row.kv_heads) << row.model_type;
    EXPECT_EQ(c.head_dim, halves ? 4 : row.head_dim) << row.model_type;
    EXPECT_EQ(c.max_position_embeddings, row.max_position) << row.model_type;
    EXPECT_EQ(c.rms_norm_eps, row.eps) << row.model_type;
    EXPECT_EQ(c.rope.theta, row.theta) << row.model_type;
    EXPECT_EQ(c.norm_topk_prob, row.norm_topk) << row.model_type;
    EXPECT_EQ(c.rotary_dim, halves ? 2 : row.rotary_dim) << row.model_type;
    EXPECT_FALSE(c.tie_word_embeddings) << row.model_type;
    EXPECT_EQ(c.clip_qkv, 0) << row.model_type;
  }
}

TEST(Family, EachReadsItsOwnKeyForTheWidthOfAnExpert) {
  for (const char* type : {"mixtral", "olmoe", "minimax_m2"}) {
    const ModelConfig c = good(type, R"({"moe_intermediate_size":7})");
    EXPECT_EQ(c.moe_intermediate_size, 96) << type;
    EXPECT_EQ(c.intermediate_size, 0) << type << ": no dense layer";
    EXPECT_THAT(c.ignored_keys, ElementsAre("moe_intermediate_size")) << type;
  }
  for (const char* type : {"qwen2_moe", "qwen3_moe"}) EXPECT_EQ(good(type).moe_intermediate_size, 24) << type;
  EXPECT_THAT(refusal("mixtral", R"({"intermediate_size":null})"), HasSubstr("\"intermediate_size\" is missing"));
}

TEST(Family, MixtralAndMinimaxAlwaysNormaliseWhateverTheFileSays) {
  for (const char* type : {"mixtral", "minimax_m2"}) {
    const ModelConfig c = good(type, R"({"norm_topk_prob":false})");
    EXPECT_TRUE(c.norm_topk_prob) << type;
    EXPECT_THAT(c.ignored_keys, ElementsAre("norm_topk_prob")) << type;
  }
  for (const char* type : {"olmoe", "qwen2_moe", "qwen3_moe"}) {
    EXPECT_FALSE(good(type).norm_topk_prob) << type;
    EXPECT_TRUE(good(type, R"({"norm_topk_prob":true})").norm_topk_prob) << type;
  }
  EXPECT_FALSE(good("glm4_moe", R"({"head_dim":4,"norm_topk_prob":false})").norm_topk_prob);
}

TEST(Family, BiasesOfTheProjections) {
  struct Row {
    const char* model_type;
    const char* changes;
    bool qkv, o, mlp;
  };
  for (const Row& row : {Row{"llama", R"({"attention_bias":true,"mlp_bias":true})", true, true, true},
                         Row{"llama", "{}", false, false, false},
                         Row{"mixtral", R"({"attention_bias":true})", false, false, false},
                         Row{"olmoe", R"({"attention_bias":true})", true, true, false},
                         Row{"qwen2", "{}", true, false, false},
                         Row{"qwen2", R"({"attention_bias":false,"qkv_bias":false})", true, false, false},
                         Row{"qwen2_moe", "{}", true, false, false},
                         Row{"qwen2_moe", R"({"qkv_bias":false})", false, false, false},
                         Row{"glm4_moe", R"({"head_dim":4,"attention_bias":true})", true, false, false},
                         Row{"qwen3", R"({"attention_bias":true})", true, true, false},
                         Row{"qwen3_moe", R"({"attention_bias":true})", true, true, false}}) {
    const ModelConfig c = good(row.model_type, row.changes);
    EXPECT_EQ(c.attention_bias, row.qkv) << row.model_type << row.changes;
    EXPECT_EQ(c.attention_output_bias, row.o) << row.model_type << row.changes;
    EXPECT_EQ(c.mlp_bias, row.mlp) << row.model_type << row.changes;
  }
}

TEST(Family, Windows) {
  const auto windows = [](const char* type, const char* changes) { return good(type, changes).layer_window; };
  const auto none = ElementsAre(0, 0, 0, 0);
  // mixtral: set means every layer, with no switch.
  EXPECT_THAT(windows("mixtral", R"({"sliding_window":8})"), ElementsAre(8, 8, 8, 8));
  EXPECT_THAT(windows("mixtral", R"({"sliding_window":8,"use_sliding_window":false})"), ElementsAre(8, 8, 8, 8));
  EXPECT_THAT(windows("mixtral", R"({"sliding_window":null})"), none);
  EXPECT_THAT(windows("mixtral", "{}"), none);
  EXPECT_THAT(refusal("mixtral", R"({"sliding_window":0})"), HasSubstr("sliding_window: 0 is out of range"));
  // qwen2: from max_window_layers on; qwen2_moe: the even layers below it.
  constexpr const char* on = R"({"use_sliding_window":true,"sliding_window":8,"max_window_layers":3})";
  EXPECT_THAT(windows("qwen2", on), ElementsAre(0, 0, 0, 8));
  EXPECT_THAT(windows("qwen2_moe", on), ElementsAre(8, 0, 8, 0));
  EXPECT_THAT(windows("qwen3_moe", on), ElementsAre(8, 8, 8, 8));
  EXPECT_THAT(windows("qwen2_moe", R"({"use_sliding_window":true,"sliding_window":8})"), ElementsAre(8, 0, 8, 0));
  EXPECT_THAT(windows("qwen2", R"({"use_sliding_window":true,"sliding_window":8})"), none);
  for (const char* type : {"qwen2", "qwen2_moe"}) {
    EXPECT_THAT(windows(type, R"({"sliding_window":8,"max_window_layers":0})"), none) << type;
    EXPECT_THAT(windows(type, R"({"use_sliding_window":true,"sliding_window":8,
      "layer_types":["full_attention","sliding_attention","sliding_attention","full_attention"]})"),
                ElementsAre(0, 8, 8, 0))
        << type;
  }
  // Classes without a window: the keys say nothing, and are listed.
  for (const char* type : {"llama", "olmoe", "minimax_m2"}) {
    const ModelConfig c = good(type, R"({"use_sliding_window":true,"sliding_window":8})");
    EXPECT_THAT(c.layer_window, none) << type;
    EXPECT_THAT(c.ignored_keys, ElementsAre("use_sliding_window", "sliding_window")) << type;
  }
}

TEST(Family, WhichLayersAreMoe) {
  for (const char* type : {"mixtral", "olmoe", "minimax_m2"}) {
    const ModelConfig c = good(type, R"({"decoder_sparse_step":2,"mlp_only_layers":[0]})");
    EXPECT_THAT(c.layer_is_moe, ElementsAre(true, true, true, true)) << type << ": no such keys";
    EXPECT_THAT(refusal(type, R"({"num_experts":0})"), HasSubstr("num_experts: 0 is out of range"));
  }
  EXPECT_THAT(good("qwen2_moe", R"({"decoder_sparse_step":2})").layer_is_moe, ElementsAre(false, true, false, true));
  EXPECT_THAT(good("glm4_moe", R"({"head_dim":4})").layer_is_moe, ElementsAre(false, true, true, true));
  EXPECT_THAT(good("glm4_moe", R"({"head_dim":4,"first_k_dense_replace":3})").layer_is_moe,
              ElementsAre(false, false, false, true));
  for (const char* type : {"llama", "qwen2", "qwen3"}) {
    EXPECT_THAT(good(type).layer_is_moe, ElementsAre(false, false, false, false)) << type;
    EXPECT_EQ(good(type).num_experts, 0) << type;
  }
}

TEST(Family, SharedExperts) {
  ModelConfig c = good("qwen2_moe");
  EXPECT_EQ(c.shared_expert_intermediate_size, 40);
  EXPECT_TRUE(c.shared_expert_is_gated);
  EXPECT_THAT(refusal("qwen2_moe", R"({"shared_expert_intermediate_size":null})"),
              HasSubstr("\"shared_expert_intermediate_size\" is missing"));
  c = good("glm4_moe", R"({"head_dim":4,"n_shared_experts":2})");
  EXPECT_EQ(c.shared_expert_intermediate_size, 48);
  EXPECT_FALSE(c.shared_expert_is_gated);
  EXPECT_EQ(good("glm4_moe", R"({"head_dim":4,"n_shared_experts":0})").shared_expert_intermediate_size, 0);
  EXPECT_THAT(refusal("glm4_moe", R"({"head_dim":4,"n_shared_experts":1024,"moe_intermediate_size":2048})"),
              HasSubstr("1024 shared experts of width 2048"));
  EXPECT_EQ(good("mixtral").shared_expert_intermediate_size, 0);
}

TEST(Family, ClipOfOlmoe) {
  EXPECT_EQ(good("olmoe", R"({"clip_qkv":8.5})").clip_qkv, 8.5);
  EXPECT_EQ(good("olmoe", R"({"clip_qkv":null})").clip_qkv, 0);
  EXPECT_THAT(refusal("olmoe", R"({"clip_qkv":0})"), AllOf(HasSubstr("clip_qkv"), HasSubstr("positive number or null")));
  EXPECT_THAT(refusal("olmoe", R"({"clip_qkv":-1})"), HasSubstr("clip_qkv: -1"));
  EXPECT_THAT(good("llama", R"({"clip_qkv":8.5})").ignored_keys, ElementsAre("clip_qkv"));
}

TEST(Family, PartialRotation) {
  EXPECT_EQ(good("glm4_moe", R"({"head_dim":16})").rotary_dim, 8);
  EXPECT_EQ(good("glm4_moe", R"({"head_dim":16,"partial_rotary_factor":0.25})").rotary_dim, 4);
  EXPECT_EQ(good("glm4_moe", R"({"head_dim":16,"rope_parameters":{"rope_type":"default","rope_theta":1e4,"partial_rotary_factor":1.0}})")
                .rotary_dim,
            16);
  EXPECT_THAT(refusal("glm4_moe", R"({"head_dim":10})"), HasSubstr("makes 5 rotating channels"));
  ModelConfig c = good("minimax_m2", R"({"rotary_dim":64})");
  EXPECT_EQ(c.rotary_dim, 64);
  EXPECT_EQ(source_of(c, "partial_rotary_factor"), "derived: rotary_dim / head_dim");
  EXPECT_EQ(good("minimax_m2", R"({"rotary_dim":64,"partial_rotary_factor":0.25})").rotary_dim, 32);
  EXPECT_THAT(refusal("minimax_m2", R"({"rotary_dim":129})"), HasSubstr("rotary_dim: 129"));
  for (const char* type : {"llama", "mixtral", "olmoe", "qwen2", "qwen2_moe"}) {
    EXPECT_THAT(refusal(type, R"({"head_dim":16,"partial_rotary_factor":0.5})"),
                AllOf(HasSubstr("partial_rotary_factor 0.5 is not supported"), HasSubstr(type)));
  }
}

TEST(Family, GroupsAndScaleOfGlm) {
  const ModelConfig c =
      good("glm4_moe", R"({"head_dim":4,"n_group":4,"topk_group":2,"routed_scaling_factor":2.5,"use_qk_norm":true,"num_nextn_predict_layers":2})");
  EXPECT_EQ(c.n_group, 4);
  EXPECT_EQ(c.topk_group, 2);
  EXPECT_EQ(c.routed_scaling_factor, 2.5);
  EXPECT_TRUE(c.use_qk_norm);
  EXPECT_EQ(c.num_mtp_layers, 2);
  EXPECT_EQ(good("mixtral", R"({"routed_scaling_factor":2.5})").routed_scaling_factor, 1);
}

TEST(Family, UnknownModelTypeNamesAllThatAreKnown) {
  const std::string says = refusal("bert", "{}");
  for (const Family& f : families()) EXPECT_THAT(says, HasSubstr(f.model_type)) << f.model_type;
}

}  // namespace
}  // namespace pointsman
