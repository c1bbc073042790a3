// SPDX-License-Identifier: Apache-2.0
#include "model/kv_cache.h"

#include <algorithm>

#include "base/log.h"

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
Planes plane_bytes(const ModelConfig& c, DType dtype, int64_t capacity) {
  const LatentAttentionConfig& a = c.latent;
  const auto bytes = [&](int64_t heads, int64_t width) { return static_cast<uint64_t>(ops::cache_plane_bytes(dtype, KvCache::layout_of(c, dtype), heads, capacity, width)); };
  if (!a) return {bytes(c.num_key_value_heads, c.head_dim), bytes(c.num_key_value_heads, c.head_dim)};
  if (!a.naive) return {bytes(1, a.kv_lora_rank + a.rope), 0};
  return {bytes(c.num_attention_heads, a.nope + a.rope), bytes(c.num_attention_heads, a.v)};
}

}  // namespace

DType KvCache::dtype_for(Numerics n, KvCacheType t) {
  switch (t) {
    case KvCacheType::kAuto: return dtype_for(n);
    case KvCacheType::kFp32: return DType::kF32;
    case KvCacheType::kBf16: return DType::kBF16;
    case KvCacheType::kInt8: return DType::kI8;
  }
  return dtype_for(n);
}

Status KvCache::check(const ModelConfig& c, Numerics n, KvCacheType t) {
  const bool compressed = !c.compressed.layers.empty();
  if (t == KvCacheType::kInt8 && (compressed || c.latent)) {
    return error(StatusCode::kUnsupported, "KV cache int8: {} attends to {} keys, for which bf16 and fp32 are", c.model_type, compressed ? "compressed" : "latent");
  }
  if (compressed && dtype_for(n, t) != dtype_for(n)) {
    return error(StatusCode::kUnsupported, "KV cache {}: with {} the cache of compressed keys is {}", kv_cache_name(t), numerics_name(n), dtype_name(dtype_for(n)));
  }
  return ok_status();
}

uint64_t KvCache::bytes(const ModelConfig& c, DType dtype, int64_t capacity) {
  if (!c.compressed.layers.empty()) return compressed_bytes(c, dtype, capacity);
  const Planes planes = plane_bytes(c, dtype, capacity);
  return static_cast<uint64_t>(c.num_hidden_layers) * (planes.k + planes.v);
}

uint64_t KvCache::bytes_per_token(const ModelConfig& c, DType dtype) {
  if (c.compressed.layers.empty()) return bytes(c, dtype, ops::kAttentionKeyBlock) / ops::kAttentionKeyBlock;  // whole tiles
  // Over a stretch in which every ratio closes entries.
  const int64_t stretch = c.compressed.sparse_ratio * c.compressed.heavy_ratio;
  return (bytes(c, dtype, 2 * stretch) - bytes(c, dtype, stretch)) / static_cast<uint64_t>(stretch);
}

Result<KvCache> KvCache::make(Device& device, MemoryBudget& budget, const ModelConfig& c, DType dtype, int64_t capacity) {
  KvCache cache;
  cache.dtype_ = dtype;
  cache.capacity_ = capacity;
  cache.config_ = &c;
  PM_ASSIGN_OR_RETURN(cache.buffer_, Buffer::make(device, budget, MemoryClass::kKvCache, bytes(c, dtype, capacity)));
  if (c.compressed.layers.empty()) {
    const Planes planes = plane_bytes(c, dtype, capacity);
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
