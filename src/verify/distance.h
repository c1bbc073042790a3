// SPDX-License-Identifier: Apache-2.0
//
// Distances between rows of numbers. All sums are in float64, in the order of the elements.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

namespace pointsman {

struct TensorDistance;
enum class DType : uint8_t;

// Distances in units in the last place: the number of representable values of the coarser of both types between a and b. Bucket 0
// holds equal values, bucket i > 0 distances of 2^(i-1) to 2^i - 1.
struct UlpHistogram {
  static constexpr size_t kBuckets = 34;
  uint64_t buckets[kBuckets] = {};
  uint64_t max = 0;
  bool counted = false;  // false for types without one (F64, integers)
  uint64_t total() const;
  // Upper end of the bucket that holds this share of the elements.
  uint64_t quantile(double share) const;
};
// REQUIRES: a and b are finite, type is F32, BF16 or F16, and both are representable in it or in a finer type.
uint64_t ulp_distance(double a, double b, DType type);

// Denominator floor of relative errors, as Ascend's operator standard has it.
inline constexpr double kRelativeFloor = 1e-7;

// Collects a TensorDistance row by row.
class DistanceSums {
 public:
  // rtol < 0: atol + rtol |b| is not judged.
  // `ulp_type`: F32, BF16 or F16 counts units in the last place, anything else does not.
  DistanceSums(double atol, double rtol, TensorDistance& out, DType ulp_type = {});
  void add_row(int64_t row, std::span<const double> a, std::span<const double> b, bool is_integer);
  // A row that is not judged, but where NaN and infinity count all the same.
  void add_left_out_row(std::span<const double> a, std::span<const double> b);
  void finish();

 private:
  bool count_nonfinite(double a, double b);

  const double atol_, rtol_;
  const DType ulp_type_;
  TensorDistance& out_;
  double squares_ = 0, aa_ = 0, bb_ = 0, ab_ = 0, relative_ = 0;
  int64_t row_ = -1;
  uint64_t finite_ = 0, above_1e3_ = 0, above_5e3_ = 0;
};

// sum p (log p - log q) of the softmaxes of two rows of logits, in nats; never negative. -infinity is a probability of 0; empty
// when a row holds NaN or +infinity, or nothing finite. Infinite where p > 0 and q = 0.
std::optional<double> kl_divergence(std::span<const double> p_logits, std::span<const double> q_logits);

// Gap between the k-th and the (k+1)-th largest. REQUIRES: 1 <= k < row.size().
double gap_after(std::span<const double> row, size_t k);

}  // namespace pointsman
