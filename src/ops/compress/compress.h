// SPDX-License-Identifier: Apache-2.0
//
// DeepSeek-V4's compressed attention (arXiv 2606.19348): tokens beyond a window are seen as entries, each pooling `ratio` tokens; an indexer
// chooses among many; queries attend to window and entries with one softmax and a sink.
//
// State is by absolute position, so that prefill may be split anywhere: token p of a ring of `capacity` rows lies in row p mod
// capacity; entry e pools tokens e * ratio .. (e + 1) * ratio - 1 and is visible to queries at p with e < (p + 1) / ratio. Every op reads older
// tokens from the ring and those of its own chunk from the chunk, then writes the chunk's last rows into the ring. Every sequence of a pass
// has its own rings and entries; its chunk is its run of rows.
#pragma once

#include "ops/context.h"
#include "ops/sequences.h"
#include "tensor/tensor.h"

namespace pointsman::ops {

// Entries that close within the chunk. Channel c of entry e is
//   sum_i softmax_i(s_i[c]) a_i[c],  s = gate + ape[p mod ratio]
// over the tokens of its window; with `overlap` a and s have 2 * dim channels, and the window is followed: the first dim channels of the
// tokens of window e - 1 (none for e = 0), the last dim channels of those of window e. Then RMSNorm with `norm`, rotation of the last
// channels at position e * ratio, and one rounding to the cache's dtype.
// cos and sin hold the entries of one sequence after the other, as closing_entries() counts them.
struct CompressArgs {
  Tensor a, gate;                  // [tokens, width] kF32, width = dim or 2 * dim
  const float* ape = nullptr;      // device [ratio, width]
  PerSequence ring;                // device [ring_rows, 2 * width] kF32: a, then s
  int64_t ring_rows = 0;           // >= ratio - 1, with overlap >= 2 * ratio - 1
  Sequences sequences;
  int64_t ratio = 0;
  bool overlap = false;
  const float* norm = nullptr;     // device [dim]
  float eps = 0;
  const float* cos = nullptr;      // device [new entries, rotary_dim / 2]
  const float* sin = nullptr;
  int64_t rotary_dim = 0;
  PerSequence entries;             // device [entry_rows, dim] of entry_dtype
  DType entry_dtype = DType::kF32; // kF32 or kBF16
  int64_t entry_rows = 0, dim = 0;

  template <class F>
  void each_address(F&& visit) {
    visit(a.data), visit(gate.data);
    ring.each_address(sequences.count, visit), entries.each_address(sequences.count, visit);
    for (const float** p : {&ape, &norm, &cos, &sin}) visit(const_cast<void*&>(reinterpret_cast<const void*&>(*p)));
  }
};
Status compress(OpContext& ctx, const CompressArgs& args);

// The entries that close within the chunks, as runs of rows: sequence s makes rows_of(s) of them, from entry first_position[s] on.
Sequences closing_entries(const Sequences& tokens, int64_t ratio);

// The top_k entries of highest score among those visible, ascending; ties to the lower entry. All of them when there are no more.
//   score_e = sum over heads h, ascending, of weights[h] * scale * max(0, q_h . key_e), fp32
struct IndexSelectArgs {
  Tensor q;                       // [tokens, heads * dim] kF32
  Tensor weights;                 // [tokens, heads] kF32
  float scale = 1;
  PerSequence keys;               // device [*, dim] of key_dtype
  DType key_dtype = DType::kF32;  // kF32 or kBF16
  int64_t heads = 0, dim = 0;
  Sequences sequences;
  int64_t ratio = 0;
  int64_t top_k = 0;              // <= kMaxIndexTopK
  int32_t* ids = nullptr;         // device [tokens, top_k]
  int32_t* counts = nullptr;      // device [tokens]
  // Scratch, device [num_scores] or null: with fewer tokens than threads those share the entries of a token, as long as num_scores holds the
  // scores of all. The same bits either way.
  float* scores = nullptr;
  int64_t num_scores = 0;

  template <class F>
  void each_address(F&& visit) {
    visit(q.data), visit(weights.data), visit(reinterpret_cast<void*&>(ids)), visit(reinterpret_cast<void*&>(counts));
    visit(reinterpret_cast<void*&>(scores));
    keys.each_address(sequences.count, visit);
  }
};
inline constexpr int64_t kMaxIndexTopK = 4096;
Status index_select(OpContext& ctx, const IndexSelectArgs& args);

// out[t, h] = sum_j p_j k_j over the keys of token t: those of the window, ascending, then its entries, ascending; key and value
// are one vector for all heads. p = softmax(scale * q . k) with exp(sink_h) added to the denominator. Keys are taken in blocks of 64 of that
// list (online softmax), so that a row depends on nothing but its position. Then the chunk's keys go into the ring.
struct CompressedAttentionArgs {
  Tensor q;                         // [tokens, heads * dim] kF32; rounded to bf16 when the cache is bf16
  Tensor new_keys;                  // [tokens, dim] of cache_dtype
  PerSequence ring;                 // device [ring_rows, dim] of cache_dtype
  int64_t ring_rows = 0;            // >= window - 1
  PerSequence entries;              // device [*, dim], or null in all sequences
  const int32_t* ids = nullptr;     // device [tokens, max_ids] of index_select, or null: all visible entries
  const int32_t* counts = nullptr;  // device [tokens]
  int64_t max_ids = 0;
  int64_t ratio = 0;                // of the entries
  DType cache_dtype = DType::kF32;  // kF32 or kBF16
  const float* sinks = nullptr;     // device [heads]
  float scale = 1;
  int64_t window = 0;
  int64_t heads = 0, dim = 0;
  Sequences sequences;
  Tensor out;                       // [tokens, heads * dim] kF32

  bool has_entries() const { return entries[0] != nullptr; }
  template <class F>
  void each_address(F&& visit) {
    visit(q.data), visit(new_keys.data), visit(out.data);
    ring.each_address(sequences.count, visit), entries.each_address(sequences.count, visit);
    visit(const_cast<void*&>(reinterpret_cast<const void*&>(sinks)));
    for (const int32_t** p : {&ids, &counts}) visit(const_cast<void*&>(reinterpret_cast<const void*&>(*p)));
  }
};
Status compressed_attention(OpContext& ctx, const CompressedAttentionArgs& args);

}  // namespace pointsman::ops
