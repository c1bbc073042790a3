// SPDX-License-Identifier: Apache-2.0
//
// DeepSeek-V4 Flash and Pro at full size, as headers over holes: the published config.json, tensor names, dtypes and shapes bind, and the
// sizes are the published ones.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/log.h"
#include "engine/planner.h"
#include "support/sparse_model.h"

namespace pointsman {
namespace {

using testing::SparseModel;
using testing::TempDir;

struct Shape {
  std::string name;
  int64_t hidden, layers, heads, q_lora, groups, intermediate, experts, topk;
  double scale;
  std::vector<int> ratios;  // with the entries of the draft stages
  bool dspark = false;
  uint64_t expert_bytes = 0, kv_bytes_per_token = 0;
  double experts_gib = 0, dense_gib = 0;
};

// {first, first, 4, 128, 4, ..., 4} and zeros for the draft stages.
std::vector<int> ratios(int first, int64_t layers, int stages) {
  std::vector<int> r = {first, first};
  for (int64_t i = 2; i < layers; ++i) r.push_back(i % 2 == 0 ? 4 : 128);
  r.insert(r.end(), static_cast<size_t>(stages), 0);
  return r;
}

std::vector<Shape> shapes() {
  const Shape flash{.name = "Flash", .hidden = 4096, .layers = 43, .heads = 64, .q_lora = 1024, .groups = 8, .intermediate = 2048, .experts = 256, .topk = 512,
                    .scale = 1.5, .ratios = ratios(0, 43, 1), .expert_bytes = 13'369'344, .kv_bytes_per_token = 6880, .experts_gib = 137.06, .dense_gib = 8.24};
  const Shape pro{.name = "Pro", .hidden = 7168, .layers = 61, .heads = 128, .q_lora = 1536, .groups = 16, .intermediate = 3072, .experts = 384, .topk = 1024,
                  .scale = 2.5, .ratios = ratios(128, 61, 1), .expert_bytes = 35'094'528, .kv_bytes_per_token = 9848, .experts_gib = 765.6, .dense_gib = 26.72};
  Shape later = flash;
  later.name = "Flash with DSpark stages";
  later.dspark = true;
  later.ratios = ratios(0, 43, 3);
  return {flash, pro, later};
}

std::string config_of(const Shape& s) {
  std::string list;
  for (const int r : s.ratios) list += (list.empty() ? "" : ",") + std::to_string(r);
  return format(
      R"({{"architectures":["DeepseekV4ForCausalLM"],"attention_bias":false,"attention_dropout":0.0,"bos_token_id":0,"compress_ratios":[{}],
      "compress_rope_theta":160000,"eos_token_id":1,"expert_dtype":"fp4","hc_eps":1e-06,"hc_mult":4,"hc_sinkhorn_iters":20,"head_dim":512,"hidden_act":"silu",
      "hidden_size":{},"index_head_dim":128,"index_n_heads":64,"index_topk":{},"initializer_range":0.02,"max_position_embeddings":1048576,
      "model_type":"deepseek_v4","moe_intermediate_size":{},"n_routed_experts":{},"n_shared_experts":1,"norm_topk_prob":true,"num_attention_heads":{},
      "num_experts_per_tok":6,"num_hash_layers":3,"num_hidden_layers":{},"num_key_value_heads":1,"num_nextn_predict_layers":1,"o_groups":{},"o_lora_rank":1024,
      "q_lora_rank":{},"qk_rope_head_dim":64,"quantization_config":{{"activation_scheme":"dynamic","fmt":"e4m3","quant_method":"fp8","scale_fmt":"ue8m0",
      "weight_block_size":[128,128]}},"rms_norm_eps":1e-06,"rope_scaling":{{"beta_fast":32,"beta_slow":1,"factor":16,"original_max_position_embeddings":65536,
      "type":"yarn"}},"rope_theta":10000,"routed_scaling_factor":{},"scoring_func":"sqrtsoftplus","sliding_window":128,"swiglu_limit":10.0,
      "tie_word_embeddings":false,"topk_method":"noaux_tc","torch_dtype":"bfloat16","transformers_version":"4.57.1","use_cache":true,"vocab_size":129280{}}})",
      list, s.hidden, s.topk, s.intermediate, s.experts, s.heads, s.layers, s.groups, s.q_lora, s.scale,
      s.dspark ? R"(,"dspark_block_size":5,"dspark_noise_token_id":128799,"dspark_target_layer_ids":[40,41,42],"dspark_markov_rank":256)" : "");
}

struct Writer {
  const Shape& s;
  SparseModel& m;

