// SPDX-License-Identifier: Apache-2.0
#include "verify/distance.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tensor/dtype.h"
#include "verify/compare.h"

namespace pointsman {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

TensorDistance distance(const std::vector<double>& a, const std::vector<double>& b, double atol = -1, double rtol = -1) {
  TensorDistance t;
  DistanceSums sums(atol, rtol, t);
  sums.add_row(0, a, b, false);
  sums.finish();
  return t;
}

TEST(Distance, KnownValues) {
  const TensorDistance t = distance({1, 2, 5}, {1, 4, 4});
  EXPECT_EQ(t.max_abs, 2);
  EXPECT_EQ(t.worst_col, 1);
  EXPECT_EQ(t.worst_a, 2);
  EXPECT_EQ(t.worst_b, 4);
  EXPECT_NEAR(t.max_rel, 0.5, 1e-6);
  EXPECT_NEAR(t.mean_rel, (0.5 + 0.25) / 3, 1e-6);
  EXPECT_EQ(t.row_relative, 0.5);
  EXPECT_NEAR(t.rmse, std::sqrt(5.0 / 3), 1e-12);
  EXPECT_NEAR(t.cosine, (1 + 8 + 20) / std::sqrt(30.0 * 33.0), 1e-12);
}

TEST(Distance, RowsAreRelativeToThemselves) {
  TensorDistance t;
  DistanceSums sums(-1, -1, t);
  sums.add_row(0, std::vector<double>{1000, 0}, std::vector<double>{1001, 0}, false);
  sums.add_row(1, std::vector<double>{1, 0}, std::vector<double>{1.5, 0}, false);
  sums.finish();
  EXPECT_EQ(t.max_abs, 1);
  EXPECT_NEAR(t.row_relative, 0.5 / 1.5, 1e-12);
}

TEST(Distance, NonFiniteValuesAreCountedNotSummed) {
  const double nan = std::nan("");
  const TensorDistance t = distance({nan, kInf, 1, nan, -kInf}, {nan, kInf, 1, 1, kInf});
  EXPECT_EQ(t.nonfinite_a, 4u);
  EXPECT_EQ(t.nonfinite_b, 3u);
  EXPECT_EQ(t.nonfinite_mismatch, 2u);  // NaN against 1, -inf against +inf
  EXPECT_EQ(t.max_abs, 0);
  EXPECT_EQ(t.cosine, 1);
}

TEST(Distance, AtolAndRtol) {
  EXPECT_LE(distance({1.0, 0}, {1.01, 0}, 0, 0.01).worst_excess, 0);
  EXPECT_GT(distance({1.0, 0}, {1.02, 0}, 0, 0.01).worst_excess, 0);
  EXPECT_LE(distance({1e-6}, {0}, 1e-5, 0).worst_excess, 0);
}

TEST(Distance, CosineOfZeros) {
  EXPECT_EQ(distance({0, 0}, {0, 0}).cosine, 1);
  EXPECT_EQ(distance({1, 0}, {0, 0}).cosine, 0);
}

TEST(UlpDistance, NeighboursAreOneApart) {
  EXPECT_EQ(ulp_distance(1.0, std::nextafter(1.0f, 2.0f), DType::kF32), 1u);
  EXPECT_EQ(ulp_distance(0.0, -0.0, DType::kF32), 0u);
  const float least = std::numeric_limits<float>::denorm_min();
  EXPECT_EQ(ulp_distance(least, -least, DType::kF32), 2u);
  EXPECT_EQ(ulp_distance(1.0, 1.0 + 0x1p-7, DType::kBF16), 1u);
  EXPECT_EQ(ulp_distance(1.0, 1.0 + 0x1p-9, DType::kBF16), 0u);  // rounds to the same
  EXPECT_EQ(ulp_distance(1.0, 1.0 + 0x1p-10, DType::kF16), 1u);
  EXPECT_EQ(ulp_distance(0x1p-14, 0x1p-14 - 0x1p-24, DType::kF16), 1u);  // across the first subnormal
  EXPECT_EQ(ulp_distance(65504, 65472, DType::kF16), 1u);
}

TEST(Distance, UlpHistogramSharesAndNmse) {
  TensorDistance t;
  DistanceSums sums(-1, -1, t, DType::kF32);
  const float next = std::nextafter(1.0f, 2.0f);
  std::vector<double> a(100, 1.0), b(100, 1.0);
  a[0] = double{next};  // 1 ulp
  a[1] = 1.002;         // above 1 in a thousand
  a[2] = 1.01;          // above 5 in a thousand
  sums.add_row(0, a, b, false);
  sums.finish();
  EXPECT_EQ(t.ulp.buckets[0], 97u);
  EXPECT_EQ(t.ulp.buckets[1], 1u);
  EXPECT_EQ(t.ulp.total(), 100u);
  EXPECT_EQ(t.ulp.quantile(0.97), 0u);
  EXPECT_EQ(t.ulp.quantile(0.98), 1u);
  EXPECT_EQ(t.ulp.max, ulp_distance(1.01, 1.0, DType::kF32));
  EXPECT_EQ(t.share_above_1e3, 0.02);
  EXPECT_EQ(t.share_above_5e3, 0.01);
  EXPECT_NEAR(t.nmse, (0.002 * 0.002 + 0.01 * 0.01) / 100, 1e-9);
  EXPECT_NEAR(t.sqnr_db(), -10 * std::log10(t.nmse), 1e-12);
}

TEST(KlDivergence, KnownValueAndShiftInvariance) {
  const std::vector<double> p = {std::log(0.5), std::log(0.25), std::log(0.25)},
                            q = {std::log(0.25), std::log(0.25), std::log(0.5)};
  EXPECT_NEAR(*kl_divergence(p, q), 0.5 * std::log(2) + 0.25 * std::log(0.5), 1e-12);
  std::vector<double> shifted = q;
  for (double& v : shifted) v += 1e4;
  EXPECT_NEAR(*kl_divergence(p, shifted), *kl_divergence(p, q), 1e-9);
  EXPECT_EQ(*kl_divergence(p, p), 0);
}

TEST(KlDivergence, MasksAndBrokenRows) {
  EXPECT_NEAR(*kl_divergence(std::vector<double>{0, -kInf}, std::vector<double>{0, 0}), std::log(2), 1e-12);
  EXPECT_EQ(*kl_divergence(std::vector<double>{0, 0}, std::vector<double>{0, -kInf}), kInf);
  EXPECT_FALSE(kl_divergence(std::vector<double>{0, std::nan("")}, std::vector<double>{0, 0}));
  EXPECT_FALSE(kl_divergence(std::vector<double>{0, 0}, std::vector<double>{0, kInf}));
  EXPECT_FALSE(kl_divergence(std::vector<double>{-kInf}, std::vector<double>{0}));
}

TEST(GapAfter, OfUnsortedRows) {
  EXPECT_EQ(gap_after(std::vector<double>{1, 9, 4, 7}, 1), 2);
  EXPECT_EQ(gap_after(std::vector<double>{1, 9, 4, 7}, 2), 3);
  EXPECT_EQ(gap_after(std::vector<double>{1, 9, 9, 7}, 1), 0);
}

}  // namespace
}  // namespace pointsman
