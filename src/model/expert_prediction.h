// SPDX-License-Identifier: Apache-2.0
//
// ExpertPrediction: which experts the next layer will ask for, guessed from this layer's residual stream with the next layer's norm and
// router (forward_predict.cc), so that they are read while this layer computes. What is guessed is counted apart from what is done
// about it. A guess changes what is in memory, never a bit of a result.
//
// Passes of at most kMaxRows tokens only: longer ones need nearly every expert anyway.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/benefit_trial.h"
#include "pointsman/options.h"

namespace pointsman {

class ExpertPrediction {
 public:
  static constexpr int64_t kMaxRows = 16;
  struct Counts {
    uint64_t chosen = 0;  // experts of tokens that a guess was made for,
    uint64_t right = 0;   // and those that were in it
  };

  // `can_read`: whether there can be experts that are not in memory.
  ExpertPrediction(PrefetchMode mode, bool can_read, int num_moe_layers, int top_k)
      : mode_(mode), can_read_(can_read), guess_(static_cast<size_t>(kMaxRows * top_k)), counts_(static_cast<size_t>(num_moe_layers)) {}

  void begin_pass(int64_t rows);
  void end_pass(uint64_t ns);
  bool guesses() const { return rows_ > 0 && (mode_ == PrefetchMode::kLog || acts()); }
  // Whether guesses are read.
  bool acts() const { return mode_ == PrefetchMode::kPredict && can_read_ && trial_.on(); }

  // ids [rows, top_k].
  void guessed(int moe_layer_idx, std::span<const int32_t> ids);
  void chosen(int moe_layer_idx, std::span<const int32_t> ids);

  std::span<const Counts> counts() const { return counts_; }  // per MoE layer
  const BenefitTrial& trial() const { return trial_; }
  uint64_t passes_acted() const { return passes_acted_; }
  uint64_t passes() const { return passes_; }
  void reset_counts();

 private:
  const PrefetchMode mode_;
  const bool can_read_;
  int64_t rows_ = 0, trial_rows_ = 0;  // of the pass (0: not predicted), of the passes of the trial
  int guess_layer_ = -1;               // MoE layer of guess_, or -1
  std::vector<int32_t> guess_;
  std::vector<Counts> counts_;
  BenefitTrial trial_;
  uint64_t passes_ = 0, passes_acted_ = 0;
};

}  // namespace pointsman
