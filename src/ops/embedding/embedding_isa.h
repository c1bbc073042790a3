// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/thread_pool.h"
#include "ops/embedding/embedding.h"

namespace pointsman::ops {
namespace {

template <class T>
void widen_row(const T* src, float* dst, int64_t n) {
  for (int64_t i = 0; i < n; i += 16) vstore_n(dst + i, vload_n(src + i, smaller(16, n - i)), smaller(16, n - i));
}

inline void embedding_kernel(ThreadPool&, const EmbeddingArgs& a) {
  for (int64_t t = 0; t < a.out.rows; ++t) {
    float* out = a.out.row<float>(t);
    switch (a.table.dtype) {
      case DType::kBF16: widen_row(a.table.row<const bf16>(a.ids[t]), out, a.out.cols); break;
      case DType::kF16: widen_row(a.table.row<const f16>(a.ids[t]), out, a.out.cols); break;
      default: widen_row(a.table.row<const float>(a.ids[t]), out, a.out.cols); break;
    }
  }
}

}  // namespace
}  // namespace pointsman::ops
