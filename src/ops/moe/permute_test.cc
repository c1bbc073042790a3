// SPDX-License-Identifier: Apache-2.0
#include "ops/moe/permute.h"

#include <algorithm>
#include <cstring>

#include "ops/moe/combine.h"
#include "support/ops_fixture.h"

namespace pointsman {
namespace {

using testing::all_same;
using testing::kernel_tables;
using testing::make_runners;
using testing::TestMatrix;

struct Index {
  std::vector<int32_t> offsets, rank_offsets, slot_row, row_slot;
};

Index index_of(testing::OpRunner& run, const std::vector<int32_t>& ids, int32_t top_k, int32_t experts, int32_t ranks, const int32_t* counts = nullptr) {
  Index x{std::vector<int32_t>(static_cast<size_t>(experts) + 1, -7), std::vector<int32_t>(static_cast<size_t>(ranks) + 1, -7),
          std::vector<int32_t>(ids.size(), -7), std::vector<int32_t>(ids.size(), -7)};
  const Status s = ops::permute_index(run.context, {.ids = ids.data(), .counts = counts, .tokens = static_cast<int64_t>(ids.size()) / top_k, .top_k = top_k,
                                                    .num_experts = experts, .ranks = ranks, .offsets = x.offsets.data(), .rank_offsets = x.rank_offsets.data(),
                                                    .slot_row = x.slot_row.data(), .row_slot = x.row_slot.data()});
  EXPECT_TRUE(s.ok()) << s.to_string();
  return x;
}

// Against a stable sort of (expert, slot) pairs.
TEST(PermuteIndex, IsAStableSortByExpertWithTheRowsOfARankTogether) {
  auto runners = make_runners();
  std::mt19937_64 rng(1);
  for (const auto& [experts, top_k, ranks] : {std::tuple{1, 1, 1}, {6, 2, 3}, {64, 8, 4}, {1024, 16, 8}}) {
    for (const int tokens : {0, 1, 3, 257}) {
      for (const bool drops : {false, true}) {
        std::vector<int32_t> ids(static_cast<size_t>(tokens * top_k)), counts(static_cast<size_t>(experts), 0);
        for (int32_t& id : ids) {
          id = static_cast<int32_t>(rng() % static_cast<uint64_t>(experts));
          if (drops && rng() % 5 == 0) id = rng() % 2 == 0 ? -1 : experts + 3;
          if (id >= 0 && id < experts) ++counts[static_cast<size_t>(id)];
        }
        std::vector<int32_t> order;
        for (size_t s = 0; s < ids.size(); ++s) {
          if (ids[s] >= 0 && ids[s] < experts) order.push_back(static_cast<int32_t>(s));
        }
        std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return ids[static_cast<size_t>(a)] < ids[static_cast<size_t>(b)]; });
        for (auto& run : runners) {
          for (const int32_t* given : {static_cast<const int32_t*>(nullptr), static_cast<const int32_t*>(counts.data())}) {
            const Index x = index_of(*run, ids, top_k, experts, ranks, given);
            ASSERT_EQ(x.offsets.front(), 0);
            ASSERT_EQ(x.offsets.back(), static_cast<int32_t>(order.size()));
            for (size_t r = 0; r < order.size(); ++r) {
              const auto slot = static_cast<size_t>(order[r]);
              ASSERT_EQ(x.row_slot[r], order[r]);
              ASSERT_EQ(x.slot_row[slot], static_cast<int32_t>(r));
              const auto e = static_cast<size_t>(ids[slot]);
              ASSERT_TRUE(x.offsets[e] <= static_cast<int32_t>(r) && static_cast<int32_t>(r) < x.offsets[e + 1]);
            }
            for (size_t s = 0; s < ids.size(); ++s) {
              if (ids[s] < 0 || ids[s] >= experts) {
                ASSERT_EQ(x.slot_row[s], -1);
              }
            }
            for (size_t r = order.size(); r < ids.size(); ++r) ASSERT_EQ(x.row_slot[r], -7) << "past the last row";
            for (int32_t r = 0; r <= ranks; ++r) ASSERT_EQ(x.rank_offsets[static_cast<size_t>(r)], x.offsets[static_cast<size_t>(r * (experts / ranks))]);
          }
        }
      }
    }
  }
}

template <class T>
class PermuteOf : public ::testing::Test {};
using Types = ::testing::Types<float, bf16, f16>;
TYPED_TEST_SUITE(PermuteOf, Types);

