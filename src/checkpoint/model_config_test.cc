// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/model_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "checkpoint/config_reader.h"
#include "support/golden.h"
#include "support/temp_dir.h"

namespace pointsman {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A small qwen3_moe config, with changes: {"key": value} merged over it; a value of "<absent>" removes the key.
Json moe_config(const std::string& changes = "{}") {
  Json config = *parse_json(
      R"({"model_type":"qwen3_moe","hidden_size":64,"num_hidden_layers":4,"num_attention_heads":4,"num_key_value_heads":2,
    "head_dim":32,"vocab_size":100,"intermediate_size":96,"num_experts":8,"num_experts_per_tok":2,"moe_intermediate_size":24,"norm_topk_prob":true})");
  const Json merged = *parse_json(changes);
  for (const auto& [key, value] : merged.as_object()) {
    if (value.is_string() && value.as_string() == "<absent>") {
      std::erase_if(config.as_object(), [&key = key](const Json::Member& m) { return m.first == key; });
    } else {
      config.set(key, value);
    }
  }
  return config;
}
Json dense_config(const std::string& changes = "{}") {
  Json config = moe_config(changes);
  config.set("model_type", "qwen3");
  return config;
}
Result<ModelConfig> normalize(const Json& config, const std::string& generation = "null") {
  return normalize_config(config, *parse_json(generation));
}
ModelConfig good(const Json& config, const std::string& generation = "null") {
  Result<ModelConfig> c = normalize(config, generation);
  EXPECT_TRUE(c.ok()) << c.status().to_string();
  return c.ok() ? *c : ModelConfig();
}
std::string source_of(const ModelConfig& c, std::string_view key) {
  for (const auto& o : c.origins) {
    if (o.key == key) return o.source;
  }
  return "(no origin)";
}

TEST(ModelConfig, EveryValueHasAnOrigin) {
  const ModelConfig c =
      good(moe_config(R"({"rope_parameters":{"rope_theta":1e6,"rope_type":"default"}})"), R"({"eos_token_id":[3,4]})");
  EXPECT_EQ(c.hidden_size, 64);
  EXPECT_EQ(c.num_experts, 8);
  EXPECT_TRUE(c.norm_topk_prob);
  EXPECT_THAT(c.layer_is_moe, ElementsAre(true, true, true, true));
  EXPECT_EQ(c.intermediate_size, 0);  // no dense layer
  EXPECT_EQ(source_of(c, "hidden_size"), "config.json: hidden_size");
  EXPECT_EQ(source_of(c, "rms_norm_eps"), "default of qwen3_moe");
  EXPECT_EQ(source_of(c, "rope.rope_theta"), "config.json: rope_parameters.rope_theta");
  EXPECT_EQ(source_of(c, "eos_token_id"), "generation_config.json: eos_token_id");
  EXPECT_THAT(c.warnings, IsEmpty());
  EXPECT_THAT(c.ignored_keys, IsEmpty());
}

TEST(ModelConfig, DefaultsAreThoseOfTheFamily) {
  const std::string absent = R"({"head_dim":"<absent>","num_key_value_heads":"<absent>","norm_topk_prob":"<absent>"})";
  ModelConfig c = good(moe_config(absent));
  EXPECT_EQ(c.head_dim, 16);  // hidden_size / num_attention_heads
  EXPECT_EQ(source_of(c, "head_dim"), "derived: hidden_size / num_attention_heads");
  EXPECT_EQ(c.num_key_value_heads, 4);
  EXPECT_FALSE(c.norm_topk_prob);
  EXPECT_EQ(c.max_position_embeddings, 32768);
  EXPECT_EQ(c.rms_norm_eps, 1e-6);
  EXPECT_EQ(c.rope.theta, 10000);
  EXPECT_FALSE(c.tie_word_embeddings);
  EXPECT_EQ(good(dense_config(R"({"head_dim":"<absent>"})")).head_dim, 128);
  // 32 of the class, which these 4 heads cannot have.
  EXPECT_THAT(normalize(dense_config(R"({"num_key_value_heads":"<absent>"})")).status().message(),
              HasSubstr("num_key_value_heads 32"));
}

