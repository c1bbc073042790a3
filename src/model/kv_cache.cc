// SPDX-License-Identifier: Apache-2.0
#include "model/kv_cache.h"

#include <algorithm>

namespace pointsman {
namespace {

size_t compressed_bytes(const ModelConfig& c, DType dtype, int64_t capacity) {
  Arena counting;
  const CompressedCacheLayout layout = CompressedCacheLayout::carve(counting, c, dtype, capacity);
  return counting.used_bytes() + static_cast<size_t>(KvCache::kNumSnapshots) * layout.ring_bytes;
}

struct Planes {
  uint64_t k, v;
};
Planes plane_bytes(const ModelConfig& c, Numerics n, int64_t capacity) {
  const LatentAttentionConfig& a = c.latent;
  int64_t k = c.num_key_value_heads * c.head_dim, v = k;
  if (a) {
    k = a.naive ? c.num_attention_heads * (a.nope + a.rope) : a.kv_lora_rank + a.rope;
    v = a.naive ? c.num_attention_heads * a.v : 0;
  }
  const auto bytes = [&](int64_t width) { return static_cast<uint64_t>(width * capacity * (dtype_bits(KvCache::dtype_for(n)) / 8)); };
  return {bytes(k), bytes(v)};
}

}  // namespace

uint64_t KvCache::bytes(const ModelConfig& c, Numerics n, int64_t capacity) {
  if (!c.compressed.layers.empty()) return compressed_bytes(c, dtype_for(n), capacity);
  const Planes planes = plane_bytes(c, n, capacity);
  return static_cast<uint64_t>(c.num_hidden_layers) * (planes.k + planes.v);
}

uint64_t KvCache::bytes_per_token(const ModelConfig& c, Numerics n) {
  if (c.compressed.layers.empty()) return bytes(c, n, 1);
  // Over a stretch in which every ratio closes entries.
  const int64_t stretch = c.compressed.sparse_ratio * c.compressed.heavy_ratio;
  return (bytes(c, n, 2 * stretch) - bytes(c, n, stretch)) / static_cast<uint64_t>(stretch);
}

Result<KvCache> KvCache::make(Device& device, MemoryBudget& budget, const ModelConfig& c, Numerics n, int64_t capacity) {
  KvCache cache;
  cache.dtype_ = dtype_for(n);
  cache.capacity_ = capacity;
  cache.config_ = &c;
  PM_ASSIGN_OR_RETURN(cache.buffer_, Buffer::make(device, budget, MemoryClass::kKvCache, bytes(c, n, capacity)));
  if (c.compressed.layers.empty()) {
    const Planes planes = plane_bytes(c, n, capacity);
    cache.k_bytes_ = planes.k;
    cache.v_bytes_ = planes.v;
    return cache;
  }
  Arena arena(cache.buffer_.data(), cache.buffer_.size_bytes());
  cache.layout_ = CompressedCacheLayout::carve(arena, c, cache.dtype_, capacity);
  cache.snapshots_ = cache.buffer_.bytes() + arena.used_bytes();
  return cache;
}

void KvCache::begin_pass(int64_t first, int64_t end) {
  written_ = std::max(written_, end);
  for (Snapshot& s : taken_) {
    if (s.position > first) s = {};
  }
}

Status KvCache::snapshot(Stream& stream, int64_t position) {
  if (!forgets()) return ok_status();
  const int64_t stretch = capacity_ / (kNumSnapshots + 1) + 1;
  const int64_t i = position / stretch - 1;
  if (i < 0 || taken_[static_cast<size_t>(i)].position != 0) return ok_status();
  PM_RETURN_IF_ERROR(stream.copy_on_device(slot(i), buffer_.data(), layout_.ring_bytes));
  taken_[static_cast<size_t>(i)] = {.position = position, .written = written_};
  return ok_status();
}

Result<int64_t> KvCache::restore(Stream& stream, int64_t position) {
  int64_t best = -1;
  const auto taken_at = [&](int64_t i) { return taken_[static_cast<size_t>(i)].position; };
  for (int64_t i = 0; i < kNumSnapshots; ++i) {
    if (taken_at(i) > 0 && taken_at(i) <= position && (best < 0 || taken_at(i) > taken_at(best))) best = i;
  }
  written_ = 0;
  if (best < 0) return 0;
  PM_RETURN_IF_ERROR(stream.copy_on_device(buffer_.data(), slot(best), layout_.ring_bytes));
  written_ = taken_[static_cast<size_t>(best)].written;
  return taken_at(best);
}

}  // namespace pointsman
