// SPDX-License-Identifier: Apache-2.0
#include "ops/moe/combine.h"

#include "support/ops_fixture.h"

namespace pointsman {
namespace {

using testing::all_same;
using testing::kernel_tables;
using testing::make_runners;
using testing::TestMatrix;

TEST(SortSlots, GroupsSlotsByExpertInTokenOrder) {
  std::mt19937_64 rng(1);
  for (const int32_t experts : {1, 2, 6, 64, 1000}) {
    for (const size_t slots : {size_t{0}, size_t{1}, size_t{16}, size_t{333}}) {
      std::vector<int32_t> ids(slots), offsets(static_cast<size_t>(experts) + 1, -7), row_slot(slots, -7), active(static_cast<size_t>(experts), -7);
      for (int32_t& id : ids) id = static_cast<int32_t>(rng() % static_cast<uint64_t>(experts));
      const int32_t count = ops::sort_slots(ids, offsets, row_slot, active);
      ASSERT_EQ(offsets.front(), 0);
      ASSERT_EQ(offsets.back(), static_cast<int32_t>(slots));
      std::vector<int32_t> expected_active;
      for (int32_t e = 0; e < experts; ++e) {
        std::vector<int32_t> expected;
        for (size_t s = 0; s < slots; ++s) {
          if (ids[s] == e) expected.push_back(static_cast<int32_t>(s));
        }
        const std::vector<int32_t> found(row_slot.begin() + offsets[static_cast<size_t>(e)], row_slot.begin() + offsets[static_cast<size_t>(e) + 1]);
        ASSERT_EQ(found, expected) << "expert " << e;
        if (!expected.empty()) expected_active.push_back(e);
      }
      active.resize(static_cast<size_t>(count));
      ASSERT_EQ(active, expected_active);
    }
  }
}

TEST(Combine, AddsSlotsInOrderWithOneRoundingEach) {
  auto one = make_runners(1), three = make_runners(3);
  std::mt19937_64 rng(2);
  for (const auto& [tokens, hidden, top_k] : {std::tuple{1, 1, 1}, {1, 64, 8}, {3, 17, 2}, {9, 33, 6}, {70, 100, 4}}) {
    TestMatrix<float> slots(tokens * top_k, hidden, 1, 2), weights(tokens, top_k), start(tokens, hidden, 2, 1);
    slots.fill(rng), weights.fill(rng), start.fill(rng);
    for (size_t i = 0; i < one.size(); ++i) {
      TestMatrix<float> out = start, threaded = start;
      const ops::CombineArgs args{.slots = slots.tensor(), .weights = &weights.at(0, 0), .top_k = top_k, .out = out.tensor()};
      ASSERT_TRUE(ops::combine(one[i]->context, args).ok());
      ops::CombineArgs again = args;
      again.out = threaded.tensor();
      ASSERT_TRUE(ops::combine(three[i]->context, again).ok());
      ASSERT_TRUE(all_same(out.values(), threaded.values()));
      ASSERT_TRUE(out.untouched_outside());
      for (int64_t t = 0; t < tokens; ++t) {
        for (int64_t h = 0; h < hidden; ++h) {
          float sum = 0;
          for (int64_t k = 0; k < top_k; ++k) sum = std::fma(weights.at(t, k), slots.at(t * top_k + k, h), sum);
          ASSERT_TRUE(testing::same(out.at(t, h), start.at(t, h) + sum)) << kernel_tables()[i].name;
        }
      }
    }
  }
}

TEST(Combine, RefusesWhatDoesNotFit) {
  testing::OpRunner run(kernel_tables()[0].table);
  TestMatrix<float> slots(5, 8), out(2, 8), weights(2, 2);
  EXPECT_EQ(ops::combine(run.context, {.slots = slots.tensor(), .weights = &weights.at(0, 0), .top_k = 2, .out = out.tensor()}).code(),
            StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace pointsman
