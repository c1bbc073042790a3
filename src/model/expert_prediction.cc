// SPDX-License-Identifier: Apache-2.0
#include "model/expert_prediction.h"

#include <algorithm>

namespace pointsman {

void ExpertPrediction::begin_pass(int64_t rows) {
  rows_ = mode_ != PrefetchMode::kOff && rows <= kMaxRows ? rows : 0;
  guess_layer_ = -1;
  if (rows_ > 0 && rows_ != trial_rows_) {
    trial_rows_ = rows_;
    trial_.restart();
  }
}

void ExpertPrediction::end_pass(uint64_t ns) {
  if (rows_ == 0) return;
  ++passes_;
  passes_acted_ += acts() ? 1 : 0;
  if (mode_ == PrefetchMode::kPredict && can_read_) trial_.record(ns);
  rows_ = 0;
}

void ExpertPrediction::guessed(int moe_layer_idx, std::span<const int32_t> ids) {
  std::copy(ids.begin(), ids.end(), guess_.begin());
  guess_layer_ = moe_layer_idx;
}

void ExpertPrediction::chosen(int moe_layer_idx, std::span<const int32_t> ids) {
  if (rows_ == 0 || guess_layer_ != moe_layer_idx) return;
  guess_layer_ = -1;
  Counts& c = counts_[static_cast<size_t>(moe_layer_idx)];
  const size_t top_k = ids.size() / static_cast<size_t>(rows_);
  for (size_t i = 0; i < ids.size(); ++i) {
    const auto row = guess_.begin() + static_cast<std::ptrdiff_t>(i / top_k * top_k);
    ++c.chosen;
    c.right += std::find(row, row + static_cast<std::ptrdiff_t>(top_k), ids[i]) != row + static_cast<std::ptrdiff_t>(top_k) ? 1 : 0;
  }
}

void ExpertPrediction::reset_counts() {
  std::fill(counts_.begin(), counts_.end(), Counts{});
  passes_ = passes_acted_ = 0;
}

}  // namespace pointsman
