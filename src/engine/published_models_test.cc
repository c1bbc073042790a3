// SPDX-License-Identifier: Apache-2.0
//
// Published models at full size, as headers over holes: config.json with the published values and the published tensor names bind,
// and `plan` and `inspect` give the published sizes. The numbers of parameters are those that the model pages state.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/planner.h"
#include "support/sparse_model.h"

namespace pointsman {
namespace {

using testing::SparseModel;
using testing::TempDir;

struct Shape {
  int64_t hidden, layers, heads, kv_heads, head_dim, vocab;
  bool tied = false, qkv_bias = false;
  int64_t q_norm = 0, k_norm = 0;
};

void add_attention(SparseModel& m, const Shape& s, const std::string& at) {
  const int64_t q = s.heads * s.head_dim, kv = s.kv_heads * s.head_dim;
  m.add(at + "input_layernorm.weight", {s.hidden});
  for (const auto& [name, rows] : {std::pair{"q", q}, {"k", kv}, {"v", kv}}) {
    m.add(at + "self_attn." + name + "_proj.weight", {rows, s.hidden});
    if (s.qkv_bias) m.add(at + "self_attn." + name + "_proj.bias", {rows});
  }
  m.add(at + "self_attn.o_proj.weight", {s.hidden, q});
  if (s.q_norm > 0) m.add(at + "self_attn.q_norm.weight", {s.q_norm});
  if (s.k_norm > 0) m.add(at + "self_attn.k_norm.weight", {s.k_norm});
  m.add(at + "post_attention_layernorm.weight", {s.hidden});
}

void add_mlp(SparseModel& m, const std::string& at, int64_t width, int64_t hidden, bool w_names = false) {
  m.add(at + (w_names ? "w1" : "gate_proj") + ".weight", {width, hidden});
  m.add(at + (w_names ? "w2" : "down_proj") + ".weight", {hidden, width});
  m.add(at + (w_names ? "w3" : "up_proj") + ".weight", {width, hidden});
}

void add_experts(SparseModel& m, const std::string& at, int64_t experts, int64_t width, int64_t hidden, bool w_names = false) {
  m.add(at + "gate.weight", {experts, hidden});
  for (int64_t e = 0; e < experts; ++e) add_mlp(m, at + "experts." + std::to_string(e) + ".", width, hidden, w_names);
}

// Embedding, `layer` for each layer, norm and head.
template <class Layer>
SparseModel model_of(const Shape& s, Layer&& layer) {
  SparseModel m;
  m.add("model.embed_tokens.weight", {s.vocab, s.hidden});
  for (int64_t i = 0; i < s.layers; ++i) {
    const std::string at = "model.layers." + std::to_string(i) + ".";
    add_attention(m, s, at);
    layer(m, at, i);
  }
  m.add("model.norm.weight", {s.hidden});
  if (!s.tied) m.add("lm_head.weight", {s.vocab, s.hidden});
  return m;
}

struct Published {
  std::string name, config;
  SparseModel model;
  uint64_t parameters = 0;             // of the model page, all that is stored
  int64_t experts = 0;                 // routed, over all layers
  uint64_t expert_bytes = 0;           // of one, BF16
  uint64_t active_parameters = 0;      // read for one token: everything but the embedding rows and the experts not chosen
  uint64_t kv_bytes_per_token = 0;
  std::string note;
};

std::vector<Published> published() {
  std::vector<Published> all;
  {
    const Shape s{.hidden = 4096, .layers = 32, .heads = 32, .kv_heads = 8, .head_dim = 128, .vocab = 32000};
    all.push_back({"Mixtral-8x7B-v0.1", R"({"architectures":["MixtralForCausalLM"],"attention_dropout":0.0,"bos_token_id":1,
      "eos_token_id":2,"hidden_act":"silu","hidden_size":4096,"initializer_range":0.02,"intermediate_size":14336,
      "max_position_embeddings":32768,"model_type":"mixtral","num_attention_heads":32,"num_experts_per_tok":2,
      "num_hidden_layers":32,"num_key_value_heads":8,"num_local_experts":8,"output_router_logits":false,"rms_norm_eps":1e-05,
      "rope_theta":1000000.0,"router_aux_loss_coef":0.02,"sliding_window":null,"tie_word_embeddings":false,
      "torch_dtype":"bfloat16","transformers_version":"4.36.0.dev0","use_cache":true,"vocab_size":32000})",
                   model_of(s, [&](SparseModel& m, const std::string& at, int64_t) {
                     add_experts(m, at + "block_sparse_moe.", 8, 14336, s.hidden, true);
                   }),
                   46'702'792'704, 256, 352'321'536, 12'748'853'248, 131072, ""});
  }
  {
    const Shape s{.hidden = 2048, .layers = 16, .heads = 16, .kv_heads = 16, .head_dim = 128, .vocab = 50304, .q_norm = 2048,
                  .k_norm = 2048};
    all.push_back({"OLMoE-1B-7B-0924", R"({"architectures":["OlmoeForCausalLM"],"attention_bias":false,"attention_dropout":0.0,
      "clip_qkv":null,"eos_token_id":50279,"hidden_act":"silu","hidden_size":2048,"initializer_range":0.02,
      "intermediate_size":1024,"max_position_embeddings":4096,"model_type":"olmoe","norm_topk_prob":false,
      "num_attention_heads":16,"num_experts":64,"num_experts_per_tok":8,"num_hidden_layers":16,"num_key_value_heads":16,
      "output_router_logits":false,"pad_token_id":1,"rms_norm_eps":1e-05,"rope_scaling":null,"rope_theta":10000.0,
      "router_aux_loss_coef":0.01,"tie_word_embeddings":false,"torch_dtype":"bfloat16","transformers_version":"4.43.0.dev0",
      "use_cache":true,"vocab_size":50304})",
                   model_of(s, [&](SparseModel& m, const std::string& at, int64_t) {
                     add_experts(m, at + "mlp.", 64, 1024, s.hidden);
                   }),
                   6'919'161'856, 1024, 12'582'912, 1'178'994'688, 131072, ""});
  }
  {
    const Shape s{.hidden = 2048, .layers = 24, .heads = 16, .kv_heads = 16, .head_dim = 128, .vocab = 151936, .qkv_bias = true};
    all.push_back({"Qwen1.5-MoE-A2.7B", R"({"architectures":["Qwen2MoeForCausalLM"],"attention_dropout":0.0,"bos_token_id":151643,
      "decoder_sparse_step":1,"eos_token_id":151643,"hidden_act":"silu","hidden_size":2048,"initializer_range":0.02,
      "intermediate_size":5632,"max_position_embeddings":8192,"max_window_layers":21,"model_type":"qwen2_moe",
      "moe_intermediate_size":1408,"norm_topk_prob":false,"num_attention_heads":16,"num_experts":60,"num_experts_per_tok":4,
      "num_hidden_layers":24,"num_key_value_heads":16,"output_router_logits":false,"rms_norm_eps":1e-06,
      "rope_theta":1000000.0,"router_aux_loss_coef":0.001,"shared_expert_intermediate_size":5632,"sliding_window":32768,
      "tie_word_embeddings":false,"torch_dtype":"bfloat16","transformers_version":"4.39.0.dev0","use_cache":true,
      "use_sliding_window":false,"vocab_size":151936})",
                   model_of(s, [&](SparseModel& m, const std::string& at, int64_t) {
                     add_experts(m, at + "mlp.", 60, 1408, s.hidden);
                     add_mlp(m, at + "mlp.shared_expert.", 5632, s.hidden);
                     m.add(at + "mlp.shared_expert_gate.weight", {1, s.hidden});
                   }),
                   14'315'784'192, 1440, 17'301'504, 2'378'008'576, 196608, ""});
  }
  {
    const Shape s{.hidden = 4096, .layers = 46, .heads = 96, .kv_heads = 8, .head_dim = 128, .vocab = 151552, .qkv_bias = true};
    const auto moe = [&](SparseModel& m, const std::string& at) {
      add_experts(m, at + "mlp.", 128, 1408, s.hidden);
      m.add(at + "mlp.gate.e_score_correction_bias", {128}, "F32");
      add_mlp(m, at + "mlp.shared_experts.", 1408, s.hidden);
    };
    all.push_back({"GLM-4.5-Air", R"({"architectures":["Glm4MoeForCausalLM"],"attention_bias":true,"attention_dropout":0.0,
      "pad_token_id":151329,"eos_token_id":[151329,151336,151338],"head_dim":128,"hidden_act":"silu","hidden_size":4096,
      "partial_rotary_factor":0.5,"initializer_range":0.02,"intermediate_size":10944,"max_position_embeddings":131072,
      "model_type":"glm4_moe","moe_intermediate_size":1408,"norm_topk_prob":true,"num_attention_heads":96,"n_group":1,
      "topk_group":1,"n_routed_experts":128,"n_shared_experts":1,"routed_scaling_factor":1.0,"num_experts_per_tok":8,
      "first_k_dense_replace":1,"num_hidden_layers":46,"num_key_value_heads":8,"rms_norm_eps":1e-05,"rope_scaling":null,
      "rope_theta":1000000,"num_nextn_predict_layers":1,"tie_word_embeddings":false,"torch_dtype":"bfloat16",
      "transformers_version":"4.54.0","use_cache":true,"use_qk_norm":false,"vocab_size":151552})",
                   model_of(s, [&](SparseModel& m, const std::string& at, int64_t i) {
                     if (i == 0) return add_mlp(m, at + "mlp.", 10944, s.hidden);
                     moe(m, at);
                   }),
                   110'468'824'832, 5760, 34'603'008, 12'803'372'672, 188416, "layer 46: 404 tensors of multi-token prediction"});
    SparseModel& m = all.back().model;
    const std::string at = "model.layers.46.";
    add_attention(m, s, at);
    moe(m, at);
    m.add(at + "eh_proj.weight", {s.hidden, 2 * s.hidden});
    for (const char* name : {"enorm", "hnorm", "shared_head.norm"}) m.add(at + name + ".weight", {s.hidden});
    for (const char* name : {"embed_tokens", "shared_head.head"}) m.add(at + name + ".weight", {s.vocab, s.hidden});
  }
  const auto dense = [&](const char* name, const char* config, const Shape& s, int64_t width, uint64_t parameters,
                         uint64_t kv_bytes) {
    const uint64_t embedding = static_cast<uint64_t>(s.vocab * s.hidden);
    all.push_back({name, config, model_of(s, [&](SparseModel& m, const std::string& at, int64_t) {
                     add_mlp(m, at + "mlp.", width, s.hidden);
                   }),
                   parameters, 0, 0, parameters - (s.tied ? 0 : embedding), kv_bytes, ""});
  };
  dense("Meta-Llama-3-8B", R"({"architectures":["LlamaForCausalLM"],"attention_bias":false,"attention_dropout":0.0,
      "bos_token_id":128000,"eos_token_id":128001,"hidden_act":"silu","hidden_size":4096,"initializer_range":0.02,
      "intermediate_size":14336,"max_position_embeddings":8192,"model_type":"llama","num_attention_heads":32,
      "num_hidden_layers":32,"num_key_value_heads":8,"pretraining_tp":1,"rms_norm_eps":1e-05,"rope_scaling":null,
      "rope_theta":500000.0,"tie_word_embeddings":false,"torch_dtype":"bfloat16","transformers_version":"4.40.0.dev0",
      "use_cache":true,"vocab_size":128256})",
        {.hidden = 4096, .layers = 32, .heads = 32, .kv_heads = 8, .head_dim = 128, .vocab = 128256}, 14336, 8'030'261'248, 131072);
  dense("Llama-3.2-1B", R"({"architectures":["LlamaForCausalLM"],"attention_bias":false,"attention_dropout":0.0,
      "bos_token_id":128000,"eos_token_id":128001,"head_dim":64,"hidden_act":"silu","hidden_size":2048,
      "initializer_range":0.02,"intermediate_size":8192,"max_position_embeddings":131072,"mlp_bias":false,
      "model_type":"llama","num_attention_heads":32,"num_hidden_layers":16,"num_key_value_heads":8,"pretraining_tp":1,
      "rms_norm_eps":1e-05,"rope_scaling":{"factor":32.0,"high_freq_factor":4.0,"low_freq_factor":1.0,
      "original_max_position_embeddings":8192,"rope_type":"llama3"},"rope_theta":500000.0,"tie_word_embeddings":true,
      "torch_dtype":"bfloat16","transformers_version":"4.45.0.dev0","use_cache":true,"vocab_size":128256})",
        {.hidden = 2048, .layers = 16, .heads = 32, .kv_heads = 8, .head_dim = 64, .vocab = 128256, .tied = true}, 8192,
        1'235'814'400, 32768);
  dense("Qwen2-7B", R"({"architectures":["Qwen2ForCausalLM"],"attention_dropout":0.0,"bos_token_id":151643,
      "eos_token_id":151643,"hidden_act":"silu","hidden_size":3584,"initializer_range":0.02,"intermediate_size":18944,
      "max_position_embeddings":131072,"max_window_layers":28,"model_type":"qwen2","num_attention_heads":28,
      "num_hidden_layers":28,"num_key_value_heads":4,"rms_norm_eps":1e-06,"rope_theta":1000000.0,"sliding_window":131072,
      "tie_word_embeddings":false,"torch_dtype":"bfloat16","transformers_version":"4.37.2","use_cache":true,
      "use_sliding_window":false,"vocab_size":152064})",
        {.hidden = 3584, .layers = 28, .heads = 28, .kv_heads = 4, .head_dim = 128, .vocab = 152064, .qkv_bias = true}, 18944,
        7'615'616'512, 57344);
  return all;
}

