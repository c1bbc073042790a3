// SPDX-License-Identifier: Apache-2.0
//
// A head of attention that looks at positions only: every token has the same query and the same key, and rotary embedding makes their
// product a function of the distance. What comes out is a mean of the past whose weights fall with the distance.
#pragma once

#include <cstdint>
#include <vector>

#include "base/function_ref.h"

namespace pointsman::tools {

struct KernelShape {
  int64_t head_dim = 0, context = 0;
  double rope_theta = 0;
};

struct PositionKernel {
  std::vector<float> vector;    // [head_dim]: query and key before their norm, as stored; the largest element is 1
  double q_norm = 1;            // weight of the query's norm; the key's is 1
  std::vector<double> weights;  // by distance 0, 1, ...; the sum is 1
};

// Weights that fall by about exp(-rate) per token: the score is a sum of cosines with amplitudes ~ rate / frequency, the Fourier sum of
// -rate * distance (|d| = 2/pi * integral of (1 - cos(f d)) / f^2 over f > 0), cut off where the head's largest score ends. Near distance 0 it is
// rounder, because there is no frequency above 1. `stored` is what a value becomes in the checkpoint's format.
// REQUIRES: head_dim even and >= 16, rate > 0.
PositionKernel position_kernel(const KernelShape& shape, double rate, FunctionRef<float(float)> stored);

}  // namespace pointsman::tools