TYPED_TEST(PermuteOf, CopiesEveryRowToItsSlotsAndNothingElse) {
  auto one = make_runners(1), three = make_runners(3);
  std::mt19937_64 rng(2);
  // The last is written past the caches (1 MiB and more), with rows that are and are not aligned.
  for (const auto& [tokens, hidden, top_k, gap] : {std::tuple{1, 1, 1, 0}, {5, 33, 2, 3}, {20, 64, 8, 0}, {7, 100, 16, 1}, {300, 1024, 2, 0}, {300, 1000, 2, 5}}) {
    TestMatrix<TypeParam> x(tokens, hidden, 1, 2);
    x.fill(rng);
    std::vector<int32_t> ids(static_cast<size_t>(tokens * top_k));
    for (int32_t& id : ids) id = static_cast<int32_t>(rng() % 17);  // 16 is dropped
    const Index index = index_of(*one[0], ids, top_k, 16, 1);
    for (size_t i = 0; i < one.size(); ++i) {
      for (testing::OpRunner* run : {one[i].get(), three[i].get()}) {
        TestMatrix<TypeParam> out(tokens * top_k, hidden, gap == 0 ? 0 : 1, gap);
        ASSERT_TRUE(ops::permute(run->context, {.x = x.tensor(), .slot_row = index.slot_row.data(), .top_k = top_k, .out = out.tensor()}).ok());
        ASSERT_TRUE(out.untouched_outside());
        for (int64_t r = 0; r < tokens * top_k; ++r) {
          const bool used = r < index.offsets.back();
          for (int64_t c = 0; c < hidden; ++c) {
            if (used) {
              ASSERT_TRUE(std::memcmp(&out.at(r, c), &x.at(index.row_slot[static_cast<size_t>(r)] / top_k, c), sizeof(TypeParam)) == 0);
            }
            else ASSERT_TRUE(std::isnan(out.value(r, c)));
          }
        }
      }
    }
  }
}

// Permuted, and combined by way of the same index: the bits of combining unpermuted slots, dropped ones left out.
TEST(Permute, CombineUndoesIt) {
  auto one = make_runners(1), three = make_runners(3);
  std::mt19937_64 rng(3);
  for (const auto& [tokens, hidden, top_k] : {std::tuple{3, 17, 2}, {40, 96, 8}, {300, 1024, 2}}) {
    for (const bool narrow : {false, true}) {
      TestMatrix<float> wide(tokens * top_k, hidden), weights(tokens, top_k), start(tokens, hidden, 2, 1);
      TestMatrix<bf16> half(tokens * top_k, hidden, 1, 1);
      wide.fill(rng), weights.fill(rng), start.fill(rng), half.fill(rng);
      std::vector<int32_t> ids(static_cast<size_t>(tokens * top_k));
      for (int32_t& id : ids) id = static_cast<int32_t>(rng() % 9);  // 8 is dropped
      for (int k = 0; k < top_k; ++k) ids[static_cast<size_t>(k)] = 8;  // all of the first token's
      const Index index = index_of(*one[0], ids, top_k, 8, 1);
      for (const bool accumulate : {true, false}) {
        for (size_t i = 0; i < one.size(); ++i) {
          for (testing::OpRunner* run : {one[i].get(), three[i].get()}) {
            TestMatrix<float> out = start;
            ASSERT_TRUE(ops::combine(run->context, {.slots = narrow ? half.tensor() : wide.tensor(), .weights = &weights.at(0, 0), .slot_row = index.slot_row.data(),
                                                    .top_k = top_k, .accumulate = accumulate, .out = out.tensor()}).ok());
            ASSERT_TRUE(out.untouched_outside());
            for (int64_t t = 0; t < tokens; ++t) {
              for (int64_t h = 0; h < hidden; ++h) {
                float sum = 0;
                for (int64_t k = 0; k < top_k; ++k) {
                  const int32_t row = index.slot_row[static_cast<size_t>(t * top_k + k)];
                  if (row < 0) continue;
                  sum = std::fma(weights.at(t, k), narrow ? to_float(half.at(row, h)) : wide.at(row, h), sum);
                }
                const float expected = accumulate ? start.at(t, h) + sum : sum;
                ASSERT_TRUE(testing::same(out.at(t, h), expected)) << kernel_tables()[i].name << " token " << t << " column " << h;
              }
            }
          }
        }
      }
    }
  }
}

TEST(Permute, RefusesWhatDoesNotFit) {
  testing::OpRunner run(kernel_tables()[0].table);
  TestMatrix<float> x(2, 8), out(4, 8), narrow(4, 7);
  TestMatrix<bf16> other(4, 8);
  std::vector<int32_t> rows(4, 0), ids(4, 0), offsets(10);
  const auto code = [&](ops::PermuteArgs a) { return ops::permute(run.context, a).code(); };
  EXPECT_EQ(code({.x = x.tensor(), .slot_row = rows.data(), .top_k = 2, .out = narrow.tensor()}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.x = x.tensor(), .slot_row = rows.data(), .top_k = 2, .out = other.tensor()}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.x = x.tensor(), .slot_row = rows.data(), .top_k = 0, .out = out.tensor()}), StatusCode::kInvalidArgument);
  const auto index = [&](int64_t tokens, int32_t top_k, int32_t experts, int32_t ranks) {
    return ops::permute_index(run.context, {.ids = ids.data(), .tokens = tokens, .top_k = top_k, .num_experts = experts, .ranks = ranks, .offsets = offsets.data(),
                                            .slot_row = rows.data()}).code();
  };
  EXPECT_EQ(index(2, 2, 8, 2), StatusCode::kOk);
  EXPECT_EQ(index(2, 2, 8, 3), StatusCode::kInvalidArgument);
  EXPECT_EQ(index(2, 0, 8, 1), StatusCode::kInvalidArgument);
  EXPECT_EQ(index(-1, 2, 8, 1), StatusCode::kInvalidArgument);
  EXPECT_EQ(index(int64_t{1} << 31, 2, 8, 1), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace pointsman
