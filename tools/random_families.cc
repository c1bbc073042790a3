// SPDX-License-Identifier: Apache-2.0
//
// Tensor names, shapes, dtypes and config keys are those of published checkpoints; values keep activations near 1, so that logits stay
// finite and experts are chosen about equally often.
#include <cmath>

#include "base/log.h"
#include "tools/random_checkpoint.h"

namespace pointsman::tools {
namespace {

// The exponent of the E8M0 scale that brings codes of deviation `code_sd` to 1 / sqrt(cols).
double scale_code(double code_sd, int64_t cols) { return 127 + std::round(std::log2(1 / std::sqrt(static_cast<double>(cols)) / code_sd)); }

Json list(std::initializer_list<Json> items) { return Json(Json::Array(items)); }

Json fp8_config(bool e8m0) {
  Json q = Json::object();
  q.set("activation_scheme", "dynamic");
  q.set("fmt", "e4m3");
  q.set("quant_method", "fp8");
  if (e8m0) q.set("scale_fmt", "ue8m0");
  q.set("weight_block_size", list({128, 128}));
  return q;
}

}  // namespace

uint64_t RandomTensor::num_elements() const {
  uint64_t n = 1;
  for (const int64_t d : shape) n *= static_cast<uint64_t>(d);
  return n;
}

void RandomModel::matrix(std::string name, int64_t rows, int64_t cols, DType dtype) {
  add({std::move(name), dtype, {rows, cols}, 0, 1 / std::sqrt(static_cast<double>(cols))});
}

void RandomModel::fp8(const std::string& name, int64_t rows, int64_t cols, const std::string& scale_suffix, DType scale_dtype) {
  const double sd = 1 / std::sqrt(static_cast<double>(cols)) / kE4m3Sd;
  add({name + ".weight", DType::kF8E4M3, {rows, cols}});
  add({name + scale_suffix, scale_dtype, {(rows + 127) / 128, (cols + 127) / 128}, scale_dtype == DType::kF32 ? sd : scale_code(kE4m3Sd, cols), sd / 16});
}

void RandomModel::fp4(const std::string& name, int64_t rows, int64_t cols) {
  add({name + ".weight", DType::kI8, {rows, cols / 2}});
  add({name + ".scale", DType::kF8E8M0, {rows, cols / 32}, scale_code(kE2m1Sd, cols)});
}

RandomModel random_qwen3_moe(const RandomShape& s) {
  RandomModel m;
  const int64_t q = s.heads * s.head_dim, kv = s.kv_heads * s.head_dim;
  const auto linear = [&](const std::string& name, int64_t rows, int64_t cols) {
    if (s.fp8) return m.fp8(name, rows, cols, ".weight_scale_inv", DType::kF32);
    m.matrix(name + ".weight", rows, cols);
  };
  m.add({"model.embed_tokens.weight", DType::kBF16, {s.vocab, s.hidden}, 0, 1});
  for (int64_t l = 0; l < s.layers; ++l) {
    const std::string p = format("model.layers.{}.", l), a = p + "self_attn.";
    m.ones(p + "input_layernorm.weight", s.hidden);
    m.ones(p + "post_attention_layernorm.weight", s.hidden);
    linear(a + "q_proj", q, s.hidden);
    linear(a + "k_proj", kv, s.hidden);
    linear(a + "v_proj", kv, s.hidden);
    linear(a + "o_proj", s.hidden, q);
    m.ones(a + "q_norm.weight", s.head_dim);
    m.ones(a + "k_norm.weight", s.head_dim);
    m.matrix(p + "mlp.gate.weight", s.experts, s.hidden);
    for (int64_t e = 0; e < s.experts; ++e) {
      const std::string x = format("{}mlp.experts.{}.", p, e);
      linear(x + "gate_proj", s.intermediate, s.hidden);
      linear(x + "up_proj", s.intermediate, s.hidden);
      linear(x + "down_proj", s.hidden, s.intermediate);
    }
  }
  m.ones("model.norm.weight", s.hidden);
  m.matrix("lm_head.weight", s.vocab, s.hidden);

  Json& c = m.config;
  c.set("architectures", list({"Qwen3MoeForCausalLM"}));
  c.set("model_type", "qwen3_moe");
  for (const auto& [key, value] : {std::pair<const char*, int64_t>{"hidden_size", s.hidden}, {"num_hidden_layers", s.layers},
                                   {"num_attention_heads", s.heads}, {"num_key_value_heads", s.kv_heads}, {"head_dim", s.head_dim},
                                   {"num_experts", s.experts}, {"num_experts_per_tok", s.top_k}, {"moe_intermediate_size", s.intermediate},
                                   {"vocab_size", s.vocab}, {"max_position_embeddings", s.context}, {"intermediate_size", s.intermediate}}) {
    c.set(key, value);
  }
  c.set("norm_topk_prob", true);
  c.set("tie_word_embeddings", false);
  c.set("rms_norm_eps", 1e-6);
  c.set("rope_theta", 1000000.0);
  c.set("hidden_act", "silu");
  c.set("torch_dtype", "bfloat16");
  if (s.fp8) c.set("quantization_config", fp8_config(false));
  return m;
}

namespace {

// One DeepSeek-V4-Flash.
struct V4 {
  static constexpr int64_t kHidden = 4096, kHeads = 64, kHeadDim = 512, kQLora = 1024, kGroups = 8, kOLora = 1024, kExperts = 256, kTopK = 6;
  static constexpr int64_t kWidth = 2048, kIndexHeads = 64, kIndexDim = 128, kStreams = 4, kVocab = 129280, kHashLayers = 3;
  RandomModel m;