TEST(PublishedModels, BindAndHaveThePublishedSizes) {
  for (const Published& p : published()) {
    SCOPED_TRACE(p.name);
    const TempDir dir;
    if (!p.model.write(dir, p.config)) GTEST_SKIP() << "no sparse files of this size here";
    EXPECT_EQ(p.model.num_elements(), p.parameters);

    const auto config = read_model_config(FileSystem::real(), dir.path());
    ASSERT_TRUE(config.ok()) << config.status().to_string();
    EXPECT_THAT(config->ignored_keys, ::testing::IsEmpty());
    EXPECT_THAT(config->warnings, ::testing::IsEmpty());
    const auto checkpoint = Checkpoint::open(FileSystem::real(), dir.path());
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().to_string();
    const auto binding = bind_model(**checkpoint, *config);
    ASSERT_TRUE(binding.ok()) << binding.status().to_string();
    EXPECT_EQ(binding->experts == nullptr, p.experts == 0);
    if (!p.note.empty()) {
      ASSERT_EQ(binding->notes.size(), 1u);
      EXPECT_THAT(binding->notes[0], ::testing::HasSubstr(p.note));
    }

    const auto plan = Engine::plan({.model_dir = dir.path(), .memory_bytes = uint64_t{16} << 30, .num_threads = 2,
                                    .context_length = 4096, .load_tokenizer = false});
    ASSERT_TRUE(plan.ok()) << plan.status().to_string();
    EXPECT_EQ(plan->num_experts_total, p.experts);
    EXPECT_EQ(plan->expert_bytes, p.expert_bytes);
    EXPECT_EQ(plan->kv_bytes_per_token, p.kv_bytes_per_token);
    // Vectors are held in fp32: a little more than two bytes a parameter.
    EXPECT_GE(plan->active_weight_bytes_per_token, 2 * p.active_parameters);
    EXPECT_LE(static_cast<double>(plan->active_weight_bytes_per_token), 2 * static_cast<double>(p.active_parameters) * 1.001);
    uint64_t units = 0;
    for (const PlanUnit& u : plan->units) units += u.bytes;
    if (p.note.empty()) {
      EXPECT_GE(units, p.model.num_bytes());
      EXPECT_LE(static_cast<double>(units), static_cast<double>(p.model.num_bytes()) * 1.001);
    }
  }
}

