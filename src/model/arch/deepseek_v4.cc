// SPDX-License-Identifier: Apache-2.0
//
// DeepSeek-V4, Flash and Pro (arXiv 2606.19348): residual streams mixed by hyper-connections; attention over a window and over entries
// that pool older tokens, at two ratios; every layer a mixture of experts with a shared one, sqrt-softplus scores and a selection
// bias; in the first layers the experts follow from the token id alone.
//
// Config keys: checkpoint/deepseek_v4_config.cc. Tensor names: as published (layers.N.attn.wq_a), as transformers has them in memory
// and saves with save_original_format=False (model.layers.N.self_attn.q_a_proj), or the mixture that it saves by default. Experts under the latter may be fused or one by one.
#include "base/log.h"
#include "model/arch/arch.h"
#include "model/binding.h"
#include "model/forward.h"

namespace pointsman {
namespace {

Status check(const ModelConfig& c) {
  if (c.compressed.layers.size() != static_cast<size_t>(c.num_hidden_layers) || c.hyper.streams < 1) {
    return error(StatusCode::kUnsupported, "deepseek_v4 without kinds of layers or without streams");
  }
  return ok_status();
}

// Both spellings of everything below a layer, and outside.
struct Names {
  const char *embed, *head, *norm, *head_site;
  const char* layer;  // format: the number
  const char *input_norm, *post_norm, *attention_site, *ffn_site;
  const char* attention;
  const char *q_a, *q_norm, *q_b, *kv, *kv_norm, *sinks, *o_a, *o_b;
  const char *compressor, *indexer, *index_compressor;
  const char *pool_kv, *pool_gate, *pool_ape, *pool_norm;
  const char *index_q_b, *index_weights;
  const char* ffn;
  const char *bias, *shared_gate, *shared_up, *shared_down;
};
constexpr Names kNative{"embed", "head", "norm", "hc_head_",
                        "layers.{}.", "attn_norm", "ffn_norm", "hc_attn_", "hc_ffn_",
                        "attn.",
                        "wq_a", "q_norm", "wq_b", "wkv", "kv_norm", "attn_sink", "wo_a", "wo_b",
                        "compressor.", "indexer.", "indexer.compressor.",
                        "wkv", "wgate", "ape", "norm",
                        "wq_b", "weights_proj",
                        "ffn.",
                        "bias", "w1", "w3", "w2"};
// What save_pretrained() of transformers 5.24 writes: the published names again, but for those outside of layers and kv_norm.
constexpr Names kSavedBack{"model.embed_tokens", "head", "model.norm", "model.hc_head.hc_",
                           "model.layers.{}.", "attn_norm", "ffn_norm", "hc_attn_", "hc_ffn_",
                           "attn.",
                           "wq_a", "q_norm", "wq_b", "wkv", "norm", "attn_sink", "wo_a", "wo_b",
                           "compressor.", "indexer.", "indexer.compressor.",
                           "wkv", "wgate", "ape", "norm",
                           "wq_b", "weights_proj",
                           "ffn.",
                           "bias", "w1", "w3", "w2"};
constexpr Names kTransformers{"model.embed_tokens", "lm_head", "model.norm", "model.hc_head.hc_",
                              "model.layers.{}.", "input_layernorm", "post_attention_layernorm", "attn_hc.", "ffn_hc.",
                              "self_attn.",
                              "q_a_proj", "q_a_norm", "q_b_proj", "kv_proj", "kv_norm", "sinks", "o_a_proj", "o_b_proj",
                              "compressor.", "compressor.indexer.", "compressor.indexer.",
                              "kv_proj", "gate_proj", "position_bias", "kv_norm",
                              "q_b_proj", "scorer.weights_proj",
                              "mlp.",
                              "e_score_correction_bias", "gate_proj", "up_proj", "down_proj"};

class LayerBinder {
 public:
  LayerBinder(const ModelConfig& c, Binder& b, const Names& n) : c_(c), b_(b), n_(n) {}

  void site(const std::string& prefix, HyperConnection& site, int64_t rows, int64_t scales, const std::string& unit) {
    b_.array(prefix + "fn", {rows, c_.hyper.streams * c_.hidden_size}, site.fn, unit);
    b_.vector(prefix + "base", rows, site.base, unit);
    b_.vector(prefix + "scale", scales, site.scale, unit);
  }