TEST(ModelConfig, NullMeansNotSaid) {
  ModelConfig c =
      good(moe_config(R"({"head_dim":null,"rope_scaling":null,"rope_parameters":null,"quantization_config":null,"auto_map":null,
    "layer_types":null,"mlp_only_layers":null,"text_config":null,"eos_token_id":null,"pad_token_id":null,"rms_norm_eps":null,"sliding_window":null,
    "tie_word_embeddings":null,"dtype":null})"));
  EXPECT_EQ(c.head_dim, 16);
  EXPECT_EQ(c.rms_norm_eps, 1e-6);
  EXPECT_THAT(c.eos_token_ids, IsEmpty());
  // The one null that says something: one key/value head per head.
  c = good(moe_config(R"({"num_key_value_heads":null})"));
  EXPECT_EQ(c.num_key_value_heads, 4);
  EXPECT_EQ(source_of(c, "num_key_value_heads"), "derived: num_attention_heads");
}

TEST(ModelConfig, AliasesOfTheExpertCount) {
  for (const char* key : {"num_experts", "num_local_experts", "n_routed_experts"}) {
    Json config = moe_config(R"({"num_experts":"<absent>"})");
    config.set(key, 8);
    EXPECT_EQ(good(config).num_experts, 8) << key;
  }
  EXPECT_EQ(good(moe_config(R"({"num_local_experts":8})")).num_experts, 8);
  const Status s = normalize(moe_config(R"({"num_local_experts":4})")).status();
  EXPECT_THAT(s.message(), AllOf(HasSubstr("num_experts is 8"), HasSubstr("num_local_experts is 4")));
}

TEST(ModelConfig, ValuesInsideTextConfigAreFound) {
  ModelConfig c = good(moe_config(R"({"hidden_size":"<absent>","text_config":{"hidden_size":64,"odd_key":1}})"));
  EXPECT_EQ(source_of(c, "hidden_size"), "config.json: text_config.hidden_size");
  EXPECT_THAT(c.ignored_keys, ElementsAre("text_config.odd_key"));
  c = good(moe_config(R"({"text_config":{"hidden_size":128}})"));
  EXPECT_EQ(c.hidden_size, 64);
  ASSERT_EQ(c.warnings.size(), 1u);
  EXPECT_THAT(c.warnings[0], AllOf(HasSubstr("hidden_size is 64"), HasSubstr("text_config says 128")));
  EXPECT_THAT(normalize(moe_config(R"({"text_config":[]})")).status().message(), HasSubstr("text_config: expected an object"));
}

struct BadConfig {
  const char* changes;
  StatusCode code;
  const char* says;
};

