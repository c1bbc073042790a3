// SPDX-License-Identifier: Apache-2.0
//
// Random values of a tensor, block by block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tools/random_checkpoint.h"

namespace pointsman::tools {

// Elements per block: a whole number of rows of I64 tables of 1 to 6, 8, 9, 10, 12, 15 or 16 ids.
inline constexpr uint64_t kBlockElements = 720 * 2048;

// Fills `out` with elements [block * kBlockElements, ...) of tensor `tensor_idx`.
void fill_random(const RandomTensor& t, uint64_t seed, uint64_t tensor_idx, uint64_t block, std::span<std::byte> out);

// The code nearest to `value`; never NaN.
uint8_t nearest_e4m3(double value);

// The quantile of the standard normal distribution. REQUIRES: 0 < p < 1.
double normal_quantile(double p);

}  // namespace pointsman::tools
