// SPDX-License-Identifier: Apache-2.0
//
// Where one layer of compressed attention keeps its state (ops/compress/compress.h): rings of what is still needed raw, and entries,
// which are only ever appended.
#pragma once

#include <cstdint>
#include <vector>

#include "checkpoint/model_config.h"
#include "memory/arena.h"
#include "tensor/dtype.h"

namespace pointsman {

struct CompressedLayerCache {
  void* ring = nullptr;         // [ring_rows, head_dim] window keys
  int64_t ring_rows = 0;
  float* pool_ring = nullptr;   // [pool_rows, 2 * width] inputs of entries that are not closed, or that the next one shares
  float* index_ring = nullptr;  // the same of the indexer
  int64_t pool_rows = 0;
  void* entries = nullptr;      // [entry_rows, head_dim]
  void* index_keys = nullptr;   // [entry_rows, index_head_dim]
  int64_t entry_rows = 0;
};

// Rings hold this many rows more than the next token needs: a session may step back so far without any work.
inline constexpr int64_t kFreeRewind = 16;

struct CompressedCacheLayout {
  std::vector<CompressedLayerCache> layers;
  size_t ring_bytes = 0;  // all rings lie before all entries: they are what a snapshot copies

  // With a counting arena, sizes only. Entries for `capacity` tokens.
  static CompressedCacheLayout carve(Arena& device, const ModelConfig& c, DType dtype, int64_t capacity);
};

// Can the token at `position` be computed when rings were written up to `written` (exclusive, the furthest ever)?
bool rings_reach(const ModelConfig& c, int64_t position, int64_t written);

}  // namespace pointsman
