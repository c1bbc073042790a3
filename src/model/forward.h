// SPDX-License-Identifier: Apache-2.0
//
// ForwardPass: one chunk of tokens going through the layers. The tokens may belong to several sequences, one run of rows each: a chunk of a
// prompt is one sequence, a decode step one row of every session. It owns no memory: activations lie in a Scratch carved once from the
// engine's buffer, so that a pass allocates nothing. Its methods are the vocabulary of the architecture files.
//
// Numerics: the residual stream h is fp32 in both modes. In bf16 mode the input of a matmul with bf16 weights is rounded to bf16 once
// (by the norm, the attention or SwiGLU that makes it); router, gate of the shared expert and LM head always read fp32. See docs/design/numerics.md.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/model_config.h"
#include "experts/store.h"
#include "memory/arena.h"
#include "model/expert_prediction.h"
#include "model/kv_cache.h"
#include "model/layers/compressed_attention.h"
#include "model/layers/hyper_connection.h"
#include "model/layers/latent_attention.h"
#include "model/rope.h"
#include "model/weights.h"
#include "ops/context.h"
#include "ops/moe/router.h"
#include "ops/quant/quantise.h"
#include "ops/quant/simulate.h"
#include "ops/sequences.h"
#include "pointsman/options.h"
#include "pointsman/session.h"

namespace pointsman {

// The largest pass: tokens of all sequences together, and sequences whose logits are asked for.
struct PassShape {
  int64_t chunk = 0;
  int64_t sequences = 1;
  int64_t positions = 0;  // tokens of a sequence, at most
};

// Activations of a pass of at most `chunk` tokens. Device addresses, but for the host_ members.
struct Scratch {
  int64_t chunk = 0;
  int32_t* ids = nullptr;        // [chunk]
  float* cos = nullptr;          // [chunk, rotary_dim / 2]
  float* sin = nullptr;
  Tensor h;                      // [chunk, hidden] residual stream
  Tensor x_f32, x_bf16;          // [chunk, hidden] normed input; x_bf16 in bf16 mode only. Before the first layer x_f32 is
                                 // the place of embedding rows that were read on demand
  Tensor q, k, v;                // [chunk, heads * head_dim], [chunk, kv_heads * head_dim]
  Tensor attention_f32, attention_bf16;  // [chunk, heads * head_dim]
  Tensor mlp_act;                // raw bytes for [rows, intermediate] of either dtype, rows of several experts at once
  Tensor router_logits;          // [chunk, experts]
  int32_t* route_ids = nullptr;  // [chunk, top_k]
  float* route_weights = nullptr;
  ops::RouterReport* report = nullptr;  // of the router, of the shared expert's gate
  int32_t* x_rows = nullptr;     // [chunk * top_k] token of each expert row
  int32_t* slot_rows = nullptr;  // [chunk * top_k] slot of each expert row
  int32_t* given_ids = nullptr;  // [num_hash_layers, chunk, top_k] experts that follow from the token ids
  int32_t* predicted_ids = nullptr;      // [min(chunk, ExpertPrediction::kMaxRows), top_k]
  float* predicted_weights = nullptr;
  ops::RouterReport* predicted_report = nullptr;
  Tensor slots;                  // [chunk * top_k, hidden] expert outputs; before those, the shared expert's in the first rows
  Tensor shared_logits;          // [chunk, 1] gate of the shared expert
  int32_t* shared_ids = nullptr;
  float* shared_weights = nullptr;
  Tensor last_x;                 // [sequences, hidden] final norm of the last row of each
  Tensor last_x_bf16;            // the same in BF16 where a head in panels may read it, else empty
  Tensor logits;                 // [sequences, vocab]
  Tensor x_i8;                   // [chunk, widest input of a packed weight] quantised rows; of packed models in bf16 mode only. Room for blocks of 32, the most
  Tensor x_codes;                // [chunk, widest input of a coded weight] vendor numerics only: an input as its codes mean
  Tensor residual;               // [chunk, hidden] vendor numerics without streams: h while a sublayer's output is summed
  HyperScratch hyper;            // of families that have them
  CompressedScratch compressed;
  LatentScratch latent;

  // Pieces of `device`; with a counting arena, sizes only.
  static Scratch carve(Arena& device, const ModelConfig& c, Numerics n, const PassShape& shape);
};

// Host side of the routing bookkeeping, and rows on their way to a TraceSink.
struct HostScratch {
  int32_t* ids = nullptr;        // [chunk] for tokens that come from several sessions
  float* cos = nullptr;
  float* sin = nullptr;
  int32_t* route_ids = nullptr;
  int32_t* given_ids = nullptr;
  ops::RouterReport* report = nullptr;
  int32_t* x_rows = nullptr;
  int32_t* slot_rows = nullptr;
  int32_t* offsets = nullptr;    // [experts + 1]
  int32_t* active = nullptr;     // [experts]
  int32_t* predicted_ids = nullptr;    // [min(chunk, ExpertPrediction::kMaxRows), top_k]
  int32_t* predicted_order = nullptr;  // the same, best first
  ops::RouterReport* predicted_report = nullptr;
  int32_t* embed_order = nullptr;  // [chunk] for embedding rows on demand: the tokens by row,
  int32_t* embed_rows = nullptr;   // and where each token's row was put
  float* logits = nullptr;       // [sequences, vocab]
  CompressedHostScratch compressed;