TEST(ModelConfig, WrongTypesAndRangesAreRefusedByKeyAndValue) {
  constexpr StatusCode corrupt = StatusCode::kCorrupt, invalid = StatusCode::kInvalidArgument,
                       unsupported = StatusCode::kUnsupported;
  const BadConfig cases[] = {
      {R"({"model_type":"<absent>"})", corrupt, "\"model_type\" is missing; this build knows deepseek_v3, deepseek_v4, glm4_moe, gpt_oss, kimi_k2, llama, "},
      {R"({"model_type":7})", corrupt, "model_type: expected a string, found integer 7"},
      {R"({"model_type":"gemma"})", unsupported, "model_type \"gemma\" is not supported"},
      {R"({"hidden_size":"<absent>"})", corrupt, "key \"hidden_size\" is missing"},
      {R"({"hidden_size":null})", corrupt, "key \"hidden_size\" is missing"},
      {R"({"hidden_size":"64"})", corrupt, "hidden_size: expected an integer, found string \"64\""},
      {R"({"hidden_size":64.5})", corrupt, "hidden_size: expected an integer, found number 64.5"},
      {R"({"hidden_size":true})", corrupt, "hidden_size: expected an integer, found boolean true"},
      {R"({"hidden_size":[64]})", corrupt, "hidden_size: expected an integer, found array [64]"},
      {R"({"hidden_size":0})", invalid, "hidden_size: 0 is out of range, expected 1 to 1048576"},
      {R"({"hidden_size":-64})", invalid, "hidden_size: -64 is out of range"},
      {R"({"hidden_size":1048577})", invalid, "hidden_size: 1048577 is out of range"},
      {R"({"hidden_size":18446744073709551616})", invalid, "hidden_size: 18446744073709551616.0 is out of range"},
      {R"({"hidden_size":1e300})", invalid, "hidden_size: 1e+300 is out of range"},
      {R"({"num_hidden_layers":0})", invalid, "num_hidden_layers: 0"},
      {R"({"num_hidden_layers":4097})", invalid, "num_hidden_layers: 4097 is out of range, expected 1 to 4096"},
      {R"({"num_hidden_layers":9223372036854775807})", invalid, "num_hidden_layers: 9223372036854775807"},
      {R"({"num_attention_heads":0})", invalid, "num_attention_heads: 0"},
      {R"({"num_attention_heads":5})", invalid, "num_attention_heads 5 is no multiple of num_key_value_heads 2"},
      {R"({"num_key_value_heads":0})", invalid, "num_key_value_heads: 0"},
      {R"({"num_key_value_heads":8})", invalid, "no multiple of num_key_value_heads 8"},
      {R"({"head_dim":0})", invalid, "head_dim: 0"},
      {R"({"head_dim":31})", invalid, "head_dim 31: expected an even number up to 512"},
      {R"({"head_dim":514})", invalid, "head_dim: 514"},
      {R"({"head_dim":null,"num_attention_heads":64})", invalid, "head_dim 1: expected an even number"},
      {R"({"head_dim":null,"hidden_size":2,"num_attention_heads":4})", invalid, "head_dim 0: expected an even number"},
      {R"({"head_dim":null,"hidden_size":8192})", invalid, "head_dim 2048: expected an even number"},
      {R"({"vocab_size":0})", invalid, "vocab_size: 0"},
      {R"({"max_position_embeddings":0})", invalid, "max_position_embeddings: 0"},
      {R"({"rms_norm_eps":-1})", invalid, "rms_norm_eps: -1"},
      {R"({"rms_norm_eps":"1e-6"})", corrupt, "rms_norm_eps: expected a number"},
      {R"({"tie_word_embeddings":1})", corrupt, "tie_word_embeddings: expected true or false, found integer 1"},
      {R"({"attention_bias":"false"})", corrupt, "attention_bias: expected true or false"},
      {R"({"norm_topk_prob":0})", corrupt, "norm_topk_prob: expected true or false, found integer 0"},
      {R"({"hidden_act":"gelu"})", unsupported, "hidden_act \"gelu\""},
      {R"({"hidden_act":1})", corrupt, "hidden_act: expected a string"},
      {R"({"num_experts":"<absent>"})", corrupt, "key \"num_experts\" is missing"},
      {R"({"num_experts":-1})", invalid, "num_experts: -1"},
      {R"({"num_experts":4097})", invalid, "num_experts: 4097"},
      {R"({"num_experts_per_tok":0})", invalid, "num_experts_per_tok: 0"},
      {R"({"num_experts_per_tok":9})", invalid, "num_experts_per_tok 9 is more than num_experts 8"},
      {R"({"num_experts_per_tok":65,"num_experts":128})", invalid, "num_experts_per_tok: 65 is out of range, expected 1 to 64"},
      {R"({"moe_intermediate_size":0})", invalid, "moe_intermediate_size: 0"},
      {R"({"decoder_sparse_step":0})", invalid, "decoder_sparse_step: 0"},
      {R"({"decoder_sparse_step":2,"intermediate_size":"<absent>"})", corrupt, "key \"intermediate_size\" is missing"},
      {R"({"mlp_only_layers":1})", corrupt, "mlp_only_layers: expected a list"},
      {R"({"mlp_only_layers":[-1]})", invalid, "mlp_only_layers: -1"},
      {R"({"mlp_only_layers":["1"]})", corrupt, "mlp_only_layers: expected an integer"},
      {R"({"quantization_config":{"quant_method":"gptq"}})", unsupported,
       "quantization_config: quant_method \"gptq\" is not supported; known are fp8, mxfp4 and mxfp8"},
      {R"({"quantization_config":{"weight_block_size":[128,128]}})", unsupported, "quant_method (not said)"},
      {R"({"quantization_config":"fp8"})", corrupt, "quantization_config: expected an object"},
      {R"({"quantization_config":{"quant_method":"fp8","fmt":"e5m2"}})", unsupported, "fmt: \"e5m2\""},
      {R"({"quantization_config":{"quant_method":"fp8","weight_block_size":[128]}})", corrupt, "weight_block_size"},
      {R"({"quantization_config":{"quant_method":"fp8","weight_block_size":[0,128]}})", invalid, "weight_block_size[0]: 0"},
      {R"({"text_config":{"quantization_config":{"quant_method":"awq"}}})", unsupported,
       "text_config.quantization_config: quant_method \"awq\""},
      {R"({"compression_config":{"quant_method":"compressed-tensors"}})", unsupported, "compressed-tensors"},
      {R"({"eos_token_id":"2"})", corrupt, "eos_token_id: expected an integer"},
      {R"({"eos_token_id":[2,null]})", corrupt, "eos_token_id: expected an integer"},
      {R"({"eos_token_id":4294967296})", invalid, "eos_token_id: 4294967296"},
      {R"({"bos_token_id":[1,2]})", invalid, "bos_token_id: 2 token ids, expected one"},
      {R"({"use_sliding_window":true,"sliding_window":0})", invalid, "sliding_window: 0"},
      {R"({"use_sliding_window":1})", corrupt, "use_sliding_window: expected true or false"},
      {R"({"layer_types":["full_attention"]})", corrupt, "layer_types: 1 layer types, expected num_hidden_layers = 4"},
      {R"({"layer_types":"full_attention"})", corrupt, "layer_types: expected a list"},
      {R"({"layer_types":["full_attention","full_attention","linear_attention","full_attention"]})", unsupported,
       "layer_types[2]: \"linear_attention\""},
      {R"({"sliding_window":4,"layer_types":["full_attention","sliding_attention","full_attention","full_attention"]})",
       invalid, "layer_types[1]: \"sliding_attention\", but use_sliding_window is not true"},
  };
  for (const BadConfig& b : cases) {
    const Result<ModelConfig> c = normalize(moe_config(b.changes));
    ASSERT_FALSE(c.ok()) << b.changes;
    EXPECT_EQ(c.status().code(), b.code) << b.changes << " " << c.status().to_string();
    EXPECT_THAT(c.status().message(), AllOf(HasSubstr("config.json"), HasSubstr(b.says))) << b.changes;
  }
}