  static int ratio(int64_t layer) { return layer < 2 ? 0 : layer % 2 == 0 ? 4 : 128; }

  void fp8(const std::string& name, int64_t rows, int64_t cols) { m.fp8(name, rows, cols, ".scale", DType::kF8E8M0); }
  void vector(std::string name, int64_t n, double mean, double sd) { m.add({std::move(name), DType::kF32, {n}, mean, sd}); }
  void site(const std::string& at, int64_t rows, int64_t scales) {
    m.matrix(at + "fn", rows, kStreams * kHidden, DType::kF32);
    vector(at + "base", rows, 0, 0.5);
    vector(at + "scale", scales, 0.5, 0.1);
  }
  void compressor(const std::string& at, int64_t r, int64_t dim) {
    const int64_t width = r == 4 ? 2 * dim : dim;
    m.add({at + "ape", DType::kF32, {r, width}, 0, 0.5});
    m.matrix(at + "wkv.weight", width, kHidden);
    m.matrix(at + "wgate.weight", width, kHidden);
    m.ones(at + "norm.weight", dim);
  }
  void attention(const std::string& at, int64_t r) {
    vector(at + "attn_sink", kHeads, 0, 1);
    fp8(at + "wq_a", kQLora, kHidden);
    m.ones(at + "q_norm.weight", kQLora);
    fp8(at + "wq_b", kHeads * kHeadDim, kQLora);
    fp8(at + "wkv", kHeadDim, kHidden);
    m.ones(at + "kv_norm.weight", kHeadDim);
    fp8(at + "wo_a", kGroups * kOLora, kHeads * kHeadDim / kGroups);
    fp8(at + "wo_b", kHidden, kGroups * kOLora);
    if (r > 0) compressor(at + "compressor.", r, kHeadDim);
    if (r != 4) return;
    fp8(at + "indexer.wq_b", kIndexHeads * kIndexDim, kQLora);
    m.matrix(at + "indexer.weights_proj.weight", kIndexHeads, kHidden);
    compressor(at + "indexer.compressor.", r, kIndexDim);
  }
  void experts(const std::string& at, bool is_hash) {
    m.matrix(at + "gate.weight", kExperts, kHidden);
    if (is_hash) {
      m.add({at + "gate.tid2eid", DType::kI64, {kVocab, kTopK}, double{kExperts}});
    } else {
      vector(at + "gate.bias", kExperts, 0, 0.01);
    }
    for (int64_t e = 0; e < kExperts; ++e) {
      const std::string x = format("{}experts.{}.", at, e);
      m.fp4(x + "w1", kWidth, kHidden);
      m.fp4(x + "w2", kHidden, kWidth);
      m.fp4(x + "w3", kWidth, kHidden);
    }
    for (const auto& [w, rows, cols] : {std::tuple{"w1", kWidth, kHidden}, {"w2", kHidden, kWidth}, {"w3", kWidth, kHidden}}) {
      fp8(at + "shared_experts." + w, rows, cols);
    }
  }
};

}  // namespace

RandomModel random_deepseek_v4(int64_t layers) {
  V4 v;
  v.m.add({"embed.weight", DType::kBF16, {V4::kVocab, V4::kHidden}, 0, 1});
  Json ratios = Json::array();
  for (int64_t l = 0; l < layers; ++l) {
    const std::string p = format("layers.{}.", l);
    v.m.ones(p + "attn_norm.weight", V4::kHidden);
    v.m.ones(p + "ffn_norm.weight", V4::kHidden);
    v.site(p + "hc_attn_", (2 + V4::kStreams) * V4::kStreams, 3);
    v.site(p + "hc_ffn_", (2 + V4::kStreams) * V4::kStreams, 3);
    v.attention(p + "attn.", V4::ratio(l));
    v.experts(p + "ffn.", l < V4::kHashLayers);
    ratios.push_back(V4::ratio(l));
  }
  v.site("hc_head_", V4::kStreams, 1);
  v.m.ones("norm.weight", V4::kHidden);
  v.m.matrix("head.weight", V4::kVocab, V4::kHidden);

  Json& c = v.m.config;
  c.set("architectures", list({"DeepseekV4ForCausalLM"}));
  c.set("model_type", "deepseek_v4");
  c.set("compress_ratios", ratios);
  Json rope = Json::object();
  for (const auto& [key, value] : {std::pair<const char*, int64_t>{"beta_fast", 32}, {"beta_slow", 1}, {"factor", 16}, {"original_max_position_embeddings", 65536}}) {
    rope.set(key, value);
  }
  rope.set("type", "yarn");
  c.set("rope_scaling", rope);
  for (const auto& [key, value] : {std::pair<const char*, int64_t>{"bos_token_id", 0}, {"eos_token_id", 1}, {"compress_rope_theta", 160000}, {"hc_mult", V4::kStreams},
                                   {"hc_sinkhorn_iters", 20}, {"head_dim", V4::kHeadDim}, {"hidden_size", V4::kHidden}, {"index_head_dim", V4::kIndexDim},
                                   {"index_n_heads", V4::kIndexHeads}, {"index_topk", 512}, {"max_position_embeddings", 1048576},
                                   {"moe_intermediate_size", V4::kWidth}, {"n_routed_experts", V4::kExperts}, {"n_shared_experts", 1},
                                   {"num_attention_heads", V4::kHeads}, {"num_experts_per_tok", V4::kTopK}, {"num_hash_layers", std::min(layers, V4::kHashLayers)},
                                   {"num_hidden_layers", layers}, {"num_key_value_heads", 1}, {"num_nextn_predict_layers", 0}, {"o_groups", V4::kGroups},
                                   {"o_lora_rank", V4::kOLora}, {"q_lora_rank", V4::kQLora}, {"qk_rope_head_dim", 64}, {"rope_theta", 10000}, {"sliding_window", 128},
                                   {"vocab_size", V4::kVocab}}) {
    c.set(key, value);
  }
  c.set("attention_bias", false);
  c.set("expert_dtype", "fp4");
  c.set("hc_eps", 1e-6);
  c.set("hidden_act", "silu");
  c.set("norm_topk_prob", true);
  c.set("quantization_config", fp8_config(true));
  c.set("rms_norm_eps", 1e-6);
  c.set("routed_scaling_factor", 1.5);
  c.set("scoring_func", "sqrtsoftplus");
  c.set("swiglu_limit", 10.0);
  c.set("tie_word_embeddings", false);
  c.set("topk_method", "noaux_tc");
  c.set("torch_dtype", "bfloat16");
  return std::move(v.m);
}

}  // namespace pointsman::tools
