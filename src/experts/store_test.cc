// SPDX-License-Identifier: Apache-2.0
#include "experts/store.h"

#include <gtest/gtest.h>

#include <cstring>
#include <future>
#include <optional>
#include <set>
#include <thread>

#include "support/expert_fixture.h"

namespace pointsman {
namespace {

using testing::ExpertFixture;
using testing::ExpertFixtureShape;

struct StoreTest : ::testing::Test {
  std::unique_ptr<ExpertStore> make(const ExpertFixture& f, ExpertStoreOptions options) {
    auto store = ExpertStore::make(*device, budget, *f.checkpoint, f.catalogue, std::move(options));
    EXPECT_TRUE(store.ok()) << store.status().to_string();
    return store.ok() ? std::move(store).value() : nullptr;
  }
  // Runs a batch, checks every byte, and returns expert ids in the order in which they came.
  static std::vector<int> run(const ExpertFixture& f, ExpertStore& store, int layer, std::vector<int32_t> ids) {
    std::vector<int> order;
    const Status begun = store.begin(layer, ids);
    EXPECT_TRUE(begun.ok()) << begun.to_string();
    for (;;) {
      auto handle = store.next();
      EXPECT_TRUE(handle.ok()) << handle.status().to_string();
      if (!handle.ok() || !*handle) break;
      EXPECT_EQ(ids[static_cast<size_t>(handle->batch_idx())], handle->expert_id());
      order.push_back(handle->expert_id());
      check_bytes(f, *handle, layer);
    }
    store.end();
    return order;
  }
  static void check_bytes(const ExpertFixture& f, const ExpertHandle& handle, int layer) {
    for (const ExpertPart p : {ExpertPart::kGate, ExpertPart::kUp, ExpertPart::kDown}) {
      const Tensor t = handle.part(p);
      const auto expected = f.expected(layer, handle.expert_id(), p);
      ASSERT_EQ(static_cast<size_t>(t.size_bytes()), expected.size());
      EXPECT_EQ(t.rows, p == ExpertPart::kDown ? f.shape.hidden : f.shape.intermediate);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(t.data) % 64, 0u);
      EXPECT_EQ(std::memcmp(t.data, expected.data(), expected.size()), 0)
          << "layer " << layer << " expert " << handle.expert_id();
    }
  }