  void attention(int i, LayerWeights& l) {
    const CompressedAttentionConfig& a = c_.compressed;
    const CompressKind kind = a.layers[static_cast<size_t>(i)];
    const std::string layer = at_layer(i), at = layer + n_.attention, unit = format("layers.{}.attention", i);
    const int64_t mixes = (2 + c_.hyper.streams) * c_.hyper.streams, q_rows = c_.num_attention_heads * c_.head_dim;
    CompressedAttention& w = l.compressed;
    site(layer + n_.attention_site, l.attention_site, mixes, 3, unit);
    b_.vector(layer + n_.input_norm + ".weight", c_.hidden_size, l.input_norm, unit);
    linear(at + n_.q_a, a.q_lora_rank, c_.hidden_size, w.q_a, unit);
    b_.vector(at + n_.q_norm + ".weight", a.q_lora_rank, w.q_norm, unit);
    linear(at + n_.q_b, q_rows, a.q_lora_rank, w.q_b, unit);
    linear(at + n_.kv, c_.head_dim, c_.hidden_size, w.kv, unit);
    b_.vector(at + n_.kv_norm + ".weight", c_.head_dim, w.kv_norm, unit);
    b_.vector(at + n_.sinks, c_.num_attention_heads, w.sinks, unit);
    rows(at + n_.o_a, a.o_groups * a.o_lora_rank, q_rows / a.o_groups, w.o_a, unit);  // group by group
    linear(at + n_.o_b, c_.hidden_size, a.o_groups * a.o_lora_rank, w.o_b, unit);
    if (kind == CompressKind::kNone) return;
    compressor(at + n_.compressor, kind, c_.head_dim, w.compressor, unit);
    if (kind != CompressKind::kSparse) return;
    const std::string index = at + n_.indexer;
    compressor(at + n_.index_compressor, kind, a.index_head_dim, w.index_compressor, unit);
    linear(index + n_.index_q_b, a.index_n_heads * a.index_head_dim, a.q_lora_rank, w.index_q_b, unit);
    // Early transformers had no module around the weights.
    const bool early = !b_.has(index + n_.index_weights + ".weight") && b_.has(index + "weights_proj.weight");
    rows(index + (early ? "weights_proj" : n_.index_weights), a.index_n_heads, c_.hidden_size, w.index_weights, unit);
  }

  void experts(int i, LayerWeights& l) {
    const std::string layer = at_layer(i), at = layer + n_.ffn, unit = format("layers.{}.mlp", i), router = format("layers.{}.router", i);
    site(layer + n_.ffn_site, l.ffn_site, (2 + c_.hyper.streams) * c_.hyper.streams, 3, unit);
    b_.vector(layer + n_.post_norm + ".weight", c_.hidden_size, l.post_norm, unit);
    b_.matrix(at + "gate.weight", c_.num_experts, c_.hidden_size, l.router, router);
    if (i < c_.num_hash_layers) {
      b_.table(at + "gate.tid2eid", c_.vocab_size, c_.num_experts_per_tok, c_.num_experts, l.expert_table, router);
      b_.ignore(at + "gate." + n_.bias);  // some writers keep one; the choice does not depend on it
    } else {
      b_.finite_vector(at + "gate." + n_.bias, c_.num_experts, l.router_bias, router);
    }
    b_.experts(i, at + "experts", c_.moe_intermediate_size, c_.hidden_size);
    const std::string shared = at + "shared_experts.";
    b_.matrix(shared + n_.shared_gate + ".weight", c_.moe_intermediate_size, c_.hidden_size, l.shared.gate.weight, unit);
    b_.matrix(shared + n_.shared_up + ".weight", c_.moe_intermediate_size, c_.hidden_size, l.shared.up.weight, unit);
    b_.matrix(shared + n_.shared_down + ".weight", c_.hidden_size, c_.moe_intermediate_size, l.shared.down.weight, unit);
  }