TEST(ModelConfig, AWholeNumberWrittenAsAFloatIsAnInteger) {
  EXPECT_EQ(good(moe_config(R"({"hidden_size":64.0})")).hidden_size, 64);
}

TEST(ModelConfig, NoObjectNoConfig) {
  for (const char* text : {"null", "[]", "1", "\"x\""})
    EXPECT_EQ(normalize(*parse_json(text)).status().code(), StatusCode::kCorrupt) << text;
  EXPECT_EQ(normalize(moe_config(), "[]").status().code(), StatusCode::kCorrupt);
}

TEST(ModelConfig, AutoMapIsAWarning) {
  const ModelConfig c = good(moe_config(R"({"auto_map":{"AutoModelForCausalLM":"evil.Model"}})"));
  ASSERT_EQ(c.warnings.size(), 1u);
  EXPECT_THAT(c.warnings[0], AllOf(HasSubstr("auto_map"), HasSubstr("nothing from a checkpoint is executed")));
}

TEST(ModelConfig, DtypeInBothSpellings) {
  EXPECT_EQ(good(moe_config(R"({"torch_dtype":"bfloat16"})")).torch_dtype, "bfloat16");
  EXPECT_EQ(good(moe_config(R"({"dtype":"float16"})")).torch_dtype, "float16");
  EXPECT_EQ(good(moe_config()).torch_dtype, "");
}

