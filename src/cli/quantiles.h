// SPDX-License-Identifier: Apache-2.0
//
// Order statistics of measurements.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

namespace pointsman::cli {

// The smallest value that at least the share q of all values does not exceed; 0 of nothing.
inline double quantile(std::vector<double> values, double q) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const double rank = std::ceil(q * static_cast<double>(values.size()));
  return values[static_cast<size_t>(std::max(rank - 1, 0.0))];
}

inline double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

}  // namespace pointsman::cli
