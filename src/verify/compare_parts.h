// SPDX-License-Identifier: Apache-2.0
//
// Inside of compare_traces: what several of its files share.
#pragma once

#include <span>
#include <vector>

#include "verify/compare.h"

namespace pointsman {

// Rows of one block take about this much per file.
inline constexpr int64_t kBlockElements = 1 << 17;
inline constexpr int64_t kMaxColumns = 1 << 24;
int64_t rows_per_block(int64_t cols);

// Rows that are slots of a token's experts (experts.*, router.weights), found again by expert id: the order of the chosen experts
// may differ between two runs.
class SlotOrder {
 public:
  // Both traces have ids of this layer in the same shape [tokens, top_k]; otherwise slots are compared as they stand.
  static Result<SlotOrder> of(TraceReader& a, TraceReader& b, int layer);
  bool known() const { return ids_a_ != nullptr; }
  int64_t top_k() const { return known() ? ids_a_->cols : 1; }
  int64_t tokens() const { return known() ? ids_a_->rows : 0; }
  // For tokens [first, first + count): for each slot of b the slot of a in the same token with the same expert, or -1.
  // REQUIRES: known().
  Status match(TraceReader& a, TraceReader& b, int64_t first, int64_t count, std::vector<int32_t>& slot_of_b);

 private:
  const TraceTensor* ids_a_ = nullptr;
  const TraceTensor* ids_b_ = nullptr;
  std::vector<double> a_, b_;
};

Status compare_logits(TraceReader& a, TraceReader& b, const TraceTensor& ta, const TraceTensor& tb, const CompareLimits& limits,
                      LogitsDistance& out);
// `flipped`: grows to all rows, and gets those with an excused flip.
Status compare_router(TraceReader& a, TraceReader& b, const TraceTensor& ta, const TraceTensor& tb, const CompareLimits& limits,
                      std::vector<bool>& flipped, RouterDistance& out);

}  // namespace pointsman