TEST(ModelConfig, UnknownKeysAreListed) {
  EXPECT_THAT(good(moe_config(R"({"mystery":1,"use_cache":true})")).ignored_keys, ElementsAre("mystery"));
}

TEST(ModelConfig, SparseLayers) {
  EXPECT_THAT(good(moe_config(R"({"decoder_sparse_step":2})")).layer_is_moe, ElementsAre(false, true, false, true));
  EXPECT_THAT(good(moe_config(R"({"mlp_only_layers":[0,3,77]})")).layer_is_moe, ElementsAre(false, true, true, false));
  const ModelConfig both = good(moe_config(R"({"decoder_sparse_step":2,"mlp_only_layers":[1]})"));
  EXPECT_THAT(both.layer_is_moe, ElementsAre(false, false, false, true));
  EXPECT_EQ(both.intermediate_size, 96);
  // No experts at all: a dense model under the MoE name.
  const ModelConfig none = good(moe_config(R"({"num_experts":0})"));
  EXPECT_THAT(none.layer_is_moe, ElementsAre(false, false, false, false));
  EXPECT_EQ(good(dense_config()).num_experts, 0);
}

TEST(ModelConfig, SlidingWindows) {
  const auto moe = [](const char* changes) { return good(moe_config(changes)).layer_window; };
  const auto dense = [](const char* changes) { return good(dense_config(changes)).layer_window; };
  // Off: whatever the window says.
  EXPECT_THAT(moe(R"({"sliding_window":8})"), ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(moe(R"({"sliding_window":0})"), ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(moe(R"({"use_sliding_window":false,"sliding_window":8,"max_window_layers":2})"), ElementsAre(0, 0, 0, 0));
  // qwen3_moe: every layer; max_window_layers is no key of it.
  EXPECT_THAT(moe(R"({"use_sliding_window":true,"sliding_window":8,"max_window_layers":2})"), ElementsAre(8, 8, 8, 8));
  EXPECT_THAT(moe(R"({"use_sliding_window":true})"), ElementsAre(4096, 4096, 4096, 4096));
  // An explicit null is no window; absence is the default.
  EXPECT_THAT(moe(R"({"use_sliding_window":true,"sliding_window":null})"), ElementsAre(0, 0, 0, 0));
  // qwen3: from max_window_layers on (28 unless said), or as layer_types say.
  EXPECT_THAT(dense(R"({"use_sliding_window":true,"sliding_window":8,"max_window_layers":3})"), ElementsAre(0, 0, 0, 8));
  EXPECT_THAT(dense(R"({"use_sliding_window":true,"sliding_window":8})"), ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(dense(R"({"use_sliding_window":true,"sliding_window":8,"max_window_layers":0,
    "layer_types":["full_attention","sliding_attention","full_attention","full_attention"]})"),
              ElementsAre(0, 8, 0, 0));
  // transformers ignores layer_types for qwen3_moe: so do we, and say so.
  const ModelConfig c = good(moe_config(R"({"use_sliding_window":true,"sliding_window":8,
    "layer_types":["full_attention","sliding_attention","full_attention","full_attention"]})"));
  EXPECT_THAT(c.layer_window, ElementsAre(8, 8, 8, 8));
  ASSERT_EQ(c.warnings.size(), 1u);
  EXPECT_THAT(c.warnings[0], HasSubstr("layer_types: ignored"));
}

TEST(ModelConfig, TokenIds) {
  EXPECT_THAT(good(moe_config(R"({"eos_token_id":2})")).eos_token_ids, ElementsAre(2));
  EXPECT_THAT(good(moe_config(R"({"eos_token_id":[2,5]})")).eos_token_ids, ElementsAre(2, 5));
  EXPECT_THAT(good(moe_config(R"({"eos_token_id":2})"), R"({"eos_token_id":[7,8]})").eos_token_ids, ElementsAre(7, 8));
  EXPECT_THAT(good(moe_config(R"({"eos_token_id":2})"), R"({"eos_token_id":null})").eos_token_ids, ElementsAre(2));
  EXPECT_THAT(good(moe_config(R"({"eos_token_id":-1})")).eos_token_ids, IsEmpty());
  const ModelConfig c = good(moe_config(R"({"bos_token_id":1,"pad_token_id":0,"eos_token_id":100})"));
  EXPECT_EQ(c.bos_token_id, 1);
  EXPECT_EQ(c.pad_token_id, 0);
  EXPECT_EQ(good(moe_config()).bos_token_id, -1);
  ASSERT_EQ(c.warnings.size(), 1u);
  EXPECT_THAT(c.warnings[0], HasSubstr("eos_token_id 100 is beyond vocab_size 100"));
}

TEST(ModelConfig, FilesAreReadAndNamed) {
  const testing::TempDir dir;
  EXPECT_EQ(read_model_config(FileSystem::real(), dir.path()).status().code(), StatusCode::kNotFound);
  dir.write("config.json", moe_config().dump());
  EXPECT_TRUE(read_model_config(FileSystem::real(), dir.path()).ok());
  dir.write("generation_config.json", R"({"eos_token_id":)");
  Status s = read_model_config(FileSystem::real(), dir.path()).status();
  EXPECT_EQ(s.code(), StatusCode::kCorrupt);
  EXPECT_THAT(s.message(), HasSubstr(dir.file("generation_config.json")));
  std::filesystem::remove(dir.file("generation_config.json"));
  for (const std::string text : {"", "{", "version https://git-lfs.github.com/spec/v1\noid", R"({"a":1,"a":2})"}) {
    dir.write("config.json", text);
    s = read_model_config(FileSystem::real(), dir.path()).status();
    EXPECT_EQ(s.code(), StatusCode::kCorrupt) << text;
    EXPECT_THAT(s.message(), HasSubstr(dir.file("config.json"))) << text;
  }
  dir.write("config.json", moe_config(R"({"hidden_size":0})").dump());
  s = read_model_config(FileSystem::real(), dir.path()).status();
  EXPECT_THAT(s.message(), AllOf(HasSubstr(dir.path()), HasSubstr("config.json: hidden_size")));
}

TEST(ModelConfig, EveryGoldenConfigIsReadWithNothingIgnored) {
  for (const std::string& folder : testing::golden_folders("")) {
    const auto c = read_model_config(FileSystem::real(), folder);
    ASSERT_TRUE(c.ok()) << c.status().to_string();
    EXPECT_THAT(c->ignored_keys, IsEmpty()) << folder;
    EXPECT_THAT(c->warnings, IsEmpty()) << folder;
  }
}

TEST(GenerationDefaults, AreThoseOfTransformersUnlessSaid) {
  const GenerationDefaults none = *normalize_generation_defaults(Json());
  EXPECT_FALSE(none.do_sample);
  EXPECT_EQ(none.temperature, 1.0);
  EXPECT_EQ(none.top_k, 50);
  const auto d = normalize_generation_defaults(*parse_json(
      R"({"do_sample":true,"temperature":0.6,"top_k":20,"top_p":0.95,"min_p":null,"repetition_penalty":1,"transformers_version":"4.51.0","eos_token_id":[1]})"));
  ASSERT_TRUE(d.ok());
  EXPECT_TRUE(d->do_sample);
  EXPECT_EQ(d->temperature, 0.6);
  EXPECT_EQ(d->top_k, 20);
  EXPECT_EQ(d->top_p, 0.95);
  EXPECT_EQ(d->min_p, 0);
  EXPECT_EQ(d->repetition_penalty, 1);
}

TEST(GenerationDefaults, AreRangeChecked) {
  for (const char* text : {R"({"temperature":-1})", R"({"top_k":-1})", R"({"top_k":1.5})", R"({"top_p":1.01})",
                           R"({"min_p":-0.1})", R"({"repetition_penalty":0})", R"({"do_sample":"yes"})", "[]"}) {
    const auto d = normalize_generation_defaults(*parse_json(text));
    ASSERT_FALSE(d.ok()) << text;
    EXPECT_THAT(d.status().message(), HasSubstr("generation_config.json")) << text;
  }
}

}  // namespace
}  // namespace pointsman
