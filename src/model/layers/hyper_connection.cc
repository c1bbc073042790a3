// SPDX-License-Identifier: Apache-2.0
#include "model/layers/hyper_connection.h"

#include "model/forward.h"
#include "ops/hyper/hyper_connection.h"
#include "ops/matmul/matmul.h"

namespace pointsman {

HyperScratch HyperScratch::carve(Arena& a, const ModelConfig& c, int64_t chunk) {
  const int64_t n = c.hyper.streams;
  if (n == 0) return {};
  HyperScratch s;
  s.streams = a.take_matrix(DType::kF32, chunk, n * c.hidden_size);
  s.mixes = a.take_matrix(DType::kF32, chunk, (2 + n) * n);
  return s;
}

namespace layers {
namespace {

Status collapse(ForwardPass& f, const HyperConnection& site, bool head, const Tensor& out) {
  const ForwardPass::Parts& p = f.parts();
  const HyperConnectionConfig& c = p.config.hyper;
  const HyperScratch& s = p.scratch.hyper;
  const int64_t num_mixes = head ? c.streams : (2 + c.streams) * c.streams;
  const Tensor streams = f.rows(s.streams);
  const Tensor mixes = Tensor::matrix(s.mixes.data, DType::kF32, f.tokens(), num_mixes);
  PM_RETURN_IF_ERROR(ops::matmul(p.ops, {.x = streams, .w = Tensor::matrix(const_cast<float*>(site.fn), DType::kF32, num_mixes, streams.cols), .y = mixes}));
  return ops::hc_collapse(p.ops, {.streams = streams,
                                  .mixes = mixes,
                                  .base = site.base,
                                  .scale = site.scale,
                                  .n = c.streams,
                                  .sinkhorn_iters = c.sinkhorn_iters,
                                  .eps = static_cast<float>(c.eps),
                                  .rms_eps = static_cast<float>(p.config.rms_norm_eps),
                                  .head = head,
                                  .out = out});
}

}  // namespace

Status spread_streams(ForwardPass& f) {
  return ops::hc_spread(f.parts().ops, {.h = f.rows(f.parts().scratch.h), .streams = f.rows(f.parts().scratch.hyper.streams)});
}

Status collapse_streams(ForwardPass& f, const HyperConnection& site, const float* norm) {
  const Tensor x = f.rows(f.parts().scratch.x_f32);
  PM_RETURN_IF_ERROR(collapse(f, site, false, x));
  PM_RETURN_IF_ERROR(f.round_bf16(x));
  return f.norm(x, norm);
}

Status expand_streams(ForwardPass& f) {
  const Scratch& s = f.parts().scratch;
  PM_RETURN_IF_ERROR(f.round_bf16(f.rows(s.h)));
  PM_RETURN_IF_ERROR(ops::hc_expand(
      f.parts().ops,
      {.y = f.rows(s.h), .mixes = f.rows(s.hyper.mixes), .n = f.parts().config.hyper.streams, .streams = f.rows(s.hyper.streams)}));
  return f.round_bf16(f.rows(s.hyper.streams));
}

Status collapse_head(ForwardPass& f) {
  const Tensor h = f.rows(f.parts().scratch.h);
  PM_RETURN_IF_ERROR(collapse(f, f.parts().weights.hyper_head, true, h));
  return f.round_bf16(h);
}

}  // namespace layers
}  // namespace pointsman