  std::unique_ptr<Device> device = make_cpu_device();
  MemoryBudget budget{uint64_t{1} << 30};
};

TEST_F(StoreTest, HitsMissesAndEvictionsAreCountedExactly) {
  const ExpertFixture f;
  auto store = make(f, {.num_slots = 6});  // quota 2
  EXPECT_EQ(run(f, *store, 0, {3, 1}).size(), 2u);
  EXPECT_EQ(run(f, *store, 0, {1, 3}).size(), 2u);
  for (const int layer : {1, 2}) run(f, *store, layer, {0, 1});
  run(f, *store, 0, {1, 5});  // 3 is older than 1, which was pinned first anyway

  const ExpertLayerStats& s = store->stats()[0];
  EXPECT_EQ(s.hits, 3u);
  EXPECT_EQ(s.misses, 3u);
  EXPECT_EQ(s.evicted, 1u);
  EXPECT_EQ(s.verified_sha256, 3u);
  EXPECT_EQ(s.verified_xxh3, 0u);
  EXPECT_EQ(s.bytes_read, 3 * f.record_payload_bytes());
  EXPECT_EQ(store->stats()[1].evicted, 0u);

  run(f, *store, 0, {3});  // a re-read: XXH3 is enough
  EXPECT_EQ(s.verified_sha256, 3u);
  EXPECT_EQ(s.verified_xxh3, 1u);
  store->reset_stats();
  EXPECT_EQ(store->stats()[0].misses, 0u);
}

TEST_F(StoreTest, HitsComeFirst) {
  const ExpertFixture f;
  auto store = make(f, {.num_slots = 8});
  run(f, *store, 1, {4, 6});
  const auto order = run(f, *store, 1, {0, 4, 1, 6});
  ASSERT_EQ(order.size(), 4u);
  EXPECT_EQ(order[0], 4);
  EXPECT_EQ(order[1], 6);
}

TEST_F(StoreTest, TryNextGivesWhatIsReadyAndDoesNotWait) {
  ExpertFixture f;
  auto store = make(f, {.num_slots = 8});
  run(f, *store, 1, {4, 6});
  std::promise<void> gate;
  const std::shared_future<void> opened = gate.get_future().share();
  f.fs.set_hook([opened](const testing::ReadCall&) -> std::optional<Result<size_t>> {
    opened.wait();
    return std::nullopt;
  });
  ASSERT_TRUE(store->begin(1, std::vector<int32_t>{0, 4, 6}).ok());
  std::vector<ExpertHandle> held;
  for (const int expected : {4, 6}) {
    auto handle = store->try_next();
    ASSERT_TRUE(handle.ok() && *handle);
    EXPECT_EQ(handle->expert_id(), expected);
    held.push_back(std::move(handle).value());
  }
  // The read of expert 0 stands still.
  auto none = store->try_next();
  ASSERT_TRUE(none.ok());
  EXPECT_FALSE(*none);
  gate.set_value();
  auto last = store->next();
  ASSERT_TRUE(last.ok() && *last);
  EXPECT_EQ(last->expert_id(), 0);
  none = store->try_next();
  ASSERT_TRUE(none.ok());
  EXPECT_FALSE(*none);
  EXPECT_FALSE(*store->next());
}

TEST_F(StoreTest, HitsOfABatchAreNotEvictedForItsMisses) {
  const ExpertFixture f;
  auto store = make(f, {.num_slots = 3, .policy = "lru"});
  run(f, *store, 0, {0, 1, 2});
  run(f, *store, 0, {7, 0});  // 0 is the oldest, but named
  EXPECT_EQ(store->stats()[0].hits, 1u);
  store->reset_stats();
  run(f, *store, 0, {0});
  EXPECT_EQ(store->stats()[0].hits, 1u);
}

TEST_F(StoreTest, TwoSlotsRunSixteenExperts) {
  for (const bool record_order : {true, false}) {
    const ExpertFixture f({.num_layers = 2, .num_experts = 16, .hidden = 20, .intermediate = 41, .record_order = record_order});
    auto store = make(f, {.num_slots = 2, .num_readers = 3});
    std::vector<int32_t> ids(16);
    for (int i = 0; i < 16; ++i) ids[static_cast<size_t>(i)] = 15 - i;
    for (int repeat = 0; repeat < 3; ++repeat) {
      for (const int layer : {0, 1}) {
        const auto order = run(f, *store, layer, ids);
        EXPECT_EQ(std::set<int>(order.begin(), order.end()).size(), 16u);
      }
    }
    EXPECT_EQ(store->stats()[0].verified_sha256, 16u);
  }
}

TEST_F(StoreTest, ExpertsOfSeveralChunksArrive) {
  const ExpertFixture f({.num_layers = 1, .num_experts = 3, .hidden = 1024, .intermediate = 530});
  ASSERT_GT(f.catalogue.at(0, 0).parts[0].size_bytes, uint64_t{1} << 20);
  auto store = make(f, {.num_slots = 2});
  EXPECT_EQ(run(f, *store, 0, {0, 1, 2}).size(), 3u);
}

TEST_F(StoreTest, AnExpertThatNobodyNamesIsNeverRead) {
  ExpertFixture f;
  auto store = make(f, {.num_slots = 8});
  EXPECT_EQ(f.fs.num_reads(), 0u) << "make() reads no weight";
  run(f, *store, 0, {2, 5});
  EXPECT_EQ(f.fs.num_reads(), 2u) << "adjoining parts are one read";
  run(f, *store, 0, {});
  run(f, *store, 0, {5, 2});
  EXPECT_EQ(f.fs.num_reads(), 2u);
}

TEST_F(StoreTest, PartsThatDoNotAdjoinAreReadOneByOne) {
  ExpertFixture f({.record_order = false});
  auto store = make(f, {.num_slots = 8});
  run(f, *store, 0, {2});
  EXPECT_EQ(f.fs.num_reads(), 2u) << "gate and up in one, down";
}

TEST_F(StoreTest, APinnedExpertDoesNotMove) {
  const ExpertFixture f;
  auto store = make(f, {.num_slots = 3});
  ASSERT_TRUE(store->begin(0, std::vector<int32_t>{4}).ok());
  ExpertHandle held = std::move(store->next().value());
  const void* const address = held.part(ExpertPart::kGate).data;
  for (int i = 0; i < 10; ++i) {
    run(f, *store, i % 3, {0, 1, 2, 3});
    EXPECT_EQ(held.part(ExpertPart::kGate).data, address);
    check_bytes(f, held, 0);
  }
  // Named again while it is held: a second pin of the same slot.
  run(f, *store, 0, {4});
  check_bytes(f, held, 0);
  store->evict_all();
  check_bytes(f, held, 0);
  ExpertHandle moved = std::move(held);
  EXPECT_FALSE(held);  // NOLINT: what a moved-from handle is
  check_bytes(f, moved, 0);
}

TEST_F(StoreTest, AskingForMoreThanTheSlotsHoldIsAnErrorNotAHang) {
  const ExpertFixture f;
  auto store = make(f, {.num_slots = 2});
  ASSERT_TRUE(store->begin(0, std::vector<int32_t>{0, 1, 2}).ok());
  {
    std::vector<ExpertHandle> held;
    for (int i = 0; i < 2; ++i) held.push_back(std::move(store->next().value()));
    const auto third = store->next();
    ASSERT_FALSE(third.ok());
    EXPECT_EQ(third.status().code(), StatusCode::kInternal);
    held.pop_back();
    const auto again = store->next();
    EXPECT_TRUE(again.ok()) << again.status().to_string();
  }
  store->end();
  EXPECT_EQ(run(f, *store, 0, {0, 1, 2}).size(), 3u);
}

TEST_F(StoreTest, ABatchMayEndEarly) {
  const ExpertFixture f;
  auto store = make(f, {.num_slots = 4});
  for (int i = 0; i < 50; ++i) {
    ASSERT_TRUE(store->begin(i % 3, std::vector<int32_t>{0, 1, 2, 3, 4, 5, 6, 7}).ok());
    for (int n = 0; n < i % 4; ++n) EXPECT_TRUE(store->next().ok());
    if (i % 2 == 0) store->end();
  }
  EXPECT_EQ(run(f, *store, 0, {0, 1, 2, 3, 4, 5, 6, 7}).size(), 8u);
  EXPECT_FALSE(store->next().value()) << "no batch, no handle";
}

TEST_F(StoreTest, BadBatchesAreRefused) {
  const ExpertFixture f;
  auto store = make(f, {.num_slots = 4});
  EXPECT_EQ(store->begin(3, {}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(store->begin(-1, {}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(store->begin(0, std::vector<int32_t>{8}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(store->begin(0, std::vector<int32_t>{-1}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(store->begin(0, std::vector<int32_t>{1, 2, 1}).code(), StatusCode::kInvalidArgument);
  EXPECT_FALSE(store->next().value());
  EXPECT_EQ(run(f, *store, 0, {1, 2}).size(), 2u);
}

TEST_F(StoreTest, CostIsWhatIsCharged) {
  const ExpertFixture f;
  for (const int64_t slots : {2, 5, 24}) {
    for (const int readers : {1, 4}) {
      const ExpertStoreOptions options{.num_slots = slots, .num_readers = readers};
      const ExpertStore::Cost cost = ExpertStore::cost(f.catalogue, options, device->host_visible());
      auto store = make(f, options);
      EXPECT_EQ(budget.used_bytes(MemoryClass::kExpertSlots), cost.slots_bytes);
      EXPECT_EQ(budget.used_bytes(MemoryClass::kReadBuffers), cost.read_buffer_bytes);
      EXPECT_EQ(budget.used_bytes(MemoryClass::kCatalogue), cost.table_bytes);
      EXPECT_EQ(budget.used_bytes(MemoryClass::kThreadStacks), cost.stack_bytes);
      EXPECT_EQ(budget.used_bytes(), cost.slots_bytes + cost.read_buffer_bytes + cost.table_bytes + cost.stack_bytes);
      store.reset();
      EXPECT_EQ(budget.used_bytes(), 0u);
    }
  }
}

TEST_F(StoreTest, DoesNotFitIsABudgetError) {
  const ExpertFixture f;
  MemoryBudget small(100'000);
  const auto store = ExpertStore::make(*device, small, *f.checkpoint, f.catalogue, {.num_slots = 24});
  ASSERT_FALSE(store.ok());
  EXPECT_EQ(store.status().code(), StatusCode::kBudgetExceeded);
  EXPECT_EQ(small.used_bytes(), 0u);
}

TEST_F(StoreTest, KeptLayersAreReadOnce) {
  const ExpertFixture f;
  auto store = make(f, {.num_slots = 8 + 2, .keep_layer = {false, true, false}});
  run(f, *store, 1, {0, 1, 2, 3, 4, 5, 6, 7});
  for (int i = 0; i < 5; ++i) {
    run(f, *store, 0, {0, 1, 2, 3});
    run(f, *store, 2, {4, 5, 6, 7});
    run(f, *store, 1, {7, 6, 5});
  }
  EXPECT_EQ(store->stats()[1].misses, 8u);
  EXPECT_EQ(store->stats()[1].hits, 15u);
  EXPECT_EQ(store->stats()[1].evicted, 0u);
}

TEST_F(StoreTest, OptionsAreChecked) {
  const ExpertFixture f;
  const auto code = [&](ExpertStoreOptions o) {
    return ExpertStore::make(*device, budget, *f.checkpoint, f.catalogue, std::move(o)).status().code();
  };
  EXPECT_EQ(code({.num_slots = 1}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.num_slots = -5}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.num_slots = 4, .num_readers = 0}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.num_slots = 4, .policy = "fifo"}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.num_slots = 4, .keep_layer = {true}}), StatusCode::kInvalidArgument);
  EXPECT_EQ(budget.used_bytes(), 0u);
}

TEST_F(StoreTest, WaitingForAReadIsCounted) {
  ExpertFixture f;
  f.fs.set_hook([](const testing::ReadCall&) -> std::optional<Result<size_t>> {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return std::nullopt;
  });
  auto store = make(f, {.num_slots = 4});
  run(f, *store, 0, {0});
  EXPECT_GE(store->stats()[0].wait_ns, 4'000'000u);
  EXPECT_GE(store->stats()[0].read_ns, 5'000'000u);
}

TEST(Catalogue, SizesAndNames) {
  const ExpertFixture f({.hidden = 20, .intermediate = 41});
  const ExpertInfo& e = f.catalogue.at(0, 0);
  EXPECT_EQ(e.size_bytes(), 3u * 1640);
  EXPECT_EQ(e.parts[1].slot_offset, 1664u);
  EXPECT_EQ(e.parts[2].slot_offset, 3328u);
  EXPECT_EQ(e.record_bytes(), 3328u + 1640);
  EXPECT_EQ(f.catalogue.slot_bytes(), 8192u);
  EXPECT_EQ(f.catalogue.total_bytes(), 24u * 3 * 1640);
  EXPECT_GE(f.catalogue.table_bytes(), 24 * sizeof(ExpertInfo));
  EXPECT_EQ(f.catalogue.lock_key(2, 5), "layers.3.experts.5");
  const std::string text = f.catalogue.describe(2, 5, *f.checkpoint);
  EXPECT_TRUE(text.starts_with("layer 3 expert 5 (model-0000")) << text;
  EXPECT_NE(text.find(".safetensors @ 0x"), std::string::npos) << text;
}

TEST(Catalogue, PartsInSeveralFilesAreAllNamed) {
  ExpertFixture f;
  f.catalogue.at(0, 0).parts[2].file_idx = 1 - f.catalogue.at(0, 0).parts[0].file_idx;
  const std::string text = f.catalogue.describe(0, 0, *f.checkpoint);
  EXPECT_NE(text.find("gate model-"), std::string::npos) << text;
  EXPECT_NE(text.find("down model-"), std::string::npos) << text;
}

}  // namespace
}  // namespace pointsman
