// SPDX-License-Identifier: Apache-2.0
//
// Published quantised models at full size, as headers over holes: FP8 with block scales (DeepSeek-V3, Kimi-K2) and MXFP4 (gpt-oss). Experts and
// dense weights are counted as stored; nothing is expanded.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/planner.h"
#include "support/sparse_model.h"

namespace pointsman {
namespace {

using testing::SparseModel;
using testing::TempDir;

struct Planned {
  ModelConfig config;
  MemoryPlan plan;
  std::vector<std::string> notes;
  uint64_t expert_total = 0, dense_bytes = 0;
};

void plan_of(const SparseModel& model, const std::string& config_json, Planned& out) {
  const TempDir dir;
  if (!model.write(dir, config_json)) GTEST_SKIP() << "no sparse files of this size here";
  auto config = read_model_config(FileSystem::real(), dir.path());
  ASSERT_TRUE(config.ok()) << config.status().to_string();
  EXPECT_THAT(config->ignored_keys, ::testing::IsEmpty());
  const auto checkpoint = Checkpoint::open(FileSystem::real(), dir.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().to_string();
  const auto binding = bind_model(**checkpoint, *config);
  ASSERT_TRUE(binding.ok()) << binding.status().to_string();
  auto plan = Engine::plan({.model_dir = dir.path(), .memory_bytes = uint64_t{24} << 30, .num_threads = 2, .context_length = 4096, .load_tokenizer = false});
  ASSERT_TRUE(plan.ok()) << plan.status().to_string();
  out = {.config = std::move(*config), .plan = std::move(*plan), .notes = binding->notes, .expert_total = binding->experts->total_bytes(),
         .dense_bytes = binding->dense_device_bytes()};
}

// A linear in FP8 with its grid of 128 x 128 blocks.
void add_fp8(SparseModel& m, const std::string& name, int64_t out, int64_t in) {
  m.add(name + ".weight", {out, in}, "F8_E4M3");
  m.add(name + ".weight_scale_inv", {(out + 127) / 128, (in + 127) / 128}, "F32");
}

struct DeepSeek {
  int64_t hidden = 7168, layers = 61, heads = 128, experts = 256, dense_layers = 3, vocab = 129280;
  bool mtp = true;
};

SparseModel deepseek(const DeepSeek& s) {
  SparseModel m;
  m.add("model.embed_tokens.weight", {s.vocab, s.hidden});
  const auto mlp = [&](const std::string& at, int64_t width) {
    add_fp8(m, at + "gate_proj", width, s.hidden), add_fp8(m, at + "up_proj", width, s.hidden), add_fp8(m, at + "down_proj", s.hidden, width);
  };
  for (int64_t i = 0; i < s.layers + (s.mtp ? 1 : 0); ++i) {
    const std::string at = "model.layers." + std::to_string(i) + ".", a = at + "self_attn.";
    m.add(at + "input_layernorm.weight", {s.hidden});
    m.add(at + "post_attention_layernorm.weight", {s.hidden});
    add_fp8(m, a + "q_a_proj", 1536, s.hidden);
    m.add(a + "q_a_layernorm.weight", {1536});
    add_fp8(m, a + "q_b_proj", s.heads * 192, 1536);
    add_fp8(m, a + "kv_a_proj_with_mqa", 576, s.hidden);
    m.add(a + "kv_a_layernorm.weight", {512});
    add_fp8(m, a + "kv_b_proj", s.heads * 256, 512);
    add_fp8(m, a + "o_proj", s.hidden, s.heads * 128);
    if (i < s.dense_layers) {
      mlp(at + "mlp.", 18432);
      continue;
    }
    m.add(at + "mlp.gate.weight", {s.experts, s.hidden});
    m.add(at + "mlp.gate.e_score_correction_bias", {s.experts}, "F32");
    for (int64_t e = 0; e < s.experts; ++e) mlp(at + "mlp.experts." + std::to_string(e) + ".", 2048);
    mlp(at + "mlp.shared_experts.", 2048);
    if (i < s.layers) continue;
    for (const char* name : {"enorm", "hnorm", "shared_head.norm"}) m.add(at + name + ".weight", {s.hidden});
    m.add(at + "eh_proj.weight", {s.hidden, 2 * s.hidden});
    for (const char* name : {"embed_tokens", "shared_head.head"}) m.add(at + name + ".weight", {s.vocab, s.hidden});
  }
  m.add("model.norm.weight", {s.hidden});
  m.add("lm_head.weight", {s.vocab, s.hidden});
  return m;
}

TEST(PublishedQuantizedModels, DeepSeekV3) {
  Planned p;
  plan_of(deepseek({}), R"({"architectures":["DeepseekV3ForCausalLM"],"attention_bias":false,"attention_dropout":0.0,"bos_token_id":0,"eos_token_id":1,
    "ep_size":1,"first_k_dense_replace":3,"hidden_act":"silu","hidden_size":7168,"initializer_range":0.02,"intermediate_size":18432,
    "kv_lora_rank":512,"max_position_embeddings":163840,"model_type":"deepseek_v3","moe_intermediate_size":2048,"moe_layer_freq":1,"n_group":8,
    "n_routed_experts":256,"n_shared_experts":1,"norm_topk_prob":true,"num_attention_heads":128,"num_experts_per_tok":8,"num_hidden_layers":61,
    "num_key_value_heads":128,"num_nextn_predict_layers":1,"q_lora_rank":1536,"qk_nope_head_dim":128,"qk_rope_head_dim":64,
    "quantization_config":{"activation_scheme":"dynamic","fmt":"e4m3","quant_method":"fp8","weight_block_size":[128,128]},"rms_norm_eps":1e-06,
    "rope_scaling":{"beta_fast":32,"beta_slow":1,"factor":40,"mscale":1.0,"mscale_all_dim":1.0,"original_max_position_embeddings":4096,"type":"yarn"},
    "rope_theta":10000,"routed_scaling_factor":2.5,"scoring_func":"sigmoid","tie_word_embeddings":false,"topk_group":4,"topk_method":"noaux_tc",
    "torch_dtype":"bfloat16","transformers_version":"4.33.1","use_cache":true,"v_head_dim":128,"vocab_size":129280})", p);
  if (IsSkipped() || HasFatalFailure()) return;
  EXPECT_NEAR(p.config.latent.scale, 0.1352337789, 1e-9);
  EXPECT_EQ(p.plan.num_experts_total, 58 * 256);
  EXPECT_EQ(p.plan.expert_bytes, 3u * 7168 * 2048 + 3u * 16 * 56 * 4);  // FP8 and one scale for 16384 elements: 42.01 MiB
  EXPECT_EQ(p.expert_total, p.plan.expert_bytes * 58 * 256);
  EXPECT_EQ(p.plan.kv_bytes_per_token, 61u * 576 * 2);
  // 671,026,419,200 parameters less 653.9 G of experts: FP8 with scales, but for 1.85 G of embedding and head and the routers in BF16.
  EXPECT_NEAR(static_cast<double>(p.dense_bytes) * 0x1p-30, 17.774, 0.001);
  ASSERT_EQ(p.notes.size(), 1u);
  EXPECT_THAT(p.notes[0], ::testing::HasSubstr("layer 61: "));
  EXPECT_FALSE(p.plan.units.empty());
}

TEST(PublishedQuantizedModels, KimiK2) {
  Planned p;
  plan_of(deepseek({.heads = 64, .experts = 384, .dense_layers = 1, .vocab = 163840, .mtp = false}),
          R"({"architectures":["DeepseekV3ForCausalLM"],"attention_bias":false,"attention_dropout":0.0,"aux_loss_alpha":0.001,"bos_token_id":163584,
    "eos_token_id":163585,"ep_size":1,"first_k_dense_replace":1,"hidden_act":"silu","hidden_size":7168,"initializer_range":0.02,
    "intermediate_size":18432,"kv_lora_rank":512,"max_position_embeddings":131072,"model_type":"kimi_k2","moe_intermediate_size":2048,
    "moe_layer_freq":1,"n_group":1,"n_routed_experts":384,"n_shared_experts":1,"norm_topk_prob":true,"num_attention_heads":64,
    "num_experts_per_tok":8,"num_hidden_layers":61,"num_key_value_heads":64,"num_nextn_predict_layers":0,"pretraining_tp":1,"q_lora_rank":1536,
    "qk_nope_head_dim":128,"qk_rope_head_dim":64,"quantization_config":{"activation_scheme":"dynamic","fmt":"e4m3","quant_method":"fp8",
    "weight_block_size":[128,128]},"rms_norm_eps":1e-06,"rope_theta":50000.0,"routed_scaling_factor":2.827,"rope_scaling":{"beta_fast":1.0,
    "beta_slow":1.0,"factor":32.0,"mscale":1.0,"mscale_all_dim":1.0,"original_max_position_embeddings":4096,"type":"yarn"},
    "scoring_func":"sigmoid","seq_aux":true,"tie_word_embeddings":false,"topk_group":1,"topk_method":"noaux_tc","torch_dtype":"bfloat16",
    "transformers_version":"4.48.3","use_cache":true,"v_head_dim":128,"vocab_size":163840})", p);
  if (IsSkipped() || HasFatalFailure()) return;
  EXPECT_EQ(p.plan.num_experts_total, 60 * 384);
  EXPECT_EQ(p.plan.expert_bytes, 44'050'944u);
  // 1.01 T parameters in experts alone.
  EXPECT_NEAR(static_cast<double>(p.expert_total) * 0x1p-30, 945.2, 0.1);
  EXPECT_EQ(p.plan.kv_bytes_per_token, 61u * 576 * 2);
  EXPECT_THAT(p.notes, ::testing::IsEmpty());
}

SparseModel gpt_oss(int64_t layers, int64_t experts) {
  SparseModel m;
  constexpr int64_t kHidden = 2880, kVocab = 201088;
  m.add("model.embed_tokens.weight", {kVocab, kHidden});
  for (int64_t i = 0; i < layers; ++i) {
    const std::string at = "model.layers." + std::to_string(i) + ".", a = at + "self_attn.", e = at + "mlp.experts.";
    m.add(at + "input_layernorm.weight", {kHidden});
    m.add(at + "post_attention_layernorm.weight", {kHidden});
    for (const auto& [name, rows] : {std::pair{"q", 4096}, {"k", 512}, {"v", 512}}) {
      m.add(a + name + "_proj.weight", {rows, kHidden});
      m.add(a + name + "_proj.bias", {rows});
    }
    m.add(a + "o_proj.weight", {kHidden, 4096});
    m.add(a + "o_proj.bias", {kHidden});
    m.add(a + "sinks", {64});
    m.add(at + "mlp.router.weight", {experts, kHidden});
    m.add(at + "mlp.router.bias", {experts});
    for (const auto& [name, rows] : {std::pair{"gate_up_proj", 5760}, {"down_proj", 2880}}) {
      m.add(e + name + "_blocks", {experts, rows, 90, 16}, "U8");
      m.add(e + name + "_scales", {experts, rows, 90}, "U8");
      m.add(e + name + "_bias", {experts, rows});
    }
  }
  m.add("model.norm.weight", {kHidden});
  m.add("lm_head.weight", {kVocab, kHidden});
  return m;
}

void expect_gpt_oss(int64_t layers, int64_t experts, double expert_gib, double dense_gib) {
  std::string types;
  for (int64_t i = 0; i < layers; ++i) types += std::string(i == 0 ? "" : ",") + (i % 2 == 0 ? "\"sliding_attention\"" : "\"full_attention\"");
  Planned p;
  plan_of(gpt_oss(layers, experts), R"({"architectures":["GptOssForCausalLM"],"attention_bias":true,"attention_dropout":0.0,"eos_token_id":200002,
    "experts_per_token":4,"head_dim":64,"hidden_act":"silu","hidden_size":2880,"initial_context_length":4096,"initializer_range":0.02,
    "intermediate_size":2880,"layer_types":[)" + types + R"(],"max_position_embeddings":131072,"model_type":"gpt_oss","num_attention_heads":64,
    "num_experts_per_tok":4,"num_hidden_layers":)" + std::to_string(layers) + R"(,"num_key_value_heads":8,"num_local_experts":)" +
          std::to_string(experts) + R"(,"output_router_logits":false,"pad_token_id":199999,"quantization_config":{"modules_to_not_convert":[
    "model.layers.*.self_attn","model.layers.*.mlp.router","model.embed_tokens","lm_head"],"quant_method":"mxfp4"},"rms_norm_eps":1e-05,
    "rope_scaling":{"beta_fast":32.0,"beta_slow":1.0,"factor":32.0,"original_max_position_embeddings":4096,"rope_type":"yarn","truncate":false},
    "rope_theta":150000,"router_aux_loss_coef":0.9,"sliding_window":128,"swiglu_limit":7.0,"tie_word_embeddings":false,
    "transformers_version":"4.55.0.dev0","use_cache":true,"vocab_size":201088})", p);
  if (::testing::Test::IsSkipped() || ::testing::Test::HasFatalFailure()) return;
  EXPECT_EQ(p.plan.num_experts_total, layers * experts);
  EXPECT_EQ(p.plan.expert_bytes, 3u * 2880 * (1440 + 90));  // 4 bits, and 8 for every 32
  EXPECT_NEAR(static_cast<double>(p.expert_total) * 0x1p-30, expert_gib, 0.01);
  EXPECT_NEAR(static_cast<double>(p.dense_bytes) * 0x1p-30, dense_gib, 0.01);
  EXPECT_EQ(p.plan.kv_bytes_per_token, static_cast<uint64_t>(layers) * 2 * 8 * 64 * 2);
  for (int64_t i = 0; i < layers; ++i) EXPECT_EQ(p.config.layer_window[static_cast<size_t>(i)], i % 2 == 0 ? 128 : 0);
  EXPECT_DOUBLE_EQ(p.config.swiglu_alpha, 1.702);
  EXPECT_FALSE(p.config.rope.truncate);
}
TEST(PublishedQuantizedModels, GptOss20b) { expect_gpt_oss(24, 32, 9.455, 3.374); }
TEST(PublishedQuantizedModels, GptOss120b) { expect_gpt_oss(36, 128, 56.73, 4.112); }

}  // namespace
}  // namespace pointsman