  static HostScratch carve(Arena& host, const ModelConfig& c, const PassShape& shape);
};

struct ForwardOptions {
  Numerics numerics = Numerics::kBf16;
  ops::RouterContract router;    // of the architecture, guard filled in
  // Vendor numerics (VendorNumerics of the architecture).
  ops::SimulatedScale activation_scale = ops::SimulatedScale::kPowerOfTwo;
  bool weigh_before_down = false;
  bool route_noise = false;
  uint64_t route_noise_seed = 0;
};

class ForwardPass {
 public:
  struct Parts {                 // borrowed for the life of the pass
    ops::OpContext& ops;
    const ModelConfig& config;
    const ForwardOptions& options;
    const ModelWeights& weights;
    const RopeTable& rope;
    const RopeTable& compress_rope;  // of layers with compressed attention; empty without
    const Scratch& scratch;
    const HostScratch& host;
    ExpertStore* experts;        // null for a dense model
    std::span<KvCache* const> caches;  // of each sequence: of one shape and dtype
    uint64_t& guard_fired;       // counter
    TraceSink* sink;             // null: nothing is recorded. REQUIRES, as a replay does: one sequence
    TraceSource* replay = nullptr;  // null: the pass uses its own values
    ExpertPrediction* prediction = nullptr;  // null: no guesses about experts
  };
  // REQUIRES: 1 <= tokens.size() == sequences.rows() <= scratch.chunk; no empty sequence, and room in its cache.
  ForwardPass(const Parts& parts, std::span<const int32_t> tokens, const ops::Sequences& sequences);

  // Embedding, all layers by the architecture's recipe. Then logits().
  Status run(const struct Arch& arch);
  // Logits of the last token of every sequence into host.logits. REQUIRES: as many sequences as the scratch has rows for, or fewer.
  Status last_logits();
  // Logits of every token, one row at a time, to the sink as "logits".
  Status trace_logits();

  // --- the vocabulary of a layer recipe ---
  Tensor q() const { return rows(parts_.scratch.q); }
  Tensor k() const { return rows(parts_.scratch.k); }
  Tensor v() const { return rows(parts_.scratch.v); }
  const Parts& parts() const { return parts_; }
  int64_t tokens() const { return tokens_; }
  const ops::Sequences& sequences() const { return sequences_; }
  // What all caches have in common; and one address of each, for an op.
  const KvCache& cache() const { return *parts_.caches[0]; }
  template <class F>
  ops::PerSequence each_cache(F&& address) const {
    ops::PerSequence list;
    for (size_t s = 0; s < parts_.caches.size(); ++s) list.at[s] = address(*parts_.caches[s]);
    return list;
  }
  // The rows of this pass of a scratch matrix.
  Tensor rows(const Tensor& t) const { return t.slice_rows(0, tokens_); }
  // In bf16 mode inputs of a matmul with such a weight are rounded to bf16.
  // Coded and transposed weights as published read fp32: their elements are decoded to fp32 anyway.
  bool use_bf16(const Weight& weight) const {
    if (parts_.options.numerics == Numerics::kFp32) return false;
    if (weight.layout == WeightLayout::kPanel32) return weight.dtype == DType::kBF16 || weight.dtype == DType::kF8E4M3;
    return weight.dtype == DType::kBF16 && weight.layout == WeightLayout::kOutIn;
  }
  // In bf16 mode inputs of packed INT8 and FP4 weights are quantised, from their fp32 values.
  bool use_i8(const Weight& weight) const {
    return parts_.options.numerics != Numerics::kFp32 && weight.layout == WeightLayout::kPanel32 && (weight.dtype == DType::kI8 || weight.dtype == DType::kF4);
  }
  // Vendor numerics: fp32 rows hold bf16 values, and what meets a coded weight goes through E4M3 codes. In other numerics these do nothing.
  bool is_vendor() const { return parts_.options.numerics == Numerics::kVendor; }
  Status round_bf16(const Tensor& x) { return is_vendor() ? ops::simulate(parts_.ops, {.x = x, .out = x}) : ok_status(); }
  // Vendor numerics round a sublayer's output before it joins the residual, and the sum again: between these two, h holds the output alone.
  // Families with streams have their own way.
  Status begin_output();
  Status end_output();
  Status simulate(const ops::SimulateArgs& args) { return is_vendor() ? ops::simulate(parts_.ops, args) : ok_status(); }
  // x = RMSNorm(h) * weight
  Status norm(const float* weight) { return norm(rows(parts_.scratch.h), weight); }
  // x = RMSNorm(from) * weight; `from` may be x_f32.
  Status norm(const Tensor& from, const float* weight);
  // y = x W^T + b
  Status linear(const Linear& linear, Tensor y);
  // The same with another input, in both of its forms; without the bf16 one the input stays fp32.
  Status linear(const Linear& linear, const Tensor& x_f32, const Tensor& x_bf16, Tensor y);
  // Several products of x in one step of the thread pool, where their weights are of one kind. At most four.
  struct Projection {
    const Linear& linear;
    Tensor y;
  };
  Status linears(std::span<const Projection> projections);
  // q, k: norm, clip_qkv of the config (v too), RoPE; k, v into the cache of the layer.
  Status rotate_and_cache(QkNorm qk_norm, const LayerWeights& weights, int layer_idx);
  // attention = softmax(q k^T / sqrt(head_dim)) v over the cache of the layer.
  Status attend(int layer_idx);
  // h += attention W^T + b
  Status add_output(const Linear& output);
  // h += down(silu(gate x) * up x)
  Status add_mlp(const Mlp& mlp);
  // h += sum over the chosen experts of weight * expert(x), and the shared expert where there is one: w.shared(x), times
  // sigmoid(w.shared_gate x) where that is given
  Status add_moe(const LayerWeights& weights, int layer_idx);

