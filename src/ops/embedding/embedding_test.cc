// SPDX-License-Identifier: Apache-2.0
#include "ops/embedding/embedding.h"

#include "support/ops_fixture.h"

namespace pointsman {
namespace {

using testing::kernel_tables;
using testing::make_runners;
using testing::TestMatrix;

template <class T>
class EmbeddingOf : public ::testing::Test {};
using Types = ::testing::Types<float, bf16, f16>;
TYPED_TEST_SUITE(EmbeddingOf, Types);

TYPED_TEST(EmbeddingOf, WidensRowsExactly) {
  auto runners = make_runners(2);
  std::mt19937_64 rng(1);
  for (const int64_t hidden : {1, 15, 16, 17, 33, 100}) {
    TestMatrix<TypeParam> table(9, hidden, 1, 2);
    // Every bit pattern is welcome: denormals too, and infinity.
    for (int64_t r = 0; r < 9; ++r) {
      for (int64_t c = 0; c < hidden; ++c) {
        if constexpr (sizeof(TypeParam) == 2) table.at(r, c) = {static_cast<uint16_t>(rng())};
        else table.at(r, c) = std::bit_cast<float>(static_cast<uint32_t>(rng()));
      }
    }
    const std::vector<int32_t> ids = {0, 8, 3, 3, 7};
    for (size_t i = 0; i < runners.size(); ++i) {
      TestMatrix<float> out(5, hidden, 2, 1);
      ASSERT_TRUE(ops::embedding(runners[i]->context, {.table = table.tensor(), .ids = ids.data(), .out = out.tensor()}).ok());
      for (size_t t = 0; t < ids.size(); ++t) {
        for (int64_t c = 0; c < hidden; ++c) {
          ASSERT_TRUE(testing::same(out.at(static_cast<int64_t>(t), c), testing::widen(table.at(ids[t], c)))) << kernel_tables()[i].name;
        }
      }
      EXPECT_TRUE(out.untouched_outside());
    }
  }
}

TEST(Embedding, RefusesWhatDoesNotFit) {
  testing::OpRunner run(kernel_tables()[0].table);
  TestMatrix<float> table(4, 8), out(2, 9);
  const int32_t ids[] = {0, 1};
  EXPECT_EQ(ops::embedding(run.context, {.table = table.tensor(), .ids = ids, .out = out.tensor()}).code(), StatusCode::kInvalidArgument);
  Tensor none = Tensor::matrix(table.tensor().data, DType::kF32, 0, 8);
  EXPECT_TRUE(ops::embedding(run.context, {.table = table.tensor(), .ids = ids, .out = none}).ok());
}

}  // namespace
}  // namespace pointsman
