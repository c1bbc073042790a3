// SPDX-License-Identifier: Apache-2.0
//
// Rotary position embedding (Su et al. 2021; YaRN: Peng et al. 2023) as tables for the positions of one pass. Computed on the host in
// the precision Hugging Face uses (fp32 frequencies, fp32 angles), so that parity holds at any position.
#pragma once

#include <cstdint>
#include <vector>

#include "checkpoint/model_config.h"

namespace pointsman {

class RopeTable {
 public:
  RopeTable() = default;
  explicit RopeTable(const RopeConfig& rope, int64_t rotary_dim);

  int64_t rotary_dim() const { return static_cast<int64_t>(inv_freq_.size()) * 2; }
  // cos and sin [tokens, rotary_dim / 2] for positions (first + t) * stride, attention factor included.
  void fill(int64_t first, int64_t tokens, float* cos, float* sin, int64_t stride = 1) const;

 private:
  std::vector<float> inv_freq_;
  float attention_factor_ = 1;
};

}  // namespace pointsman
