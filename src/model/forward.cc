// SPDX-License-Identifier: Apache-2.0
#include "model/forward.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "base/log.h"
#include "model/arch/arch.h"
#include "model/streamed_matrix.h"
#include "ops/activation/swiglu.h"
#include "ops/attention/attention.h"
#include "ops/embedding/embedding.h"
#include "ops/hyper/hyper_connection.h"
#include "ops/matmul/matmul.h"
#include "ops/moe/combine.h"
#include "ops/moe/expert_table.h"
#include "ops/norm/rms_norm.h"

namespace pointsman {
namespace {

// Vendor numerics: activations of coded weights have one scale for every so many channels.
constexpr int32_t kActivationBlock = 128;
// Room for so many rows of experts in one call, where the chunk has so many.
constexpr int64_t kGroupRows = 256;

ops::SwigluForm swiglu_form(const ModelConfig& c) {
  return {.alpha = static_cast<float>(c.swiglu_alpha),
          .limit = static_cast<float>(c.swiglu_limit),
          .up_offset = static_cast<float>(c.swiglu_up_offset)};
}

}  // namespace

Scratch Scratch::carve(Arena& a, const ModelConfig& c, Numerics n, const PassShape& shape) {
  const int64_t chunk = shape.chunk;
  Scratch s;
  s.chunk = chunk;
  const int64_t q_cols = c.num_attention_heads * c.head_dim;
  const int64_t kv_cols = c.num_key_value_heads * c.head_dim;
  s.ids = a.take_array<int32_t>(chunk);
  s.cos = a.take_array<float>(chunk * (c.head_dim / 2));
  s.sin = a.take_array<float>(chunk * (c.head_dim / 2));
  s.h = a.take_matrix(DType::kF32, chunk, c.hidden_size);
  s.x_f32 = a.take_matrix(DType::kF32, chunk, c.hidden_size);
  if (n != Numerics::kFp32) s.x_bf16 = a.take_matrix(DType::kBF16, chunk, c.hidden_size);
  s.q = a.take_matrix(DType::kF32, chunk, q_cols);
  s.k = a.take_matrix(DType::kF32, chunk, kv_cols);
  s.v = a.take_matrix(DType::kF32, chunk, kv_cols);
  s.attention_f32 = a.take_matrix(DType::kF32, chunk, c.latent ? c.num_attention_heads * c.latent.v : q_cols);
  // Either form is used, never both: o_proj reads one dtype.
  s.attention_bf16 = s.attention_f32;
  s.attention_bf16.dtype = DType::kBF16;
  // Rows of several experts go together; a few tokens shall not split the experts that they chose.
  const int64_t expert_rows = std::max(chunk, std::min(chunk * c.num_experts_per_tok, kGroupRows));
  const int64_t act_elements = std::max({chunk * std::max(c.intermediate_size, c.shared_expert_intermediate_size), expert_rows * c.moe_intermediate_size});
  s.mlp_act = a.take_matrix(DType::kF32, 1, act_elements);
  if (c.num_experts > 0) {
    s.router_logits = a.take_matrix(DType::kF32, chunk, c.num_experts);
    s.route_ids = a.take_array<int32_t>(chunk * c.num_experts_per_tok);
    s.route_weights = a.take_array<float>(chunk * c.num_experts_per_tok);
    s.report = a.take_array<ops::RouterReport>(2);
    s.x_rows = a.take_array<int32_t>(chunk * c.num_experts_per_tok);
    s.slot_rows = a.take_array<int32_t>(chunk * c.num_experts_per_tok);
    if (c.num_hash_layers > 0) s.given_ids = a.take_array<int32_t>(c.num_hash_layers * chunk * c.num_experts_per_tok);
    const int64_t predicted = std::min(chunk, ExpertPrediction::kMaxRows) * c.num_experts_per_tok;
    s.predicted_ids = a.take_array<int32_t>(predicted);
    s.predicted_weights = a.take_array<float>(predicted);
    s.predicted_report = a.take_array<ops::RouterReport>(1);
    s.slots = a.take_matrix(DType::kF32, chunk * c.num_experts_per_tok, c.hidden_size);
    if (c.shared_expert_is_gated) {
      s.shared_logits = a.take_matrix(DType::kF32, chunk, 1);
      s.shared_ids = a.take_array<int32_t>(chunk);
      s.shared_weights = a.take_array<float>(chunk);
    }
  }
  s.last_x = a.take_matrix(DType::kF32, shape.sequences, c.hidden_size);
  s.logits = a.take_matrix(DType::kF32, shape.sequences, c.vocab_size);
  const CompressedAttentionConfig& cc = c.compressed;
  if (n != Numerics::kFp32 && c.quantization.is_packed() && c.quantization.panels) {
    const int64_t latent = c.latent ? std::max(c.latent.q_lora_rank, c.num_attention_heads * c.latent.v) : 0;
    const int64_t widest = std::max({c.hidden_size, q_cols, latent, cc.q_lora_rank, cc.o_groups * cc.o_lora_rank});
    // Rows of another multiple are in no panels.
    s.x_i8 = ops::quantised_matrix(nullptr, chunk, (widest + ops::kQuantBlock - 1) / ops::kQuantBlock * ops::kQuantBlock);
    s.x_i8.data = a.take_array<uint8_t>(s.x_i8.size_bytes());
    s.last_x_bf16 = a.take_matrix(DType::kBF16, shape.sequences, c.hidden_size);
  }
  if (n == Numerics::kVendor) {
    const LatentAttentionConfig& l = c.latent;
    s.x_codes = a.take_matrix(DType::kF32, chunk, std::max({c.hidden_size, cc.q_lora_rank, cc.o_groups * cc.o_lora_rank, l.q_lora_rank, l.kv_lora_rank,
                                                            c.num_attention_heads * l.v}));
    if (c.hyper.streams == 0) s.residual = a.take_matrix(DType::kF32, chunk, c.hidden_size);
  }
  s.hyper = HyperScratch::carve(a, c, chunk);
  s.compressed = CompressedScratch::carve(a, c, n, shape);
  s.latent = LatentScratch::carve(a, c, n, chunk);
  return s;
}

HostScratch HostScratch::carve(Arena& a, const ModelConfig& c, const PassShape& shape) {
  const int64_t chunk = shape.chunk;
  HostScratch s;
  s.ids = a.take_array<int32_t>(chunk);
  s.cos = a.take_array<float>(chunk * (c.head_dim / 2));
  s.sin = a.take_array<float>(chunk * (c.head_dim / 2));
  if (c.num_experts > 0) {
    s.route_ids = a.take_array<int32_t>(chunk * c.num_experts_per_tok);
    s.given_ids = a.take_array<int32_t>(c.num_hash_layers * chunk * c.num_experts_per_tok);
    s.report = a.take_array<ops::RouterReport>(2);
    s.x_rows = a.take_array<int32_t>(chunk * c.num_experts_per_tok);
    s.slot_rows = a.take_array<int32_t>(chunk * c.num_experts_per_tok);
    s.offsets = a.take_array<int32_t>(c.num_experts + 1);
    s.active = a.take_array<int32_t>(c.num_experts);
    const int64_t predicted = std::min(chunk, ExpertPrediction::kMaxRows) * c.num_experts_per_tok;
    s.predicted_ids = a.take_array<int32_t>(predicted);
    s.predicted_order = a.take_array<int32_t>(predicted);
    s.predicted_report = a.take_array<ops::RouterReport>(1);
  }
  s.embed_order = a.take_array<int32_t>(chunk);
  s.embed_rows = a.take_array<int32_t>(chunk);
  s.logits = a.take_array<float>(shape.sequences * c.vocab_size);
  s.compressed = CompressedHostScratch::carve(a, c, shape);
  return s;
}

ForwardPass::ForwardPass(const Parts& parts, std::span<const int32_t> tokens, const ops::Sequences& sequences)
    : parts_(parts), ids_(tokens), sequences_(sequences), first_position_(sequences.first_position[0]), tokens_(static_cast<int64_t>(tokens.size())) {
  PM_CHECK(tokens_ >= 1 && tokens_ <= parts.scratch.chunk && sequences.fit(tokens_, cache().capacity()));
  PM_CHECK(parts.caches.size() == static_cast<size_t>(sequences.count) && (sequences.count == 1 || (parts.sink == nullptr && parts.replay == nullptr)));
  for (int s = 0; s < sequences.count; ++s) PM_CHECK(sequences.rows_of(s) >= 1);
}

Status ForwardPass::run(const Arch& arch) {
  const Scratch& s = parts_.scratch;
  Stream& stream = *parts_.ops.stream;
  PM_RETURN_IF_ERROR(embed());
  if (parts_.config.num_hash_layers > 0) PM_RETURN_IF_ERROR(route_by_token());

  const int64_t half = parts_.rope.rotary_dim() / 2;
  for (int i = 0; i < sequences_.count; ++i) {
    const int64_t at = sequences_.first_row[i] * half;
    parts_.rope.fill(sequences_.first_position[i], sequences_.rows_of(i), parts_.host.cos + at, parts_.host.sin + at);
  }
  const size_t table_bytes = static_cast<size_t>(tokens_ * half) * sizeof(float);
  PM_RETURN_IF_ERROR(stream.copy_to_device(s.cos, parts_.host.cos, table_bytes));
  PM_RETURN_IF_ERROR(stream.copy_to_device(s.sin, parts_.host.sin, table_bytes));

  if (!parts_.config.compressed.layers.empty()) PM_RETURN_IF_ERROR(layers::fill_compressed_ropes(*this));

  const bool has_streams = parts_.config.hyper.streams > 0;
  if (has_streams) PM_RETURN_IF_ERROR(layers::spread_streams(*this));
  for (size_t i = 0; i < parts_.weights.layers.size(); ++i) {
    const int layer_idx = static_cast<int>(i);
    layer_idx_ = layer_idx;
    PM_RETURN_IF_ERROR(replay_hidden(layer_idx));
    PM_RETURN_IF_ERROR(arch.layer(*this, parts_.weights.layers[i], layer_idx));
    if (parts_.sink != nullptr) PM_RETURN_IF_ERROR(record(layer_idx, "hidden", rows(has_streams ? s.hyper.streams : s.h)));
  }
  PM_RETURN_IF_ERROR(replay_hidden(static_cast<int>(parts_.weights.layers.size())));
  return has_streams ? layers::collapse_head(*this) : ok_status();
}

Status ForwardPass::route_by_token() {
  const Scratch& s = parts_.scratch;
  const int64_t top_k = parts_.options.router.top_k, num_ids = tokens_ * top_k;
  for (int64_t i = 0; i < parts_.config.num_hash_layers; ++i) {
    int32_t* const ids = s.given_ids + i * num_ids;
    PM_RETURN_IF_ERROR(ops::expert_table(parts_.ops, {.table = parts_.weights.layers[static_cast<size_t>(i)].expert_table, .tokens = s.ids, .rows = tokens_,
                                                      .top_k = top_k, .out = ids}));
    PM_RETURN_IF_ERROR(parts_.ops.stream->copy_to_host(parts_.host.given_ids + i * num_ids, ids, static_cast<size_t>(num_ids) * sizeof(int32_t)));
  }
  PM_RETURN_IF_ERROR(parts_.ops.stream->synchronize());
  for (int64_t i = 0; i < parts_.config.num_hash_layers; ++i) PM_RETURN_IF_ERROR(prefetch_hash_layer(static_cast<int>(i)));
  return ok_status();
}

Status ForwardPass::prefetch_hash_layer(int hash_layer) {
  const int64_t num_ids = tokens_ * parts_.options.router.top_k;
  return parts_.experts->prefetch(parts_.weights.layers[static_cast<size_t>(hash_layer)].moe_layer_idx,
                                  {parts_.host.given_ids + hash_layer * num_ids, static_cast<size_t>(num_ids)});
}

Status ForwardPass::embed() {
  const Scratch& s = parts_.scratch;
  Stream& stream = *parts_.ops.stream;
  StreamedMatrix* const on_demand = parts_.weights.embed_on_demand;
  if (on_demand != nullptr) {
    // The op sees a small table whose row t is token t's.
    const std::span<int32_t> order(parts_.host.embed_order, ids_.size()), identity(parts_.host.embed_rows, ids_.size());
    const Tensor table = Tensor::matrix(s.x_f32.data, parts_.weights.embed_tokens.dtype, tokens_, parts_.weights.embed_tokens.cols);
    PM_RETURN_IF_ERROR(on_demand->gather(stream, ids_, order, table));
    std::iota(identity.begin(), identity.end(), 0);
    PM_RETURN_IF_ERROR(stream.copy_to_device(s.ids, identity.data(), identity.size_bytes()));
    PM_RETURN_IF_ERROR(ops::embedding(parts_.ops, {.table = table, .ids = s.ids, .out = rows(s.h)}));
  }
  PM_RETURN_IF_ERROR(stream.copy_to_device(s.ids, ids_.data(), ids_.size_bytes()));  // routers by hash look at them too
  if (on_demand != nullptr) return ok_status();
  return ops::embedding(parts_.ops, {.table = parts_.weights.embed_tokens, .ids = s.ids, .out = rows(s.h)});
}

Status ForwardPass::final_norm(int64_t row, int64_t n, int64_t to) {
  const Scratch& s = parts_.scratch;
  PM_RETURN_IF_ERROR(ops::rms_norm(parts_.ops, {.x = s.h.slice_rows(row, n),
                                                .weight = parts_.weights.final_norm,
                                                .eps = static_cast<float>(parts_.config.rms_norm_eps),
                                                .out_f32 = s.last_x.slice_rows(to, n),
                                                .out_bf16 = s.last_x_bf16 ? s.last_x_bf16.slice_rows(to, n) : Tensor{}}));
  return round_bf16(s.last_x.slice_rows(to, n));
}

Status ForwardPass::head_logits(int64_t n) {
  const Scratch& s = parts_.scratch;
  Stream& stream = *parts_.ops.stream;
  const Weight& head = parts_.weights.lm_head;
  const Tensor logits = s.logits.slice_rows(0, n);
  Tensor x = s.last_x.slice_rows(0, n);
  // In rows it meets fp32, in panels what its format asks for.
  if (use_i8(head)) {
    PM_ASSIGN_OR_RETURN(x, quantised(x, head));
  } else if (head.layout == WeightLayout::kPanel32 && use_bf16(head)) {
    x = s.last_x_bf16.slice_rows(0, n);
  }
  if (parts_.weights.head_on_demand == nullptr) {
    PM_RETURN_IF_ERROR(ops::matmul(parts_.ops, {.x = x, .w = head, .y = logits}));
  } else {
    // A logit is one dot product whatever rows share the call, so windows leave no trace.
    PM_RETURN_IF_ERROR(parts_.weights.head_on_demand->for_each_window(stream, [&](int64_t first_row, const Tensor& rows) {
      Weight w = head;
      w.data = rows.data;
      w.rows = rows.rows;
      w.first_row = first_row;
      w.grid_of_rows = head.rows;
      Tensor y = logits;
      y.data = y.row<float>(0) + first_row;
      y.cols = rows.rows;
      return ops::matmul(parts_.ops, {.x = x, .w = w, .y = y});
    }));
  }
  PM_RETURN_IF_ERROR(stream.copy_to_host(parts_.host.logits, logits.data, static_cast<size_t>(logits.size_bytes())));
  return stream.synchronize();
}

Status ForwardPass::last_logits() {
  const int32_t n = sequences_.count;
  PM_CHECK(n <= parts_.scratch.last_x.rows);
  if (n == tokens_) {
    PM_RETURN_IF_ERROR(final_norm(0, n, 0));
  } else {
    for (int i = 0; i < n; ++i) PM_RETURN_IF_ERROR(final_norm(sequences_.first_row[i + 1] - 1, 1, i));
  }
  return head_logits(n);
}

Status ForwardPass::trace_logits() {
  for (int64_t t = 0; t < tokens_; ++t) {
    PM_RETURN_IF_ERROR(final_norm(t, 1, 0));
    PM_RETURN_IF_ERROR(head_logits(1));
    PM_RETURN_IF_ERROR(record_final_norm(t));
    PM_RETURN_IF_ERROR(parts_.sink->rows_f32("logits", first_position_ + t, 1, parts_.scratch.logits.cols, parts_.host.logits));
  }
  return ok_status();
}

Status ForwardPass::quantise_input(const Tensor& x) {
  return ops::simulate(parts_.ops, {.x = x, .out = codes_of(x), .code = ops::SimulatedCode::kE4M3,
                                    .scale = parts_.options.activation_scale, .block = kActivationBlock});
}

Status ForwardPass::begin_output() {
  if (!sets_residual_aside()) return ok_status();
  // One stream: h is copied, and zero.
  return ops::hc_spread(parts_.ops, {.h = rows(parts_.scratch.h), .streams = rows(parts_.scratch.residual)});
}

Status ForwardPass::end_output() {
  if (!sets_residual_aside()) return ok_status();
  const Tensor h = rows(parts_.scratch.h);
  PM_RETURN_IF_ERROR(round_bf16(h));
  PM_RETURN_IF_ERROR(ops::combine(parts_.ops, {.slots = rows(parts_.scratch.residual), .top_k = 1, .out = h}));
  return round_bf16(h);
}

Result<Tensor> ForwardPass::quantised(const Tensor& x, const Weight& weight) {
  const Scratch& s = parts_.scratch;
  const int64_t block = ops::quant_block_for(weight);
  const Tensor codes = ops::quantised_matrix(s.x_i8.data, x.rows, x.cols, block);
  const bool is_norm = x.data == s.x_f32.data && x.rows == tokens_;
  if (is_norm && x_i8_norm_block_ == block) return codes;
  PM_CHECK(codes.size_bytes() <= s.x_i8.size_bytes());
  PM_RETURN_IF_ERROR(ops::quantise_rows(parts_.ops, {.x = x, .out = codes}));
  x_i8_norm_block_ = is_norm ? block : 0;
  return codes;
}

Result<Tensor> ForwardPass::ffn_input(const Weight& weight) {
  const Tensor x = rows(parts_.scratch.x_f32);
  if (use_i8(weight)) return quantised(x, weight);
  if (quantises(weight)) return codes_of(x);
  return use_bf16(weight) ? rows(parts_.scratch.x_bf16) : x;
}

Status ForwardPass::norm(const Tensor& from, const float* weight) {
  const Scratch& s = parts_.scratch;
  x_i8_norm_block_ = 0;
  PM_RETURN_IF_ERROR(ops::rms_norm(parts_.ops, {.x = from,
                                    .weight = weight,
                                    .eps = static_cast<float>(parts_.config.rms_norm_eps),
                                    .out_f32 = rows(s.x_f32),
                                    .out_bf16 = s.x_bf16 ? rows(s.x_bf16) : Tensor{}}));
  return round_bf16(rows(s.x_f32));
}

Status ForwardPass::linear(const Linear& linear, Tensor y) {
  const Scratch& s = parts_.scratch;
  return this->linear(linear, rows(s.x_f32), s.x_bf16 ? rows(s.x_bf16) : Tensor{}, y);
}

Result<Tensor> ForwardPass::input_of(const Weight& weight, const Tensor& x_f32, const Tensor& x_bf16) {
  if (use_i8(weight)) return quantised(x_f32, weight);
  if (quantises(weight)) {
    PM_RETURN_IF_ERROR(quantise_input(x_f32));
    return codes_of(x_f32);
  }
  return use_bf16(weight) && x_bf16 ? x_bf16 : x_f32;
}

Status ForwardPass::linear(const Linear& linear, const Tensor& x_f32, const Tensor& x_bf16, Tensor y) {
  PM_ASSIGN_OR_RETURN(const Tensor x, input_of(linear.weight, x_f32, x_bf16));
  PM_RETURN_IF_ERROR(ops::matmul(parts_.ops, {.x = x, .w = linear.weight, .bias = linear.bias, .y = y}));
  return round_bf16(y);
}

Status ForwardPass::linears(std::span<const Projection> projections) {
  const Scratch& s = parts_.scratch;
  PM_CHECK(!projections.empty() && projections.size() <= 1 + ops::kMaxMoreParts);
  const Weight& first = projections[0].linear.weight;
  for (const Projection& p : projections) {
    const Weight& w = p.linear.weight;
    if (w.dtype == first.dtype && w.layout == first.layout && ops::quant_block_for(w) == ops::quant_block_for(first)) continue;
    for (const Projection& q : projections) PM_RETURN_IF_ERROR(linear(q.linear, q.y));
    return ok_status();
  }
  PM_ASSIGN_OR_RETURN(const Tensor x, input_of(first, rows(s.x_f32), s.x_bf16 ? rows(s.x_bf16) : Tensor{}));
  ops::MatmulArgs args{.x = x, .w = first, .bias = projections[0].linear.bias, .y = projections[0].y};
  for (const Projection& p : projections.subspan(1)) args.more[args.num_more++] = {.w = p.linear.weight, .bias = p.linear.bias, .y = p.y};
  PM_RETURN_IF_ERROR(ops::matmul(parts_.ops, args));
  for (const Projection& p : projections) PM_RETURN_IF_ERROR(round_bf16(p.y));
  return ok_status();
}

Status ForwardPass::rotate_and_cache(QkNorm qk_norm, const LayerWeights& w, int layer_idx) {
  const ModelConfig& c = parts_.config;
  PM_RETURN_IF_ERROR(record_projections(layer_idx));
  if (qk_norm == QkNorm::kWholeProjection) {
    for (const auto& [rows, weight] : {std::pair{q(), w.q_norm}, {k(), w.k_norm}}) {
      PM_RETURN_IF_ERROR(ops::rms_norm(
          parts_.ops, {.x = rows, .weight = weight, .eps = static_cast<float>(c.rms_norm_eps), .out_f32 = rows}));
    }
  }
  const bool per_head = qk_norm == QkNorm::kPerHead;
  return ops::qkv_prepare(parts_.ops, {.q = q(),
                                       .k = k(),
                                       .v = v(),
                                       .q_norm = per_head ? w.q_norm : nullptr,
                                       .k_norm = per_head ? w.k_norm : nullptr,
                                       .eps = static_cast<float>(c.rms_norm_eps),
                                       .clip = static_cast<float>(c.clip_qkv),
                                       .cos = parts_.scratch.cos,
                                       .sin = parts_.scratch.sin,
                                       .heads = static_cast<int32_t>(c.num_attention_heads),
                                       .kv_heads = static_cast<int32_t>(c.num_key_value_heads),
                                       .head_dim = static_cast<int32_t>(c.head_dim),
                                       .rotary_dim = static_cast<int32_t>(parts_.rope.rotary_dim()),
                                       .k_cache = each_cache([&](const KvCache& kv) { return kv.k(layer_idx); }),
                                       .v_cache = each_cache([&](const KvCache& kv) { return kv.v(layer_idx); }),
                                       .cache_dtype = cache().dtype(),
                                       .capacity = cache().capacity(),
                                       .sequences = sequences_});
}

Status ForwardPass::attend(int layer_idx) {
  const ModelConfig& c = parts_.config;
  PM_RETURN_IF_ERROR(record(layer_idx, "attention.q_rotated", q()));
  PM_RETURN_IF_ERROR(record(layer_idx, "attention.k_rotated", k()));
  const Weight& output = parts_.weights.layers[static_cast<size_t>(layer_idx)].o.weight;
  return ops::attention(parts_.ops, {.q = q(),
                                     .k_cache = each_cache([&](const KvCache& kv) { return kv.k(layer_idx); }),
                                     .v_cache = each_cache([&](const KvCache& kv) { return kv.v(layer_idx); }),
                                     .cache_dtype = cache().dtype(),
                                     .layout = cache().layout(),
                                     .capacity = cache().capacity(),
                                     .sequences = sequences_,
                                     .window = c.layer_window[static_cast<size_t>(layer_idx)],
                                     .heads = static_cast<int32_t>(c.num_attention_heads),
                                     .kv_heads = static_cast<int32_t>(c.num_key_value_heads),
                                     .head_dim = static_cast<int32_t>(c.head_dim),
                                     .scale = 1 / std::sqrt(static_cast<float>(c.head_dim)),
                                     .sinks = parts_.weights.layers[static_cast<size_t>(layer_idx)].sinks,
                                     .out = rows(use_bf16(output) ? parts_.scratch.attention_bf16 : parts_.scratch.attention_f32)});
}

Status ForwardPass::add_output(const Linear& output) {
  Tensor x = rows(use_bf16(output.weight) ? parts_.scratch.attention_bf16 : parts_.scratch.attention_f32);
  PM_RETURN_IF_ERROR(record(layer_idx_, "attention.context", x));
  if (use_i8(output.weight)) {
    PM_ASSIGN_OR_RETURN(x, quantised(x, output.weight));
  } else if (quantises(output.weight)) {
    PM_RETURN_IF_ERROR(quantise_input(x));
    x = codes_of(x);
  }
  return ops::matmul(parts_.ops,
                     {.x = x, .w = output.weight, .bias = output.bias, .y = rows(parts_.scratch.h), .accumulate = true});
}

Status ForwardPass::mlp(const Mlp& mlp, Tensor out, bool accumulate) {
  const bool simulated = quantises(mlp.gate.weight);
  if (simulated) PM_RETURN_IF_ERROR(quantise_input(rows(parts_.scratch.x_f32)));
  PM_ASSIGN_OR_RETURN(const Tensor x, ffn_input(mlp.gate.weight));
  return ops::swiglu_ffn(parts_.ops, {.x = x,
                                      .form = swiglu_form(parts_.config),
                                      .act_block = simulated ? kActivationBlock : 0,
                                      .act_scale = parts_.options.activation_scale,
                                      .act = act_like(x, tokens_, mlp.down.weight),
                                      .out = out,
                                      .accumulate = accumulate,
                                      .experts = {{.w_gate = mlp.gate.weight,
                                                   .w_up = mlp.up.weight,
                                                   .w_down = mlp.down.weight,
                                                   .gate_bias = mlp.gate.bias,
                                                   .up_bias = mlp.up.bias,
                                                   .down_bias = mlp.down.bias,
                                                   .rows = tokens_}}});
}

Status ForwardPass::add_mlp(const Mlp& m) {
  PM_RETURN_IF_ERROR(record_mlp_input(layer_idx_));
  return mlp(m, rows(parts_.scratch.h), true);
}

// Ids, weights and what went wrong, on the device.
Status ForwardPass::route_tokens(const LayerWeights& w, int layer_idx) {
  const Scratch& s = parts_.scratch;
  PM_RETURN_IF_ERROR(ops::matmul(parts_.ops, {.x = rows(s.x_f32), .w = w.router, .bias = w.router_logit_bias, .y = rows(s.router_logits)}));
  PM_RETURN_IF_ERROR(ops::route(parts_.ops, {.contract = parts_.options.router,
                                             .logits = rows(s.router_logits),
                                             .bias = w.router_bias,
                                             .given_ids = w.expert_table != nullptr ? s.given_ids + layer_idx * tokens_ * parts_.options.router.top_k : nullptr,
                                             .noise = {.enabled = parts_.options.route_noise,
                                                       .seed = parts_.options.route_noise_seed,
                                                       .layer = static_cast<uint32_t>(layer_idx)},
                                             .sequences = sequences_,
                                             .ids = s.route_ids,
                                             .weights = s.route_weights,
                                             .report = s.report}));
  if (!w.shared_gate) return ok_status();
  // A sigmoid gate is a router with one expert.
  PM_RETURN_IF_ERROR(ops::matmul(parts_.ops, {.x = rows(s.x_f32), .w = w.shared_gate, .y = rows(s.shared_logits)}));
  return ops::route(parts_.ops, {.contract = {.score = ops::ScoreFunction::kSigmoid, .num_experts = 1, .top_k = 1},
                                 .logits = rows(s.shared_logits),
                                 .ids = s.shared_ids,
                                 .weights = s.shared_weights,
                                 .report = s.report + 1});
}

Status ForwardPass::add_shared_expert(const LayerWeights& w) {
  const Scratch& s = parts_.scratch;
  if (!w.shared_gate) return mlp(w.shared, rows(s.h), true);
  const Tensor out = s.slots.slice_rows(0, tokens_);
  PM_RETURN_IF_ERROR(mlp(w.shared, out, false));
  return ops::combine(parts_.ops, {.slots = out, .weights = s.shared_weights, .top_k = 1, .out = rows(s.h)});
}

Status ForwardPass::compute_experts(const LayerWeights& w, int layer_idx, bool& weighted) {
  const Scratch& s = parts_.scratch;
  const HostScratch& host = parts_.host;
  const int64_t num_slots = tokens_ * parts_.options.router.top_k;
  bool codes_made = false;
  // In the order in which experts become ready: all that are, in one call. Each writes its own rows of `slots`, so neither order nor grouping
  // leaves a trace.
  ExpertHandle ahead;  // taken, but it did not go with the others
  for (;;) {
    if (!ahead) {
      PM_ASSIGN_OR_RETURN(ahead, parts_.experts->next());
      if (!ahead) return ok_status();
    }
    ops::SwigluFfnArgs group;
    ExpertHandle handles[ops::kMaxFfnExperts];
    group.num_experts = 0;
    const Weight like = ahead.part(ExpertPart::kGate);
    const Weight down_like = ahead.part(ExpertPart::kDown);
    const bool simulated = quantises(like);
    if (simulated && !std::exchange(codes_made, true)) PM_RETURN_IF_ERROR(quantise_input(rows(s.x_f32)));
    const bool weigh = simulated && parts_.options.weigh_before_down;
    weighted = weighted || weigh;
    PM_ASSIGN_OR_RETURN(const Tensor x, ffn_input(like));
    const int64_t most_rows = s.mlp_act.size_bytes() / act_like(x, 1, down_like).size_bytes();
    int64_t group_rows = 0;
    while (ahead && group.num_experts < ops::kMaxFfnExperts) {
      const Weight gate = ahead.part(ExpertPart::kGate), down = ahead.part(ExpertPart::kDown);
      const int64_t id = ahead.expert_id();
      const int64_t begin = host.offsets[id], expert_rows = host.offsets[id + 1] - begin;
      const bool same_blocks = ops::quant_block_for(gate) == ops::quant_block_for(like) && ops::quant_block_for(down) == ops::quant_block_for(down_like);
      const bool joins = gate.dtype == like.dtype && gate.layout == like.layout && down.cols == down_like.cols && same_blocks &&
                         group_rows + expert_rows <= most_rows;
      if (!joins && group.num_experts > 0) break;
      group.experts[group.num_experts] = {.w_gate = gate,
                                          .w_up = ahead.part(ExpertPart::kUp),
                                          .w_down = down,
                                          .gate_bias = w.expert_gate_bias != nullptr ? w.expert_gate_bias + id * gate.rows : nullptr,
                                          .down_bias = w.expert_down_bias != nullptr ? w.expert_down_bias + id * down.rows : nullptr,
                                          .first = begin,
                                          .rows = expert_rows};
      group_rows += expert_rows;
      handles[group.num_experts++] = std::move(ahead);
      PM_ASSIGN_OR_RETURN(ahead, parts_.experts->try_next());
    }
    group.x = x, group.x_rows = s.x_rows;
    group.form = swiglu_form(parts_.config);
    group.act_weights = weigh ? s.route_weights : nullptr;
    group.act_block = simulated ? kActivationBlock : 0;
    group.act_scale = parts_.options.activation_scale;
    group.act = act_like(x, group_rows, down_like);
    group.out = s.slots.slice_rows(0, num_slots), group.out_rows = s.slot_rows;
    PM_RETURN_IF_ERROR(ops::swiglu_ffn(parts_.ops, group));
    int64_t act_row = 0;
    for (int e = 0; e < group.num_experts; ++e) {
      const ops::FfnExpert& expert = group.experts[e];
      PM_RETURN_IF_ERROR(record_act(layer_idx, group.act.slice_rows(act_row, expert.rows),
                                    {host.slot_rows + expert.first, static_cast<size_t>(expert.rows)}));
      act_row += expert.rows;
    }
  }
}

Status ForwardPass::add_moe(const LayerWeights& w, int layer_idx) {
  const Scratch& s = parts_.scratch;
  const HostScratch& host = parts_.host;
  const ops::RouterContract& contract = parts_.options.router;
  Stream& stream = *parts_.ops.stream;

  PM_RETURN_IF_ERROR(record_mlp_input(layer_idx));
  PM_RETURN_IF_ERROR(route_tokens(w, layer_idx));
  const size_t num_slots = static_cast<size_t>(tokens_ * contract.top_k);
  PM_RETURN_IF_ERROR(stream.copy_to_host(host.route_ids, s.route_ids, num_slots * sizeof(int32_t)));
  PM_RETURN_IF_ERROR(stream.copy_to_host(host.report, s.report, (w.shared_gate ? 2 : 1) * sizeof(ops::RouterReport)));
  PM_RETURN_IF_ERROR(stream.synchronize());
  PM_RETURN_IF_ERROR(check_routes(w, layer_idx));
  PM_RETURN_IF_ERROR(replay_routes(layer_idx));
  compare_prediction(w.moe_layer_idx);
  if (parts_.sink != nullptr) PM_RETURN_IF_ERROR(record_routes(layer_idx));

  // Only experts with at least one token are asked for, so the others are never read.
  const int32_t num_active =
      ops::sort_slots({host.route_ids, num_slots}, {host.offsets, static_cast<size_t>(contract.num_experts) + 1},
                      {host.slot_rows, num_slots}, {host.active, static_cast<size_t>(contract.num_experts)});
  for (size_t r = 0; r < num_slots; ++r) host.x_rows[r] = host.slot_rows[r] / contract.top_k;
  PM_RETURN_IF_ERROR(parts_.experts->begin(w.moe_layer_idx, {host.active, static_cast<size_t>(num_active)},
                                           {host.offsets, static_cast<size_t>(contract.num_experts) + 1}));
  // What did not fit when the pass began may fit now.
  if (layer_idx + 1 < parts_.config.num_hash_layers) PM_RETURN_IF_ERROR(prefetch_hash_layer(layer_idx + 1));
  PM_RETURN_IF_ERROR(stream.copy_to_device(s.x_rows, host.x_rows, num_slots * sizeof(int32_t)));
  PM_RETURN_IF_ERROR(stream.copy_to_device(s.slot_rows, host.slot_rows, num_slots * sizeof(int32_t)));

  // Whatever happens below, no read of this batch outlives it.
  struct EndBatch {
    ExpertStore& store;
    ~EndBatch() { store.end(); }
  } end_batch{*parts_.experts};
  // While the experts are read.
  PM_RETURN_IF_ERROR(predict_next(layer_idx));
  if (w.shared.gate.weight) PM_RETURN_IF_ERROR(add_shared_expert(w));
  if (sets_residual_aside()) PM_RETURN_IF_ERROR(round_bf16(rows(s.h)));  // the shared expert's output
  bool weighted = false;  // are the routing weights in the rows already?
  PM_RETURN_IF_ERROR(compute_experts(w, layer_idx, weighted));
  PM_RETURN_IF_ERROR(record_slots(layer_idx));
  if (sets_residual_aside()) PM_RETURN_IF_ERROR(round_bf16(s.slots.slice_rows(0, static_cast<int64_t>(num_slots))));
  return ops::combine(parts_.ops, {.slots = s.slots.slice_rows(0, static_cast<int64_t>(num_slots)),
                                   .weights = weighted ? nullptr : s.route_weights,
                                   .top_k = contract.top_k,
                                   .out = rows(s.h)});
}

std::string ForwardPass::place_of(int64_t row) const {
  const int s = sequences_.of_row(row);
  const int64_t position = sequences_.position(s, row);
  return sequences_.count == 1 ? format("token {}", position) : format("sequence {} token {}", s, position);
}

Status ForwardPass::check_routes(const LayerWeights& w, int layer_idx) {
  if (w.shared_gate && parts_.host.report[1].bad_token >= 0) {
    return error(StatusCode::kCorrupt,
                 "layer {} {}: the gate of the shared expert is NaN or infinite; the weights or the numerics are broken, no "
                 "token was chosen",
                 layer_idx, place_of(parts_.host.report[1].bad_token));
  }
  const ops::RouterReport& report = *parts_.host.report;
  if (report.bad_token >= 0) {
    return error(StatusCode::kCorrupt,
                 "layer {} {}: a router logit or bias is NaN or infinite; the weights or the numerics are broken, no token was chosen",
                 layer_idx, place_of(report.bad_token));
  }
  if (report.guard_count > 0) {
    if (parts_.options.router.guard == ops::GuardAction::kRefuse) {
      return error(StatusCode::kCorrupt,
                   "layer {} {}: routing weights do not sum to 1 within {} ({} tokens); --router-guard uniform would use equal "
                   "weights instead",
                   layer_idx, place_of(report.guard_token), parts_.options.router.guard_tolerance, report.guard_count);
    }
    parts_.guard_fired += static_cast<uint64_t>(report.guard_count);
  }
  return ok_status();
}

}  // namespace pointsman
