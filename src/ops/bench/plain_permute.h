// SPDX-License-Identifier: Apache-2.0
//
// Internal: permutation the plain way, for the benchmark only: copy every row top_k times, sort (expert, slot) pairs, gather; and back: scatter,
// scale, sum. Each step is one operation on whole matrices with a result of its own, as array libraries do it.
#pragma once

#include <cstdint>
#include <vector>

#include "tensor/dtype.h"

namespace pointsman {
class ThreadPool;
}

namespace pointsman::ops {

struct PlainPermuted {
  std::vector<bf16> rows;        // [tokens * top_k, hidden] by expert
  std::vector<int32_t> order;    // the slot of each row
};
PlainPermuted plain_permute(ThreadPool& pool, const bf16* x, const int32_t* ids, int64_t tokens, int64_t hidden, int32_t top_k);
std::vector<float> plain_combine(ThreadPool& pool, const PlainPermuted& permuted, const float* weights, int64_t tokens, int64_t hidden, int32_t top_k);

}  // namespace pointsman::ops