 private:
  std::string at_layer(int i) const {
    std::string name = n_.layer;
    return name.replace(name.find("{}"), 2, std::to_string(i));
  }
  void linear(const std::string& name, int64_t rows, int64_t cols, Linear& out, const std::string& unit) {
    b_.matrix(name + ".weight", rows, cols, out.weight, unit);
  }
  // Small, and they decide which entries are attended to: pack leaves them as they are.
  void rows(const std::string& name, int64_t rows, int64_t cols, Linear& out, const std::string& unit) {
    b_.matrix_in_rows(name + ".weight", rows, cols, out.weight, unit);
  }
  void compressor(const std::string& at, CompressKind kind, int64_t dim, Compressor& out, const std::string& unit) {
    const int64_t width = kind == CompressKind::kSparse ? 2 * dim : dim;
    b_.array(at + n_.pool_ape, {c_.compressed.ratio(kind), width}, out.ape, unit);
    rows(at + n_.pool_kv, width, c_.hidden_size, out.wkv, unit);
    rows(at + n_.pool_gate, width, c_.hidden_size, out.wgate, unit);
    b_.vector(at + n_.pool_norm + ".weight", dim, out.norm, unit);
  }

  const ModelConfig& c_;
  Binder& b_;
  const Names& n_;
};

void bind(const ModelConfig& c, Binder& b) {
  ModelWeights& w = b.weights();
  const Names& n = !b.has("model.embed_tokens.weight") ? kNative : b.has("model.layers.0.attn.wkv.weight") ? kSavedBack : kTransformers;
  LayerBinder layers(c, b, n);
  b.matrix(std::string(n.embed) + ".weight", c.vocab_size, c.hidden_size, w.embed_tokens, "embed_tokens");
  for (int i = 0; i < c.num_hidden_layers; ++i) {
    layers.attention(i, w.layers[static_cast<size_t>(i)]);
    layers.experts(i, w.layers[static_cast<size_t>(i)]);
  }
  layers.site(n.head_site, w.hyper_head, c.hyper.streams, 1, "norm");
  b.vector(std::string(n.norm) + ".weight", c.hidden_size, w.final_norm, "norm");
  b.head(std::string(n.head) + ".weight", c.vocab_size, c.hidden_size, w.lm_head, "lm_head");

  // Draft stages for speculative decoding. DSpark ones look like MTP layers but for their own projections.
  const bool is_dspark = b.has("mtp.0.main_proj.weight");
  if (const int64_t count = b.ignore_prefix("mtp.") + b.ignore_prefix("model.mtp."); count > 0) {
    b.note(format("{} tensors of {} (mtp.*) are not loaded: drafting tokens ahead is not implemented", count, is_dspark ? "DSpark stages" : "MTP layers"));
  }
}

ops::RouterContract router(const ModelConfig& c) {
  const ops::ScoreFunction score = c.router_score == RouterScore::kSqrtSoftplus ? ops::ScoreFunction::kSqrtSoftplus
                                   : c.router_score == RouterScore::kSigmoid    ? ops::ScoreFunction::kSigmoid
                                                                                : ops::ScoreFunction::kSoftmax;
  return {.score = score,
          .num_experts = static_cast<int32_t>(c.num_experts),
          .top_k = static_cast<int32_t>(c.num_experts_per_tok),
          .normalize = true,
          .norm_epsilon = 1e-20f,
          .scale = static_cast<float>(c.routed_scaling_factor)};
}

Status layer(ForwardPass& f, const LayerWeights& w, int layer_idx) {
  // X = post * attention(norm(pre . X)) + comb^T X
  PM_RETURN_IF_ERROR(layers::collapse_streams(f, w.attention_site, w.input_norm));
  PM_RETURN_IF_ERROR(layers::add_compressed_attention(f, w.compressed, layer_idx));
  PM_RETURN_IF_ERROR(layers::expand_streams(f));

  // X = post * (experts(x) + shared(x)) + comb^T X,  x = norm(pre . X)
  PM_RETURN_IF_ERROR(layers::collapse_streams(f, w.ffn_site, w.post_norm));
  PM_RETURN_IF_ERROR(f.add_moe(w, layer_idx));
  return layers::expand_streams(f);
}

}  // namespace

namespace {
constexpr VendorNumerics kVendor{.power_of_two_scales = true, .weigh_before_down = true};
}  // namespace

extern const Arch kDeepseekV4{.model_type = "deepseek_v4", .check = check, .bind = bind, .router = router, .layer = layer,
                              .vendor = &kVendor};

}  // namespace pointsman
