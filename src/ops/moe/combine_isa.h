// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/thread_pool.h"
#include "ops/moe/combine.h"

namespace pointsman::ops {
namespace {

inline void combine_kernel(ThreadPool& pool, const CombineArgs& a) {
  pool.parallel_for(a.out.rows, larger(1, 16384 / larger(1, a.out.cols * a.top_k)), [&](int64_t first, int64_t last) {
    for (int64_t t = first; t < last; ++t) {
      const auto weight = [&](int64_t k) { return vset(a.weights != nullptr ? a.weights[t * a.top_k + k] : 1.0f); };
      for (int64_t i = 0; i < a.out.cols; i += 16) {
        const int64_t c = smaller(16, a.out.cols - i);
        Vec sum = vzero();
        for (int64_t k = 0; k < a.top_k; ++k) sum = vfma(weight(k), vload_n(a.slots.row<const float>(t * a.top_k + k) + i, c), sum);
        vstore_n(a.out.row<float>(t) + i, vadd(vload_n(a.out.row<const float>(t) + i, c), sum), c);
      }
    }
  });
}

}  // namespace
}  // namespace pointsman::ops
