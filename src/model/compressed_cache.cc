// SPDX-License-Identifier: Apache-2.0
#include "model/compressed_cache.h"

#include <algorithm>

namespace pointsman {
namespace {

// Rows before a token that its computation may read.
int64_t window_reach(const ModelConfig& c, size_t layer) { return c.layer_window[layer] - 1; }
int64_t pool_reach(const ModelConfig& c, CompressKind kind) {
  if (kind == CompressKind::kNone) return 0;
  // Overlapping entries use the window before theirs too.
  return (kind == CompressKind::kSparse ? 2 : 1) * c.compressed.ratio(kind) - 1;
}

}  // namespace

CompressedCacheLayout CompressedCacheLayout::carve(Arena& a, const ModelConfig& c, DType dtype, int64_t capacity) {
  CompressedCacheLayout layout;
  layout.layers.resize(c.compressed.layers.size());
  const size_t element = static_cast<size_t>(dtype_bits(dtype)) / 8;
  const auto rows_of = [&](int64_t rows, int64_t cols, size_t bytes) { return a.take(static_cast<size_t>(rows * cols) * bytes); };
  for (size_t i = 0; i < layout.layers.size(); ++i) {
    CompressedLayerCache& l = layout.layers[i];
    const CompressKind kind = c.compressed.layers[i];
    const bool sparse = kind == CompressKind::kSparse;
    l.ring_rows = window_reach(c, i) + kFreeRewind;
    l.ring = rows_of(l.ring_rows, c.head_dim, element);
    if (kind == CompressKind::kNone) continue;
    l.pool_rows = pool_reach(c, kind) + kFreeRewind;
    l.pool_ring = static_cast<float*>(rows_of(l.pool_rows, (sparse ? 4 : 2) * c.head_dim, sizeof(float)));
    if (sparse) l.index_ring = static_cast<float*>(rows_of(l.pool_rows, 4 * c.compressed.index_head_dim, sizeof(float)));
  }
  layout.ring_bytes = a.used_bytes();
  for (size_t i = 0; i < layout.layers.size(); ++i) {
    CompressedLayerCache& l = layout.layers[i];
    const CompressKind kind = c.compressed.layers[i];
    if (kind == CompressKind::kNone) continue;
    l.entry_rows = capacity / c.compressed.ratio(kind);
    l.entries = rows_of(l.entry_rows, c.head_dim, element);
    if (kind == CompressKind::kSparse) l.index_keys = rows_of(l.entry_rows, c.compressed.index_head_dim, element);
  }
  return layout;
}

bool rings_reach(const ModelConfig& c, int64_t position, int64_t written) {
  for (size_t i = 0; i < c.compressed.layers.size(); ++i) {
    for (const int64_t reach : {window_reach(c, i), pool_reach(c, c.compressed.layers[i])}) {
      if (std::max<int64_t>(0, position - reach) < written - (reach + kFreeRewind)) return false;
    }
  }
  return true;
}

}  // namespace pointsman
