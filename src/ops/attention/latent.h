// SPDX-License-Identifier: Apache-2.0
//
// Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1): keys and values of all heads are one projection of a latent c,
// and one rotated key part is shared by all heads.
//   naive:    k_h = [W_uk,h c | k_r], v_h = W_uv,h c are cached: heads x (nope + rope + v) numbers per token.
//   absorbed: q'_h = [W_uk,h^T q_nope,h | q_rope,h] meets the cached [c | k_r] of rank + rope numbers per token, which is the value too;
//             o_h = W_uv,h (sum of p c). The same function in exact arithmetic.
// kv_b_proj holds W_uk,h and W_uv,h by head: nope rows, then v rows.
#pragma once

#include "ops/context.h"
#include "ops/sequences.h"
#include "tensor/block_format.h"

namespace pointsman::ops {

// In place: the last `rope` channels of every head of q and the last of kv are rotated, the first `rank` of kv get RMSNorm.
// Pairs are (2i, 2i + 1) when `interleaved`, else (i, i + rope / 2).
struct LatentPrepareArgs {
  Tensor q;                      // [tokens, heads * (nope + rope)] kF32
  Tensor kv;                     // [tokens, rank + rope] kF32
  const float* norm = nullptr;   // device [rank]
  float eps = 1e-6f;
  const float* cos = nullptr;    // device [tokens, rope / 2]
  const float* sin = nullptr;
  int32_t heads = 0, nope = 0, rope = 0, rank = 0;
  bool interleaved = true;

  template <class F>
  void each_address(F&& visit) {
    visit(q.data), visit(kv.data);
    for (const float** p : {&norm, &cos, &sin}) visit(const_cast<void*&>(reinterpret_cast<const void*&>(*p)));
  }
};
Status latent_prepare(OpContext& ctx, const LatentPrepareArgs& args);

// Rows into the caches of their sequences, at their positions. Absorbed (no `expanded`): kv into k_cache [capacity, rank + rope]. Naive: k_cache
// [heads, capacity, nope + rope] and v_cache [heads, capacity, v] from `expanded`, the product of kv_b_proj and c.
struct LatentCacheArgs {
  Tensor kv;                       // [tokens, rank + rope] kF32
  Tensor expanded;                 // [tokens, heads * (nope + v)] kF32, or empty
  PerSequence k_cache, v_cache;
  DType cache_dtype = DType::kF32; // kF32 or kBF16
  int64_t capacity = 0;
  Sequences sequences;
  int32_t heads = 0, nope = 0, rope = 0, v = 0, rank = 0;

  template <class F>
  void each_address(F&& visit) {
    visit(kv.data), visit(expanded.data);
    k_cache.each_address(sequences.count, visit), v_cache.each_address(sequences.count, visit);
  }
};
Status latent_cache(OpContext& ctx, const LatentCacheArgs& args);

// For every head h, with W_h the rows [h * stride + first, + count) of w:
//   y[t, h * y_width + o] = sum over i of x[t, h * x_width + i] W_h[o][i]      (o < count, i < w.cols), or transposed
//   y[t, h * y_width + i] = sum over o of x[t, h * x_width + o] W_h[o][i].
// Channels of y beyond are left alone. Sums in the order of context.h; w in any format of matmul().
struct HeadMatmulArgs {
  Tensor x;                      // [tokens, heads * x_width] kF32
  Weight w;
  Tensor y;                      // [tokens, heads * y_width] kF32 or kBF16
  int32_t heads = 0;
  int64_t x_width = 0, y_width = 0;
  int64_t stride = 0, first = 0, count = 0;  // rows of w
  bool transposed = false;

  template <class F>
  void each_address(F&& visit) {
    visit(x.data), visit(w.data), visit(const_cast<void*&>(w.scales)), visit(y.data);
  }
};
Status head_matmul(OpContext& ctx, const HeadMatmulArgs& args);

// y[t, h * y_width + y_first + i] = x[t, h * x_width + x_first + i] for i < count: the rotated part of a query beside its absorbed one.
struct HeadCopyArgs {
  Tensor x, y;                   // kF32
  int32_t heads = 0;
  int64_t x_width = 0, x_first = 0, y_width = 0, y_first = 0, count = 0;

  template <class F>
  void each_address(F&& visit) {
    visit(x.data), visit(y.data);
  }
};
Status head_copy(OpContext& ctx, const HeadCopyArgs& args);

}  // namespace pointsman::ops
