// SPDX-License-Identifier: Apache-2.0
#include "tools/position_kernel.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

#include "tensor/dtype.h"

namespace pointsman::tools {
namespace {

// The score at distance 0. exp(-24) times any context is nothing.
constexpr double kScore = 24;
constexpr size_t kLongest = 8192;

}  // namespace

PositionKernel position_kernel(const KernelShape& shape, double rate, FunctionRef<float(float)> stored) {
  const auto dim = static_cast<double>(shape.head_dim);
  const auto pairs = static_cast<size_t>(shape.head_dim / 2);
  const double step = 2 / dim * std::log(shape.rope_theta);
  std::vector<double> frequency(pairs), amplitude(pairs);
  for (size_t i = 0; i < pairs; ++i) frequency[i] = std::pow(shape.rope_theta, -2 * static_cast<double>(i) / dim);
  // Below `lowest` amplitudes grow no more; frequencies that do not change within the context say nothing.
  const auto fill = [&](double lowest) {
    for (size_t i = 0; i < pairs; ++i) {
      const bool is_used = i < 2 || frequency[i] * static_cast<double>(shape.context) >= 0.25;
      amplitude[i] = is_used ? 2 * rate / std::numbers::pi * step / std::max(frequency[i], lowest) : 0;
    }
    return std::accumulate(amplitude.begin(), amplitude.end(), 0.0);
  };
  double low = 1e-12, high = 1e6;
  for (int i = 0; i < 200; ++i) (fill(std::sqrt(low * high)) > kScore ? low : high) = std::sqrt(low * high);
  fill(high);

  PositionKernel kernel;
  kernel.q_norm = to_float(to_bf16(static_cast<float>(kScore / std::sqrt(dim))));
  kernel.vector.assign(static_cast<size_t>(shape.head_dim), 0.0f);
  const double largest = *std::max_element(amplitude.begin(), amplitude.end());
  double squares = 0;
  for (size_t i = 0; i < pairs; ++i) {
    kernel.vector[i] = stored(static_cast<float>(std::sqrt(amplitude[i] / largest)));  // the other half of each pair is 0
    squares += double{kernel.vector[i]} * kernel.vector[i];
  }
  kernel.weights.resize(std::min(kLongest, static_cast<size_t>(shape.context)));
  for (size_t d = 0; d < kernel.weights.size(); ++d) {
    double score = 0;
    for (size_t i = 0; i < pairs; ++i) score += double{kernel.vector[i]} * kernel.vector[i] * (std::cos(frequency[i] * static_cast<double>(d)) - 1);
    kernel.weights[d] = std::exp(score * kernel.q_norm * dim / squares / std::sqrt(dim));
  }
  const double sum = std::accumulate(kernel.weights.begin(), kernel.weights.end(), 0.0);
  for (double& w : kernel.weights) w /= sum;
  return kernel;
}

}  // namespace pointsman::tools
