// SPDX-License-Identifier: Apache-2.0
//
// Include a vec_*.h and matmul/matmul_isa.h first.
#pragma once

#include "base/thread_pool.h"
#include "ops/moe/permute.h"

namespace pointsman::ops {
namespace {

// Larger outputs are written past the caches: nobody finds them there anyway, and a line need not be read to be overwritten.
inline constexpr int64_t kStreamBytes = int64_t{1} << 20;

inline void copy_row(std::byte* to, const std::byte* from, int64_t bytes, bool stream) {
  if (stream && reinterpret_cast<uintptr_t>(to) % 64 == 0) {
    int64_t i = 0;
    for (; i + 256 <= bytes; i += 256) {
      const Vec a = vload_units(from + i), b = vload_units(from + i + 64), c = vload_units(from + i + 128), d = vload_units(from + i + 192);
      auto* out = reinterpret_cast<float*>(to + i);
      vstream(out, a), vstream(out + 16, b), vstream(out + 32, c), vstream(out + 48, d);
    }
    for (; i + 64 <= bytes; i += 64) vstream(reinterpret_cast<float*>(to + i), vload_units(from + i));
    to += i, from += i, bytes -= i;
  }
  __builtin_memcpy(to, from, static_cast<size_t>(bytes));
}

inline void permute_kernel(ThreadPool& pool, const PermuteArgs& a) {
  const int64_t bits = dtype_bits(a.x.dtype), bytes = a.x.cols * bits / 8;
  const int64_t from_step = a.x.row_stride * bits / 8, to_step = a.out.row_stride * bits / 8;
  const bool stream = a.out.rows * bytes > kStreamBytes;
  pool.parallel_for(a.x.rows, larger(1, (1 << 18) / larger(1, bytes * a.top_k)), [&](int64_t first, int64_t last) {
    for (int64_t t = first; t < last; ++t) {
      const auto* from = static_cast<const std::byte*>(a.x.data) + t * from_step;
      for (int64_t k = 0; k < a.top_k; ++k) {
        const int64_t row = a.slot_row[t * a.top_k + k];
        if (row >= 0) copy_row(static_cast<std::byte*>(a.out.data) + row * to_step, from, bytes, stream);
      }
    }
    if (stream) vstream_done();
  });
}

// A counting sort. Its only cost that grows is one pass over the ids, some nanoseconds each: one thread, so that the order needs no argument.
inline void permute_index_kernel(ThreadPool&, const PermuteIndexArgs& a) {
  const int64_t slots = a.tokens * a.top_k, n = a.num_experts;
  const auto is_expert = [&](int32_t id) { return static_cast<uint32_t>(id) < static_cast<uint32_t>(n); };
  int32_t* next = a.offsets;
  if (a.counts != nullptr) {
    __builtin_memcpy(next, a.counts, static_cast<size_t>(n) * sizeof(int32_t));
  } else {
    __builtin_memset(next, 0, static_cast<size_t>(n) * sizeof(int32_t));
    for (int64_t s = 0; s < slots; ++s) {
      if (is_expert(a.ids[s])) ++next[a.ids[s]];
    }
  }
  int32_t at = 0;
  for (int64_t e = 0; e < n; ++e) {
    const int32_t count = next[e];
    next[e] = at;
    at += count;
  }
  // next[e] is the cursor of expert e, and ends up where e + 1 begins.
  for (int64_t s = 0; s < slots; ++s) {
    const int32_t id = a.ids[s];
    if (!is_expert(id)) {
      a.slot_row[s] = -1;
      continue;
    }
    const int32_t row = next[id]++;
    a.slot_row[s] = row;
    if (a.row_slot != nullptr) a.row_slot[row] = static_cast<int32_t>(s);
  }
  for (int64_t e = n; e > 0; --e) next[e] = next[e - 1];
  next[0] = 0;
  for (int64_t r = 0; a.rank_offsets != nullptr && r <= a.ranks; ++r) a.rank_offsets[r] = a.offsets[r * (n / a.ranks)];
}

}  // namespace
}  // namespace pointsman::ops
