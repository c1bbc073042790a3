// SPDX-License-Identifier: Apache-2.0
//
// Distances between rows of numbers. All sums are in float64, in the order of the elements.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

namespace pointsman {

struct TensorDistance;

// Denominator floor of relative errors, as Ascend's operator standard has it.
inline constexpr double kRelativeFloor = 1e-7;

// Collects a TensorDistance row by row.
class DistanceSums {
 public:
  // rtol < 0: atol + rtol |b| is not judged.
  DistanceSums(double atol, double rtol, TensorDistance& out) : atol_(atol), rtol_(rtol), out_(out) {}
  void add_row(int64_t row, std::span<const double> a, std::span<const double> b, bool is_integer);
  // A row that is not judged, but where NaN and infinity count all the same.
  void add_left_out_row(std::span<const double> a, std::span<const double> b);
  void finish();

 private:
  bool count_nonfinite(double a, double b);

  const double atol_, rtol_;
  TensorDistance& out_;
  double squares_ = 0, aa_ = 0, bb_ = 0, ab_ = 0, relative_ = 0;
  uint64_t finite_ = 0;
};

// sum p (log p - log q) of the softmaxes of two rows of logits, in nats; never negative. -infinity is a probability of 0; empty
// when a row holds NaN or +infinity, or nothing finite. Infinite where p > 0 and q = 0.
std::optional<double> kl_divergence(std::span<const double> p_logits, std::span<const double> q_logits);

// Gap between the k-th and the (k+1)-th largest. REQUIRES: 1 <= k < row.size().
double gap_after(std::span<const double> row, size_t k);

}  // namespace pointsman
