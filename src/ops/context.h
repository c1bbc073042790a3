// SPDX-License-Identifier: Apache-2.0
//
// What every op gets: the stream it submits to, the pool its CPU kernels run on, the kernel table of the device, and the counters
// of fallbacks. Ops do not allocate; scratch is passed in by the caller, its size is computable beforehand.
//
// The arithmetic that all kernels share, so that one row's result depends on nothing but the row (docs/design/numerics.md):
//   * a dot product over K keeps 16 fp32 partial sums: lane j takes elements j, j+16, j+32, ... in that order by fused multiply-add
//     (bf16 x bf16: lane j takes the pairs (2j, 2j+1), (2j+32, 2j+33), ..., of each the odd
//     product first, denormals flushed, as vdpbf16ps does); elements past K count as zero;
//   * the 16 lanes are added as a balanced tree: lane i + lane i+8, then i + i+4, i + i+2, i + i+1;
//   * no kernel splits K over threads or blocks.
// Packed weights (tensor/panel_layout.h) keep outputs in lanes, so an output is one chain along K instead, and there is no tree:
//   * x as 8-bit codes (quant/quantise.h): for each block of 32 inputs (of W with a scale for every 128: of 128, the last what is left) in order, acc = fma(float(exact int32 dot of the codes), scale of x *
//     scale of W, acc), from 0; E2M1 counts as twice its value, with half the scale of W;
//   * bf16 x with E4M3: for each block, dot = the pairs (2j, 2j+1) in order as above, from 0; acc = fma(dot, scale of W, acc). bf16 x with bf16:
//     all pairs of K in order. Denormals flushed, those of scales too;
//   * fp32 x: for each input in order, acc = fma(x, code * scale rounded once, acc).
// Scalar, AVX2 and AVX-512 kernels all follow it, so that in fp32 they agree bit for bit.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/cpu_features.h"
#include "device/device.h"
#include "pointsman/status.h"

namespace pointsman {

class ThreadPool;

namespace ops {

struct KernelTable;
struct PanelPaths;

// Which ops ran, and which of them on the reference kernel because the device had none. The latter is never silent: logged once per op.
struct FallbackCounters {
  static constexpr int kMaxOps = 64;
  std::atomic<uint64_t> count[kMaxOps] = {};
  bool forbidden = false;  // then a missing kernel is kUnavailable instead
  // Launches of every entry of op_list.inc, on a kernel of the device or the reference: which dtypes and forms a model really runs.
  std::atomic<uint64_t> launches[kMaxOps] = {};
  // Of those that multiply panels: blocks of rows of a matrix or an expert, by PanelPath (panel_paths.h).
  std::atomic<uint64_t> paths[kMaxOps][3] = {};
};

struct OpContext {
  Stream* stream = nullptr;
  ThreadPool* pool = nullptr;
  const KernelTable* kernels = nullptr;
  FallbackCounters* fallbacks = nullptr;  // null: a missing kernel is kUnavailable
  const PanelPaths* paths = nullptr;      // null: the built-in rule. Outlives what is submitted
};

}  // namespace ops
}  // namespace pointsman