 private:
  // What a product with `weight` reads of rows that there are in fp32 and, perhaps, in bf16: those, or codes made of them.
  Result<Tensor> input_of(const Weight& weight, const Tensor& x_f32, const Tensor& x_bf16);
  // fp32 rows (of x_f32 or others) as the 8-bit codes that a packed weight reads, in its blocks. The codes of x_f32 are made once after each norm, and
  // again where weights of other blocks read them.
  Result<Tensor> quantised(const Tensor& x, const Weight& weight);
  // act of a feed-forward whose input is `x`.
  Tensor act_like(const Tensor& x, int64_t num_rows, const Weight& down) const {
    const int64_t cols = down.cols;
    void* const data = parts_.scratch.mlp_act.data;
    return x.dtype == DType::kI8 ? ops::quantised_matrix(data, num_rows, cols, ops::quant_block_for(down)) : Tensor::matrix(data, x.dtype, num_rows, cols);
  }
  // Is the input of such a weight quantised? Then quantise_input(x) makes codes_of(x).
  bool quantises(const Weight& weight) const { return is_vendor() && is_coded(weight.dtype) && weight.layout != WeightLayout::kPanel32; }
  Tensor codes_of(const Tensor& x) const { return Tensor::matrix(parts_.scratch.x_codes.data, DType::kF32, x.rows, x.cols); }
  Status quantise_input(const Tensor& x);
  // What a feed-forward with such a gate reads: the normed input in its form, made here when it is codes.
  Result<Tensor> ffn_input(const Weight& weight);
  bool sets_residual_aside() const { return is_vendor() && parts_.config.hyper.streams == 0; }
  Status embed();
  // Final norm of `n` rows from `row` on into last_x from row `to` on; then logits of the first `n` rows of last_x, to the host.
  Status final_norm(int64_t row, int64_t n, int64_t to);
  Status head_logits(int64_t n);
  // Experts of the layers whose routes follow from the token ids, into given_ids; their reads begin.
  Status route_by_token();
  Status prefetch_hash_layer(int hash_layer);
  Status mlp(const Mlp& mlp, Tensor out, bool accumulate);
  Status route_tokens(const LayerWeights& weights, int layer_idx);
  Status add_shared_expert(const LayerWeights& weights);
  // The batch that the store has begun, into slots. `weighted`: the routing weights are in the rows already.
  Status compute_experts(const LayerWeights& weights, int layer_idx, bool& weighted);
  Status check_routes(const LayerWeights& weights, int layer_idx);
  // Where a row is, for messages: "token 17", or "sequence 3 token 17".
  std::string place_of(int64_t row) const;
  // Guesses about experts (forward_predict.cc).
  Status predict_next(int layer_idx);
  void compare_prediction(int moe_layer_idx);
  // Trace points and replay (forward_trace.cc). Nothing happens without a sink or a source.
  Status record(int layer_idx, const char* what, const Tensor& rows);
  Status record_projections(int layer_idx);
  Status record_mlp_input(int layer_idx);
  Status record_routes(int layer_idx);
  Status record_act(int layer_idx, const Tensor& act, std::span<const int32_t> slots);
  Status record_slots(int layer_idx);
  Status record_final_norm(int64_t token);
  Status replay_hidden(int layer_idx);  // the input of the layer; layers.size(): of the head
  Status replay_routes(int layer_idx);

  Parts parts_;
  std::span<const int32_t> ids_;
  ops::Sequences sequences_;
  int64_t first_position_;  // of the one sequence that is traced
  int64_t tokens_;
  int layer_idx_ = 0;
  int64_t x_i8_norm_block_ = 0;  // does x_i8 hold the codes of x_f32? In blocks of so many then
  std::vector<float> act_rows_;  // [tokens * top_k, intermediate] of one layer, on their way to the sink
};

}  // namespace pointsman
