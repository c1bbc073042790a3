// SPDX-License-Identifier: Apache-2.0
//
// Grouped-query attention over a KV cache, and the step before it: per-head RMSNorm, rotary embedding, append to the cache.
//
// Cache layouts. kRows: K and V each [kv_heads, capacity, head_dim], position-major within a head, so that one head's keys are one stream. kI8: fp32
// scales [kv_heads, capacity], then codes in that layout: an element is code * scale, the scale of a row its largest
// magnitude over 127. A row that is not finite has the scale NaN.
// kTiles, bf16 only: as the dot product of pairs reads them, in one linear stream per head. 64 positions are a tile, K [head_dim / 2][64 keys][2 channels],
// V [32 pairs of positions][head_dim][2 positions]; a head is a whole number of tiles, an odd head_dim has a channel of zeros after it.
// cache_plane_bytes() says how much that is.
#pragma once

#include "ops/context.h"
#include "ops/sequences.h"
#include "tensor/tensor.h"

namespace pointsman::ops {

inline constexpr int64_t kAttentionKeyBlock = 64;
enum class CacheLayout { kRows, kTiles };

// Elements of one head in tiles, and where an element of it is.
inline int64_t tile_elements(int64_t head_dim) { return kAttentionKeyBlock * ((head_dim + 1) / 2 * 2); }
inline int64_t tiled_head_elements(int64_t capacity, int64_t head_dim) {
  return (capacity + kAttentionKeyBlock - 1) / kAttentionKeyBlock * tile_elements(head_dim);
}
inline int64_t tiled_key_at(int64_t position, int64_t channel, int64_t head_dim) {
  return position / kAttentionKeyBlock * tile_elements(head_dim) + channel / 2 * (2 * kAttentionKeyBlock) + position % kAttentionKeyBlock * 2 + channel % 2;
}
inline int64_t tiled_value_at(int64_t position, int64_t channel, int64_t head_dim) {
  return position / kAttentionKeyBlock * tile_elements(head_dim) + position % kAttentionKeyBlock / 2 * (2 * head_dim) + channel * 2 + position % 2;
}

// Bytes of K, or of V: whole floats, so that the next plane is aligned.
inline int64_t cache_plane_bytes(DType dtype, CacheLayout layout, int64_t kv_heads, int64_t capacity, int64_t head_dim) {
  if (layout == CacheLayout::kTiles) return kv_heads * tiled_head_elements(capacity, head_dim) * dtype_bits(dtype) / 8;
  const int64_t bytes = kv_heads * capacity * (head_dim * dtype_bits(dtype) / 8);
  return dtype == DType::kI8 ? (bytes + 3) / 4 * 4 + kv_heads * capacity * static_cast<int64_t>(sizeof(float)) : bytes;
}

// q and k: per-head RMSNorm over head_dim (where a weight is given), clamp to +-clip (v too), then rotation of half-split pairs (i, i + rotary_dim/2) by
// cos/sin (Su et al. 2021, in Hugging Face's half-split form); channels beyond rotary_dim pass through. k and v are rounded to the
// cache's dtype and stored in the cache of the row's sequence, at the row's position.
struct QkvPrepareArgs {
  Tensor q;                        // [tokens, heads * head_dim] kF32, in place
  Tensor k, v;                     // [tokens, kv_heads * head_dim] kF32; k is clobbered, and v when it is clamped
  const float* q_norm = nullptr;   // device [head_dim] or null
  const float* k_norm = nullptr;
  float eps = 1e-6f;
  float clip = 0;                  // 0: no clamp. NaN stays NaN
  const float* cos = nullptr;      // device [tokens, rotary_dim / 2]
  const float* sin = nullptr;
  int32_t heads = 0, kv_heads = 0, head_dim = 0, rotary_dim = 0;
  PerSequence k_cache, v_cache;    // device, of each sequence
  DType cache_dtype = DType::kF32; // kF32 or kI8 in rows, kBF16 in tiles
  int64_t capacity = 0;
  Sequences sequences;

  template <class F>
  void each_address(F&& visit) {
    visit(q.data), visit(k.data), visit(v.data);
    k_cache.each_address(sequences.count, visit), v_cache.each_address(sequences.count, visit);
    for (const float** p : {&q_norm, &k_norm, &cos, &sin}) visit(const_cast<void*&>(reinterpret_cast<const void*&>(*p)));
  }
};
Status qkv_prepare(OpContext& ctx, const QkvPrepareArgs& args);

// out[t, h] = sum_j softmax_j(scale * q[t, h] . k[j, h / group]) v[j, h / group] over the keys j with
// max(0, p - window + 1) <= j <= p of its own sequence, p its position there (window 0: all keys up to p).
// Scores, the running maximum and the sums are fp32; keys are taken in blocks of 64 that start at absolute multiples of 64
// (online softmax, Milakov & Gimelshein 2018), so that a row's result does not depend on the rows beside it. With a bf16 or I8 cache q is
// rounded to bf16 before the score. I8: codes meet q, and the scale of a key multiplies the score, that of a value the probability. Probabilities,
// relative to the largest score so far, stay fp32 with rows; with tiles they are rounded to bf16, as transformers has them in bf16, and the sum that
// divides is that of the rounded ones.
// With sinks (gpt-oss), a logit of each head that has no key and no value joins the softmax: it takes its share and adds nothing.
// Values may have another width than keys, and may be the first channels of wider rows (latent attention: v_cache = k_cache).
struct AttentionArgs {
  Tensor q;                        // [tokens, heads * head_dim] kF32
  PerSequence k_cache, v_cache;    // of each sequence
  DType cache_dtype = DType::kF32; // kF32, kBF16 or kI8
  CacheLayout layout = CacheLayout::kRows;
  int64_t capacity = 0;
  Sequences sequences;
  int64_t window = 0;
  int32_t heads = 0, kv_heads = 0, head_dim = 0;
  int32_t v_head_dim = 0;          // 0: head_dim
  int64_t v_row = 0;               // elements from one value of a head to the next; 0: v_head_dim
  float scale = 1;
  const float* sinks = nullptr;    // device [heads] or null
  Tensor out;                      // [tokens, heads * v_head_dim] kF32 or kBF16

  template <class F>
  void each_address(F&& visit) {
    visit(q.data), visit(out.data);
    k_cache.each_address(sequences.count, visit), v_cache.each_address(sequences.count, visit);
    visit(const_cast<void*&>(reinterpret_cast<const void*&>(sinks)));
  }
};
inline constexpr int32_t kMaxHeadDim = 576;  // DeepSeek-V3: a latent of 512 and 64 rotated channels
Status attention(OpContext& ctx, const AttentionArgs& args);

}  // namespace pointsman::ops
