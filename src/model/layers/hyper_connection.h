// SPDX-License-Identifier: Apache-2.0
//
// Hyper-connections as steps of a layer recipe: the residual is n streams, see ops/hyper/hyper_connection.h. Between the steps the sublayer's
// output gathers in the pass's h, which starts at zero.
#pragma once

#include "checkpoint/model_config.h"
#include "memory/arena.h"
#include "pointsman/status.h"
#include "tensor/tensor.h"

namespace pointsman {

class ForwardPass;
struct HyperConnection;

struct HyperScratch {
  Tensor streams;  // [chunk, n * hidden] kF32: the residual
  Tensor mixes;    // [chunk, (2 + n) n] kF32: coefficients of the current site

  static HyperScratch carve(Arena& device, const ModelConfig& c, int64_t chunk);
};

namespace layers {

// Every stream = h; h = 0.
Status spread_streams(ForwardPass& f);
// x = RMSNorm(sum of the streams by the site's pre) * norm, and the coefficients of expand_streams().
Status collapse_streams(ForwardPass& f, const HyperConnection& site, const float* norm);
// Streams = post * h + comb^T streams; h = 0.
Status expand_streams(ForwardPass& f);
// h = the final sum of the streams, before the last norm.
Status collapse_head(ForwardPass& f);

}  // namespace layers
}  // namespace pointsman
