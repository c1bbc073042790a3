// SPDX-License-Identifier: Apache-2.0
//
// DeepSeek-V4's attention as a step of a layer recipe: low-rank queries, one key/value vector for all heads, a window of raw keys, entries
// that pool older tokens, an indexer that chooses among them, inverse rotation and a grouped output projection.
#pragma once

#include "checkpoint/model_config.h"
#include "memory/arena.h"
#include "pointsman/options.h"
#include "pointsman/status.h"
#include "tensor/tensor.h"

namespace pointsman {

class ForwardPass;
class RopeTable;
class Stream;
struct PassShape;
struct CompressedAttention;

struct CompressedScratch {
  Tensor q_a, q_a_bf16;            // [chunk, q_lora_rank]; bf16 in bf16 mode only
  Tensor keys;                     // [chunk, head_dim] of the cache's dtype
  Tensor pool_a, pool_gate;        // [chunk, 2 * head_dim] kF32
  Tensor index_q, index_weights;   // [chunk, heads * dim], [chunk, heads] kF32
  int32_t* index_ids = nullptr;    // [chunk, index_topk]
  int32_t* index_counts = nullptr;
  float* index_scores = nullptr;   // [num_index_scores] of one token
  int64_t num_index_scores = 0;
  Tensor z;                        // [chunk, o_groups * o_lora_rank] kF32
  // cos and sin [rows, rotary_dim / 2] by the rope of compressed layers: of the tokens, and of the entries that close in the pass.
  struct Table {
    float* cos = nullptr;
    float* sin = nullptr;
  };
  Table tokens, sparse_entries, heavy_entries;

  static CompressedScratch carve(Arena& device, const ModelConfig& c, Numerics n, const PassShape& shape);
};

// The same tables on the host, on their way to the device.
struct CompressedHostScratch {
  CompressedScratch::Table tokens, sparse_entries, heavy_entries;
  static CompressedHostScratch carve(Arena& host, const ModelConfig& c, const PassShape& shape);
};

namespace layers {

// The rope tables of a pass. Once, before the first layer.
Status fill_compressed_ropes(ForwardPass& f);
// h += attention(x) of the layer.
Status add_compressed_attention(ForwardPass& f, const CompressedAttention& weights, int layer_idx);

}  // namespace layers
}  // namespace pointsman
