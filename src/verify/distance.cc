// SPDX-License-Identifier: Apache-2.0
#include "verify/distance.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "verify/compare.h"

namespace pointsman {

bool DistanceSums::count_nonfinite(double a, double b) {
  const bool finite_a = std::isfinite(a), finite_b = std::isfinite(b);
  if (finite_a && finite_b) return false;
  out_.nonfinite_a += !finite_a;
  out_.nonfinite_b += !finite_b;
  const bool same = a == b || (std::isnan(a) && std::isnan(b));
  out_.nonfinite_mismatch += !same;
  return true;
}

void DistanceSums::add_left_out_row(std::span<const double> a, std::span<const double> b) {
  ++out_.rows_left_out;
  for (size_t i = 0; i < a.size(); ++i) count_nonfinite(a[i], b[i]);
}

void DistanceSums::add_row(int64_t row, std::span<const double> a, std::span<const double> b, bool is_integer) {
  double largest = 0, worst = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    ++out_.compared;
    if (count_nonfinite(a[i], b[i])) continue;
    ++finite_;
    const double d = std::fabs(a[i] - b[i]);
    if (is_integer) out_.different += d != 0;
    if (d > out_.max_abs || out_.worst_row < 0) {
      out_.max_abs = d;
      out_.worst_row = row;
      out_.worst_col = static_cast<int64_t>(i);
      out_.worst_a = a[i];
      out_.worst_b = b[i];
    }
    const double relative = d / (std::fabs(b[i]) + kRelativeFloor);
    out_.max_rel = std::max(out_.max_rel, relative);
    if (rtol_ >= 0) out_.worst_excess = std::max(out_.worst_excess, d - (atol_ + rtol_ * std::fabs(b[i])));
    relative_ += relative;
    squares_ += d * d;
    aa_ += a[i] * a[i];
    bb_ += b[i] * b[i];
    ab_ += a[i] * b[i];
    largest = std::max(largest, std::fabs(b[i]));
    worst = std::max(worst, d);
  }
  // Rows of almost nothing are not magnified.
  constexpr double kRowFloor = 1e-3;
  out_.row_relative = std::max(out_.row_relative, worst / std::max(largest, kRowFloor));
}

void DistanceSums::finish() {
  if (finite_ == 0) return;
  const double n = static_cast<double>(finite_);
  out_.rmse = std::sqrt(squares_ / n);
  out_.mean_rel = relative_ / n;
  // Two zero tensors point the same way; a zero and another one do not.
  out_.cosine = aa_ > 0 && bb_ > 0 ? std::min(1.0, ab_ / (std::sqrt(aa_) * std::sqrt(bb_))) : (aa_ == bb_ ? 1 : 0);
}

std::optional<double> kl_divergence(std::span<const double> p, std::span<const double> q) {
  const auto log_sum_exp = [](std::span<const double> row) -> std::optional<double> {
    double top = -std::numeric_limits<double>::infinity();
    for (const double v : row) {
      if (std::isnan(v) || v == std::numeric_limits<double>::infinity()) return std::nullopt;
      top = std::max(top, v);
    }
    if (!std::isfinite(top)) return std::nullopt;
    double sum = 0;
    for (const double v : row) sum += std::exp(v - top);
    return top + std::log(sum);
  };
  const std::optional<double> lp = log_sum_exp(p), lq = log_sum_exp(q);
  if (!lp || !lq) return std::nullopt;
  double kl = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    const double log_p = p[i] - *lp;
    const double probability = std::exp(log_p);
    if (probability > 0) kl += probability * (log_p - (q[i] - *lq));
  }
  return std::max(kl, 0.0);  // rounding
}

double gap_after(std::span<const double> row, size_t k) {
  std::vector<double> sorted(row.begin(), row.end());
  std::partial_sort(sorted.begin(), sorted.begin() + static_cast<ptrdiff_t>(k) + 1, sorted.end(), std::greater<>());
  return sorted[k - 1] - sorted[k];
}

}  // namespace pointsman
