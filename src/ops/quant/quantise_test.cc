// SPDX-License-Identifier: Apache-2.0
#include "ops/quant/quantise.h"

#include <gtest/gtest.h>

#include "support/ops_fixture.h"

namespace pointsman {
namespace {

using testing::kernel_tables;
using testing::make_runners;
using testing::TestMatrix;

struct Row {
  std::vector<int8_t> codes;
  std::vector<float> scales;
  std::vector<int32_t> offsets;
};

class Quantised {
 public:
  Quantised(int64_t rows, int64_t cols, int64_t block = 32)
      : bytes_(static_cast<size_t>(rows * ops::quantised_row_bytes(cols, block)), 0x55), rows_(rows), cols_(cols), block_(block) {}
  Tensor tensor() { return ops::quantised_matrix(bytes_.data(), rows_, cols_, block_); }
  Row row(int64_t r) const {
    Row q;
    const int64_t blocks = (cols_ + block_ - 1) / block_;
    q.codes.resize(static_cast<size_t>(cols_)), q.scales.resize(static_cast<size_t>(blocks)), q.offsets.resize(static_cast<size_t>(blocks));
    const uint8_t* p = bytes_.data() + r * ops::quantised_row_bytes(cols_, block_);
    std::memcpy(q.codes.data(), p, q.codes.size());
    std::memcpy(q.scales.data(), p + cols_, q.scales.size() * 4);
    std::memcpy(q.offsets.data(), p + cols_ + blocks * 4, q.offsets.size() * 4);
    return q;
  }
  const std::vector<uint8_t>& bytes() const { return bytes_; }

 private:
  std::vector<uint8_t> bytes_;
  int64_t rows_, cols_, block_;
};

// The rule of the header, one block at a time, in doubles where that is exact.
void expect_block(const float* x, const Row& q, int64_t block, int64_t width, int64_t n) {
  float most = 0;
  bool finite = true;
  for (int i = 0; i < n; ++i) most = std::max(most, std::fabs(x[i])), finite = finite && std::isfinite(x[i]);
  const int8_t* codes = q.codes.data() + width * block;
  const float scale = q.scales[static_cast<size_t>(block)];
  int32_t sum = 0;
  for (int i = 0; i < n; ++i) sum += codes[i];
  EXPECT_EQ(q.offsets[static_cast<size_t>(block)], -128 * sum);
  if (!finite || most < 0x1p-120f) {
    EXPECT_TRUE(finite ? scale == 0 : std::isnan(scale));
    for (int i = 0; i < n; ++i) EXPECT_EQ(codes[i], 0);
    return;
  }
  EXPECT_EQ(scale, most / 127);
  for (int i = 0; i < n; ++i) {
    EXPECT_EQ(codes[i], static_cast<int>(std::nearbyint(x[i] * (127 / most)))) << i;
    EXPECT_LE(std::fabs(double{scale} * codes[i] - double{x[i]}), 0.5000001 * double{scale}) << x[i];
  }
}

TEST(QuantiseRows, FollowsTheRuleOnEveryInstructionSet) {
  const int64_t rows = 9, cols = 160;
  std::mt19937_64 rng(4);
  TestMatrix<float> x(rows, cols, 1, 3);
  x.fill(rng, 3);
  for (int64_t c = 0; c < 32; ++c) x.at(0, c) = 0, x.at(1, 32 + c) = 0x1p-121f * static_cast<float>(c % 2), x.at(2, c) *= 0x1p100f, x.at(3, c) *= 0x1p-110f;
  for (int64_t c = 0; c < 32; ++c) x.at(4, c) = static_cast<float>(c) * 0.5f * (c % 2 == 0 ? 1.0f : -1.0f);  // ties
  x.at(5, 7) = NAN, x.at(5, 70) = INFINITY, x.at(5, 159) = -INFINITY;
  x.at(6, 3) = 3.4028235e38f, x.at(7, 3) = 0x1p-120f;
  auto runners = make_runners();
  std::vector<uint8_t> expected;
  for (size_t at = 0; at < 2 * runners.size(); ++at) {
    const size_t i = at % runners.size();
    const int64_t width = at < runners.size() ? 32 : 128;  // the last block of 128 has 32 of 160
    SCOPED_TRACE(kernel_tables()[i].name);
    Quantised q(rows, cols, width);
    const Status status = ops::quantise_rows(runners[i]->context, {.x = x.tensor(), .out = q.tensor()});
    ASSERT_TRUE(status.ok()) << status.to_string();
    if (i == 0) expected = q.bytes();
    for (int64_t r = 0; r < rows; ++r) {
      const Row row = q.row(r);
      for (int64_t b = 0; b * width < cols; ++b) expect_block(&x.at(r, width * b), row, b, width, std::min(width, cols - b * width));
      for (const int8_t c : row.codes) EXPECT_NE(c, -128);
    }
    EXPECT_EQ(q.bytes(), expected) << "not the bytes of the reference";
  }
}

TEST(QuantiseRows, Bf16RowsAreTheirFp32Values) {
  std::mt19937_64 rng(5);
  TestMatrix<bf16> x(5, 96);
  x.fill(rng);
  TestMatrix<float> wide(5, 96);
  for (int64_t r = 0; r < 5; ++r) {
    for (int64_t c = 0; c < 96; ++c) wide.at(r, c) = to_float(x.at(r, c));
  }
  for (const auto& runner : make_runners(3)) {
    Quantised a(5, 96), b(5, 96);
    ASSERT_TRUE(ops::quantise_rows(runner->context, {.x = x.tensor(), .out = a.tensor()}).ok());
    ASSERT_TRUE(ops::quantise_rows(runner->context, {.x = wide.tensor(), .out = b.tensor()}).ok());
    EXPECT_EQ(a.bytes(), b.bytes());
  }
}

TEST(QuantiseRows, NoRowsAreFineAndOtherShapesAreNamed) {
  auto runners = make_runners();
  TestMatrix<float> x(2, 48);
  Quantised q(2, 64);
  EXPECT_TRUE(ops::quantise_rows(runners[0]->context, {.x = x.tensor().slice_rows(0, 0), .out = {nullptr, DType::kI8, 0, 48, 60}}).code() ==
              StatusCode::kInvalidArgument);
  EXPECT_TRUE(ops::quantise_rows(runners[0]->context, {.x = Tensor::matrix(nullptr, DType::kF32, 0, 64), .out = q.tensor().slice_rows(0, 0)}).ok());
  const Status status = ops::quantise_rows(runners[0]->context, {.x = x.tensor(), .out = q.tensor()});
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.to_string().find("[2, 48]"), std::string::npos) << status.to_string();
}

}  // namespace
}  // namespace pointsman