// MiniMax-M2 is published in FP8 only, with fp32 scales of 128 x 128 blocks; experts stay as stored.
TEST(PublishedModels, MinimaxM2InFp8) {
  const Shape s{.hidden = 3072, .layers = 62, .heads = 48, .kv_heads = 8, .head_dim = 128, .vocab = 200064};
  SparseModel m;
  const auto fp8 = [&](const std::string& name, int64_t rows, int64_t cols) {
    m.add(name, {rows, cols}, "F8_E4M3");
    m.add(name + "_scale_inv", {rows / 128, cols / 128}, "F32");
  };
  m.add("model.embed_tokens.weight", {s.vocab, s.hidden});
  for (int64_t i = 0; i < s.layers; ++i) {
    const std::string at = "model.layers." + std::to_string(i) + ".", attention = at + "self_attn.", moe = at + "block_sparse_moe.";
    for (const char* name : {"input_layernorm", "post_attention_layernorm"}) m.add(at + name + ".weight", {s.hidden});
    fp8(attention + "q_proj.weight", 6144, s.hidden);
    fp8(attention + "k_proj.weight", 1024, s.hidden);
    fp8(attention + "v_proj.weight", 1024, s.hidden);
    fp8(attention + "o_proj.weight", s.hidden, 6144);
    m.add(attention + "q_norm.weight", {6144});
    m.add(attention + "k_norm.weight", {1024});
    m.add(moe + "gate.weight", {256, s.hidden}, "F32");
    m.add(moe + "e_score_correction_bias", {256}, "F32");
    for (int64_t e = 0; e < 256; ++e) {
      const std::string expert = moe + "experts." + std::to_string(e) + ".";
      fp8(expert + "w1.weight", 1536, s.hidden);
      fp8(expert + "w2.weight", s.hidden, 1536);
      fp8(expert + "w3.weight", 1536, s.hidden);
    }
  }
  m.add("model.norm.weight", {s.hidden});
  m.add("lm_head.weight", {s.vocab, s.hidden});
  EXPECT_EQ(m.num_elements(), 228'703'644'928u);
  const TempDir dir;
  if (!m.write(dir, R"({"model_type":"minimax_m2","hidden_size":3072,"intermediate_size":1536,"num_hidden_layers":62,
      "num_attention_heads":48,"num_key_value_heads":8,"head_dim":128,"num_local_experts":256,"num_experts_per_tok":8,
      "rotary_dim":64,"rope_theta":5000000,"rms_norm_eps":1e-06,"max_position_embeddings":196608,"vocab_size":200064,
      "tie_word_embeddings":false,"hidden_act":"silu","quantization_config":{"activation_scheme":"dynamic",
      "fmt":"float8_e4m3fn","quant_method":"fp8","weight_block_size":[128,128],
      "modules_to_not_convert":["gate","e_score_correction_bias","lm_head"]}})",
               16)) {
    GTEST_SKIP() << "no sparse files of this size here";
  }
  const auto plan = Engine::plan({.model_dir = dir.path(), .memory_bytes = uint64_t{64} << 30, .num_threads = 2,
                                  .context_length = 4096, .load_tokenizer = false});
  ASSERT_TRUE(plan.ok()) << plan.status().to_string();
  EXPECT_EQ(plan->num_experts_total, 62 * 256);
  EXPECT_EQ(plan->expert_bytes, 3u * (1536 * 3072 + 12 * 24 * 4));
  EXPECT_EQ(plan->kv_bytes_per_token, 253952u);
}

}  // namespace
}  // namespace pointsman
