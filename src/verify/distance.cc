// SPDX-License-Identifier: Apache-2.0
#include "verify/distance.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "tensor/dtype.h"
#include "verify/compare.h"

namespace pointsman {

uint64_t UlpHistogram::total() const {
  uint64_t n = 0;
  for (const uint64_t b : buckets) n += b;
  return n;
}

uint64_t UlpHistogram::quantile(double share) const {
  const double wanted = share * static_cast<double>(total());
  uint64_t n = 0;
  for (size_t i = 0; i < kBuckets; ++i) {
    n += buckets[i];
    if (static_cast<double>(n) >= wanted) return i == 0 ? 0 : std::min(max, (uint64_t{1} << i) - 1);
  }
  return max;
}

uint64_t ulp_distance(double a, double b, DType type) {
  // Sign and magnitude to a line of integers on which neighbours differ by one.
  const auto on_line = [type](double v) {
    const uint32_t u = std::bit_cast<uint32_t>(static_cast<float>(v));
    int64_t magnitude = u & 0x7fffffff;
    if (type == DType::kBF16) {
      magnitude = (magnitude + 0x7fff + ((magnitude >> 16) & 1)) >> 16;
    } else if (type == DType::kF16) {
      // Steps of 2^-24 below 2^-14, then 1024 steps per binade; beyond the largest fp16 the line just goes on.
      const double m = std::fabs(v);
      if (m < 0x1p-14) {
        magnitude = std::llround(m * 0x1p24);
      } else {
        int exponent = 0;
        const double fraction = std::frexp(m, &exponent);  // 0.5 <= fraction < 1
        magnitude = static_cast<int64_t>(exponent + 14) * 1024 + std::llround((fraction * 2 - 1) * 1024);
      }
    }
    return u >> 31 ? -magnitude : magnitude;
  };
  const int64_t d = on_line(a) - on_line(b);
  return static_cast<uint64_t>(d < 0 ? -d : d);
}

DistanceSums::DistanceSums(double atol, double rtol, TensorDistance& out, DType ulp_type)
    : atol_(atol), rtol_(rtol), ulp_type_(ulp_type), out_(out) {
  out_.ulp.counted = ulp_type == DType::kF32 || ulp_type == DType::kBF16 || ulp_type == DType::kF16;
}

bool DistanceSums::count_nonfinite(double a, double b) {
  const bool finite_a = std::isfinite(a), finite_b = std::isfinite(b);
  if (finite_a && finite_b) return false;
  out_.nonfinite_a += !finite_a;
  out_.nonfinite_b += !finite_b;
  const bool same = a == b || (std::isnan(a) && std::isnan(b));
  if (out_.first_nonfinite_row < 0 && !same) {
    out_.first_nonfinite_row = row_;
    out_.first_nonfinite_a = a;
    out_.first_nonfinite_b = b;
  }
  out_.nonfinite_mismatch += !same;
  return true;
}

void DistanceSums::add_left_out_row(std::span<const double> a, std::span<const double> b) {
  ++out_.rows_left_out;
  for (size_t i = 0; i < a.size(); ++i) count_nonfinite(a[i], b[i]);
}

void DistanceSums::add_row(int64_t row, std::span<const double> a, std::span<const double> b, bool is_integer) {
  double largest = 0, worst = 0;
  row_ = row;
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
    above_1e3_ += relative > 1e-3;
    above_5e3_ += relative > 5e-3;
    if (out_.ulp.counted) {
      const uint64_t ulp = ulp_distance(a[i], b[i], ulp_type_);
      out_.ulp.max = std::max(out_.ulp.max, ulp);
      ++out_.ulp.buckets[std::min<size_t>(UlpHistogram::kBuckets - 1, static_cast<size_t>(std::bit_width(ulp)))];
    }
    squares_ += d * d;
    aa_ += a[i] * a[i];
    bb_ += b[i] * b[i];
    ab_ += a[i] * b[i];
    largest = std::max(largest, std::fabs(b[i]));
    worst = std::max(worst, d);
  }
  // Rows of almost nothing are not magnified.
  constexpr double kRowFloor = 1e-3;
  const double of_row = worst / std::max(largest, kRowFloor);
  if (of_row > out_.row_relative) {
    out_.row_relative = of_row;
    out_.worst_relative_row = row;
  }
}

void DistanceSums::finish() {
  if (finite_ == 0) return;
  const double n = static_cast<double>(finite_);
  out_.rmse = std::sqrt(squares_ / n);
  out_.mean_rel = relative_ / n;
  out_.share_above_1e3 = static_cast<double>(above_1e3_) / n;
  out_.share_above_5e3 = static_cast<double>(above_5e3_) / n;
  out_.nmse = squares_ == 0 ? 0 : bb_ > 0 ? squares_ / bb_ : std::numeric_limits<double>::infinity();
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
