// SPDX-License-Identifier: Apache-2.0
//
// Manifold-constrained hyper-connections (DeepSeek-V4, arXiv 2606.19348): the residual is n streams. A site (attention or FFN)
// collapses them into its input, and mixes its output and all streams into the next n.
//
//   m = fn . v * rsqrt(mean(v^2) + rms_eps), v the streams of a token one after the other        (fn . v is a matmul of the caller)
//   pre[j]     = sigmoid(m[j] scale[0] + base[j]) + eps
//   post[j]    = 2 sigmoid(m[n + j] scale[1] + base[n + j])
//   comb[j][k] = softmax over k of (m[2n + jn + k] scale[2] + base[2n + jn + k]) + eps, then made doubly stochastic (Sinkhorn & Knopp
//                1967): columns /= sum + eps once, then iters - 1 times rows, columns
//   u = sum_j pre[j] X[j];   X'[k] = post[k] y + sum_j comb[j][k] X[j]
//
// All fp32. Every row stands alone.
#pragma once

#include "ops/context.h"
#include "tensor/tensor.h"

namespace pointsman::ops {

inline constexpr int64_t kMaxStreams = 16;

// X[t][j] = row t of h for every stream j; h is set to zero (see HcExpandArgs).
struct HcSpreadArgs {
  Tensor h;        // [tokens, hidden] kF32
  Tensor streams;  // [tokens, n * hidden] kF32

  template <class F>
  void each_address(F&& visit) {
    visit(h.data), visit(streams.data);
  }
};
Status hc_spread(OpContext& ctx, const HcSpreadArgs& args);

// u and, unless `head`, the coefficients of the site.
struct HcCollapseArgs {
  Tensor streams;                // [tokens, n * hidden] kF32
  Tensor mixes;                  // [tokens, n] (head) or [tokens, (2 + n) n] kF32: in fn . v, out pre, post, comb (row j of comb at 2n + jn)
  const float* base = nullptr;   // device [mixes.cols]
  const float* scale = nullptr;  // device [3], or [1] (head)
  int64_t n = 0;
  int64_t sinkhorn_iters = 1;
  float eps = 0, rms_eps = 0;
  bool head = false;             // the final collapse: pre only
  Tensor out;                    // [tokens, hidden] kF32: u

  template <class F>
  void each_address(F&& visit) {
    visit(streams.data), visit(mixes.data), visit(out.data);
    for (const float** p : {&base, &scale}) visit(const_cast<void*&>(reinterpret_cast<const void*&>(*p)));
  }
};
Status hc_collapse(OpContext& ctx, const HcCollapseArgs& args);

// X' in place of X. y is consumed: set to zero, because sublayers add their output to it.
struct HcExpandArgs {
  Tensor y;        // [tokens, hidden] kF32
  Tensor mixes;    // [tokens, (2 + n) n] of hc_collapse
  int64_t n = 0;
  Tensor streams;  // [tokens, n * hidden] kF32

  template <class F>
  void each_address(F&& visit) {
    visit(y.data), visit(mixes.data), visit(streams.data);
  }
};
Status hc_expand(OpContext& ctx, const HcExpandArgs& args);

}  // namespace pointsman::ops