  void fp8(const std::string& name, int64_t rows, int64_t cols) {
    m.add(name + ".weight", {rows, cols}, "F8_E4M3");
    m.add(name + ".scale", {(rows + 127) / 128, (cols + 127) / 128}, "F8_E8M0");
  }
  void fp4(const std::string& name, int64_t rows, int64_t cols) {
    m.add(name + ".weight", {rows, cols / 2}, "I8");
    m.add(name + ".scale", {rows, cols / 32}, "F8_E8M0");
  }
  void compressor(const std::string& at, int64_t ratio, int64_t dim) {
    const int64_t width = ratio == 4 ? 2 * dim : dim;
    m.add(at + "ape", {ratio, width}, "F32");
    m.add(at + "wkv.weight", {width, s.hidden});
    m.add(at + "wgate.weight", {width, s.hidden});
    m.add(at + "norm.weight", {dim});
  }
  void block(const std::string& at, int ratio, bool is_hash) {
    for (const std::string site : {"attn", "ffn"}) {
      m.add(at + site + "_norm.weight", {s.hidden});
      m.add(at + "hc_" + site + "_fn", {24, 4 * s.hidden}, "F32");
      m.add(at + "hc_" + site + "_base", {24}, "F32");
      m.add(at + "hc_" + site + "_scale", {3}, "F32");
    }
    const std::string a = at + "attn.";
    m.add(a + "attn_sink", {s.heads}, "F32");
    fp8(a + "wq_a", s.q_lora, s.hidden);
    m.add(a + "q_norm.weight", {s.q_lora});
    fp8(a + "wq_b", s.heads * 512, s.q_lora);
    fp8(a + "wkv", 512, s.hidden);
    m.add(a + "kv_norm.weight", {512});
    fp8(a + "wo_a", s.groups * 1024, s.heads * 512 / s.groups);
    fp8(a + "wo_b", s.hidden, s.groups * 1024);
    if (ratio > 1) compressor(a + "compressor.", ratio, 512);
    if (ratio == 4) {
      fp8(a + "indexer.wq_b", 64 * 128, s.q_lora);
      m.add(a + "indexer.weights_proj.weight", {64, s.hidden});
      compressor(a + "indexer.compressor.", 4, 128);
    }
    const std::string f = at + "ffn.";
    m.add(f + "gate.weight", {s.experts, s.hidden});
    if (is_hash) {
      m.add(f + "gate.tid2eid", {129280, 6}, "I64");
    } else {
      m.add(f + "gate.bias", {s.experts}, "F32");
    }
    for (const std::string w : {"w1", "w3"}) fp8(f + "shared_experts." + w, s.intermediate, s.hidden);
    fp8(f + "shared_experts.w2", s.hidden, s.intermediate);
  }
  void experts(const std::string& at) {
    for (int64_t e = 0; e < s.experts; ++e) {
      const std::string x = format("{}ffn.experts.{}.", at, e);
      fp4(x + "w1", s.intermediate, s.hidden);
      fp4(x + "w3", s.intermediate, s.hidden);
      fp4(x + "w2", s.hidden, s.intermediate);
    }
  }
};

TEST(PublishedDeepseekV4, BindsAndHasThePublishedSizes) {
  constexpr double kGib = 1024.0 * 1024 * 1024;
  for (const Shape& s : shapes()) {
    SCOPED_TRACE(s.name);
    SparseModel m;
    Writer w{s, m};
    m.add("embed.weight", {129280, s.hidden});
    m.add("head.weight", {129280, s.hidden});
    m.add("norm.weight", {s.hidden});
    m.add("hc_head_fn", {4, 4 * s.hidden}, "F32");
    m.add("hc_head_base", {4}, "F32");
    m.add("hc_head_scale", {1}, "F32");
    for (int64_t i = 0; i < s.layers; ++i) w.block(format("layers.{}.", i), s.ratios[static_cast<size_t>(i)], i < 3);
    const uint64_t dense = m.num_bytes();
    for (int64_t i = 0; i < s.layers; ++i) w.experts(format("layers.{}.", i));
    const uint64_t experts = m.num_bytes() - dense;
    EXPECT_NEAR(static_cast<double>(experts) / kGib, s.experts_gib, 0.05);
    EXPECT_NEAR(static_cast<double>(dense) / kGib, s.dense_gib, 0.006);

    // Draft stages: recognised, not loaded.
    w.block("mtp.0.", 0, false);
    m.add(s.dspark ? "mtp.0.main_proj.weight" : "mtp.0.e_proj.weight", {s.hidden, s.hidden}, "F8_E4M3");
    m.add(s.dspark ? "mtp.2.confidence_head.proj.weight" : "mtp.0.enorm.weight", {s.hidden});

    const TempDir dir;
    if (!m.write(dir, config_of(s), 8)) GTEST_SKIP() << "no sparse files of this size here";
    const auto config = read_model_config(FileSystem::real(), dir.path());
    ASSERT_TRUE(config.ok()) << config.status().to_string();
    EXPECT_EQ(config->num_hash_layers, 3);
    EXPECT_EQ(config->rotary_dim, 64);
    EXPECT_EQ(config->compressed.rope.type, RopeType::kYarn);
    EXPECT_EQ(config->compressed.rope.attention_factor, 1);
    EXPECT_EQ(config->rope.type, RopeType::kDefault);
    const auto checkpoint = Checkpoint::open(FileSystem::real(), dir.path());
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().to_string();
    const auto binding = bind_model(**checkpoint, *config);
    ASSERT_TRUE(binding.ok()) << binding.status().to_string();
    ASSERT_EQ(binding->notes.size(), 1u);
    EXPECT_THAT(binding->notes[0], ::testing::HasSubstr(s.dspark ? "DSpark" : "MTP"));
    EXPECT_EQ(binding->experts->total_bytes(), experts);

    const auto plan = Engine::plan({.model_dir = dir.path(), .memory_bytes = uint64_t{64} << 30, .num_threads = 2, .context_length = 4096,
                                    .load_tokenizer = false});
    ASSERT_TRUE(plan.ok()) << plan.status().to_string();
    EXPECT_EQ(plan->num_experts_total, s.layers * s.experts);
    EXPECT_EQ(plan->expert_bytes, s.expert_bytes);
    EXPECT_EQ(plan->kv_bytes_per_token, s.kv_bytes_per_token);
    uint64_t kept = 0;
    for (const PlanUnit& u : plan->units) kept += u.bytes;
    // Vectors are held in fp32, expert tables in 32 bits.
    EXPECT_NEAR(static_cast<double>(kept), static_cast<double>(dense + experts), 0.002 * static_cast<double>(dense));
    EXPECT_TRUE(plan->fits());
  }
}

}  // namespace
}  // namespace pointsman
