// SPDX-License-Identifier: Apache-2.0
#include "ops/sequences.h"

#include <gtest/gtest.h>

#include <random>

#include "ops/attention/attention.h"
#include "ops/compress/compress.h"
#include "support/ops_fixture.h"

namespace pointsman {
namespace {

using ops::Sequences;
using testing::all_same;
using testing::make_runners;
using testing::TestMatrix;

Sequences list_of(std::initializer_list<std::pair<int64_t, int64_t>> runs) {
  Sequences s;
  for (const auto& [rows, position] : runs) s.add(rows, position);
  return s;
}

TEST(Sequences, KnowWhoseRowIsWhereAlsoBesideEmptyRuns) {
  const Sequences s = list_of({{3, 10}, {0, 7}, {1, 0}, {2, 100}});
  EXPECT_EQ(s.rows(), 6);
  EXPECT_EQ(s.longest(), 102);
  const int owner[] = {0, 0, 0, 2, 3, 3};
  const int64_t position[] = {10, 11, 12, 0, 100, 101};
  for (int row = 0; row < 6; ++row) {
    EXPECT_EQ(s.of_row(row), owner[row]) << row;
    EXPECT_EQ(s.position(s.of_row(row), row), position[row]) << row;
  }
  const Sequences decode = list_of({{1, 4}, {1, 9}, {1, 2}});
  for (int row = 0; row < 3; ++row) EXPECT_EQ(decode.of_row(row), row);
}

TEST(Sequences, SlicesKeepPositionsOfAllRows) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    Sequences s;
    for (int i = 0; i < 6; ++i) s.add(static_cast<int64_t>(random() % 5), static_cast<int64_t>(random() % 50));
    if (s.rows() == 0) continue;
    const int64_t first = static_cast<int64_t>(random()) % s.rows(), n = 1 + static_cast<int64_t>(random()) % (s.rows() - first);
    const Sequences part = s.slice(first, n);
    ASSERT_EQ(part.rows(), n);
    ASSERT_EQ(part.count, s.count);
    ASSERT_LE(part.longest(), s.longest());
    for (int64_t row = 0; row < n; ++row) {
      ASSERT_EQ(part.of_row(row), s.of_row(first + row));
      ASSERT_EQ(part.position(part.of_row(row), row), s.position(s.of_row(first + row), first + row));
    }
  }
}

TEST(Sequences, FitOnlyWhereEveryPositionIsInTheCache) {
  EXPECT_TRUE(list_of({{3, 10}, {1, 0}}).fit(4, 13));
  EXPECT_FALSE(list_of({{3, 10}, {1, 0}}).fit(4, 12));
  EXPECT_FALSE(list_of({{3, 10}, {1, 0}}).fit(5, 13));
  EXPECT_FALSE(list_of({{1, -1}}).fit(1, 13));
  EXPECT_FALSE(list_of({{-1, 3}, {2, 0}}).fit(1, 13));
  EXPECT_FALSE(list_of({{2, INT64_MAX - 1}}).fit(2, 13));
  EXPECT_FALSE(Sequences().fit(0, 13));
}

// One call for several sequences, and one call for each: the same bits.
TEST(Sequences, InOneCallOfAttentionAreAsAlone) {
  constexpr int64_t kCapacity = 256;
  constexpr int32_t kHeads = 6, kKvHeads = 2, kDim = 40;
  const Sequences list = list_of({{1, 130}, {7, 60}, {1, 0}, {1, 64}, {30, 3}});
  const int64_t rows = list.rows();
  std::mt19937_64 rng(3);
  TestMatrix<float> q(rows, kHeads * kDim), alone(rows, kHeads * kDim, 1, 2), together(rows, kHeads * kDim, 2, 1);
  TestMatrix<bf16> k(list.count * kKvHeads * kCapacity, kDim), v(list.count * kKvHeads * kCapacity, kDim);
  q.fill(rng), k.fill(rng), v.fill(rng);
  ops::PerSequence keys, values;
  for (int s = 0; s < list.count; ++s) {
    keys.at[s] = &k.at(s * kKvHeads * kCapacity, 0), values.at[s] = &v.at(s * kKvHeads * kCapacity, 0);
  }
  for (const int threads : {1, 3}) {
    for (auto& run : make_runners(threads)) {
      for (const auto& [window, layout] : {std::pair{0, ops::CacheLayout::kRows}, {50, ops::CacheLayout::kRows}, {0, ops::CacheLayout::kTiles}, {50, ops::CacheLayout::kTiles}}) {
        ops::AttentionArgs args{.q = q.tensor(), .k_cache = keys, .v_cache = values, .cache_dtype = DType::kBF16, .layout = layout, .capacity = kCapacity, .sequences = list,
                                .window = window, .heads = kHeads, .kv_heads = kKvHeads, .head_dim = kDim, .scale = 0.2f, .out = together.tensor()};
        ASSERT_TRUE(ops::attention(run->context, args).ok());
        for (int s = 0; s < list.count; ++s) {
          const int64_t first = list.first_row[s], n = list.rows_of(s);
          args.q = q.tensor().slice_rows(first, n), args.out = alone.tensor().slice_rows(first, n);
          args.sequences = {n, list.first_position[s]}, args.k_cache = keys[s], args.v_cache = values[s];
          ASSERT_TRUE(ops::attention(run->context, args).ok());
        }
        EXPECT_TRUE(all_same(alone.values(), together.values()));
        EXPECT_TRUE(together.untouched_outside());
      }
    }
  }
}

TEST(Sequences, CloseEntriesByTheirOwnPositions) {
  const Sequences closed = ops::closing_entries(list_of({{1, 3}, {1, 4}, {9, 6}, {3, 0}}), 4);
  ASSERT_EQ(closed.count, 4);
  const int64_t rows[] = {1, 0, 2, 0}, first[] = {0, 1, 1, 0};
  for (int s = 0; s < 4; ++s) {
    EXPECT_EQ(closed.rows_of(s), rows[s]) << s;
    EXPECT_EQ(closed.first_position[s], first[s]) << s;
  }
}

}  // namespace
}  // namespace pointsman
