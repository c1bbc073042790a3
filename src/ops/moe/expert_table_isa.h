// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/moe/expert_table.h"

namespace pointsman::ops {
namespace {

inline void expert_table_kernel(ThreadPool&, const ExpertTableArgs& a) {
  for (int64_t t = 0; t < a.rows; ++t) {
    __builtin_memcpy(a.out + t * a.top_k, a.table + int64_t{a.tokens[t]} * a.top_k, static_cast<size_t>(a.top_k) * sizeof(int32_t));
  }
}

}  // namespace
}  // namespace pointsman::ops
