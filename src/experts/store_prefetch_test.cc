// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <random>
#include <thread>

#include "base/log.h"
#include "experts/store.h"
#include "support/expert_fixture.h"

namespace pointsman {
namespace {

using testing::ExpertFixture;
using testing::ReadCall;

struct StorePrefetchTest : ::testing::Test {
  std::unique_ptr<ExpertStore> make(const ExpertFixture& f, int64_t slots, int readers = 1) {
    auto store = ExpertStore::make(*device, budget, *f.checkpoint, f.catalogue, {.num_slots = slots, .num_readers = readers, .policy = "lru"});
    EXPECT_TRUE(store.ok()) << store.status().to_string();
    return store.ok() ? std::move(store).value() : nullptr;
  }
  // Runs a batch and checks every byte.
  static Status run(const ExpertFixture& f, ExpertStore& store, int layer, const std::vector<int32_t>& ids) {
    PM_RETURN_IF_ERROR(store.begin(layer, ids));
    size_t n = 0;
    for (;; ++n) {
      auto handle = store.next();
      if (!handle.ok()) {
        store.end();
        return handle.status();
      }
      if (!*handle) break;
      for (const ExpertPart p : {ExpertPart::kGate, ExpertPart::kUp, ExpertPart::kDown}) {
        const auto expected = f.expected(layer, handle->expert_id(), p);
        EXPECT_EQ(std::memcmp(handle->part(p).data, expected.data(), expected.size()), 0);
      }
    }
    EXPECT_EQ(n, ids.size());
    store.end();
    return ok_status();
  }
  // Until reads ahead have ended, by what they read.
  static void wait_for_bytes(const ExpertFixture& f, const ExpertStore& store, int layer, uint64_t experts) {
    wait_until([&] { return counter(store.stats()[static_cast<size_t>(layer)].prefetch_bytes) >= experts * f.record_payload_bytes(); });
  }
  // A statistic that readers change meanwhile, under the store's lock: statistics are exact between batches only. Here it must only be seen to
  // move, which is no business of the thread sanitizer.
  [[gnu::no_sanitize_thread]] static uint64_t counter(const uint64_t& value) { return *const_cast<const volatile uint64_t*>(&value); }
  template <class Pred>
  static void wait_until(Pred pred) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!pred() && std::chrono::steady_clock::now() < until) std::this_thread::yield();
    EXPECT_TRUE(pred());
  }

  std::unique_ptr<Device> device = make_cpu_device();
  MemoryBudget budget{uint64_t{1} << 30};
};

TEST_F(StorePrefetchTest, WhatWasReadAheadIsNotReadAgain) {
  ExpertFixture f;
  auto store = make(f, 12);
  const std::vector<int32_t> ids = {5, 2, 5, 7};
  ASSERT_TRUE(store->prefetch(1, ids).ok());
  ASSERT_TRUE(run(f, *store, 1, {2, 5, 7, 0}).ok());
  const ExpertLayerStats& s = store->stats()[1];
  EXPECT_EQ(s.prefetched, 3u);
  EXPECT_EQ(s.prefetch_hits, 3u);
  EXPECT_EQ(s.hits, 3u);
  EXPECT_EQ(s.misses, 1u);
  EXPECT_EQ(s.bytes_read, 4 * f.record_payload_bytes());
  // A second use is an ordinary hit.
  ASSERT_TRUE(run(f, *store, 1, {2, 5, 7, 0}).ok());
  EXPECT_EQ(s.prefetch_hits, 3u);
  EXPECT_EQ(s.hits, 7u);
  EXPECT_EQ(s.bytes_read, 4 * f.record_payload_bytes());
}

TEST_F(StorePrefetchTest, ABatchJoinsAReadThatIsUnderWay) {
  ExpertFixture f;
  std::atomic<bool> reading{false}, go_on{false};
  f.fs.set_hook([&](const ReadCall&) -> std::optional<Result<size_t>> {
    reading = true;
    while (!go_on) std::this_thread::yield();
    return std::nullopt;
  });
  auto store = make(f, 12);
  const std::vector<int32_t> ids = {1, 2, 3};
  ASSERT_TRUE(store->prefetch(0, ids).ok());
  while (!reading) std::this_thread::yield();
  // 1 is being read, 2 and 3 wait in the queue; 3 becomes the batch's own.
  ASSERT_TRUE(store->begin(0, std::vector<int32_t>{1, 3}).ok());
  go_on = true;
  std::vector<int> order;
  for (;;) {
    auto handle = store->next();
    ASSERT_TRUE(handle.ok()) << handle.status().to_string();
    if (!*handle) break;
    order.push_back(handle->expert_id());
  }
  store->end();
  EXPECT_EQ(order, (std::vector<int>{1, 3}));
  const ExpertLayerStats& s = store->stats()[0];
  EXPECT_EQ(s.hits, 2u);
  EXPECT_EQ(s.misses, 0u);
  EXPECT_EQ(s.prefetch_hits, 2u);
}

TEST_F(StorePrefetchTest, AFailedReadAheadIsMetAgainByItsBatch) {
  ExpertFixture f;
  std::byte& byte = f.byte_on_disk(2, 4, ExpertPart::kUp, 3);
  byte ^= std::byte{1};
  auto store = make(f, 12);
  const std::vector<int32_t> ids = {4};
  ASSERT_TRUE(store->prefetch(2, ids).ok());
  wait_for_bytes(f, *store, 2, 1);
  const Status status = run(f, *store, 2, {4, 6});
  EXPECT_EQ(status.code(), StatusCode::kCorrupt) << status.to_string();
  EXPECT_NE(status.message().find("expert 4"), std::string::npos) << status.message();
  EXPECT_EQ(store->stats()[2].prefetch_failed, 1u);
  byte ^= std::byte{1};
  EXPECT_TRUE(run(f, *store, 2, {4, 6}).ok());
}

TEST_F(StorePrefetchTest, NeverTakesTheSlotsOfABatch) {
  ExpertFixture f;
  const std::vector<int32_t> all = {0, 1, 2, 3, 4, 5, 6, 7};
  for (const int64_t slots : {2, 3, 4, 5, 8}) {
    auto store = make(f, slots);
    for (int step = 0; step < 30; ++step) {
      ASSERT_TRUE(store->prefetch((step + 1) % 3, all).ok());
      ASSERT_TRUE(run(f, *store, step % 3, {static_cast<int32_t>(step % 8), static_cast<int32_t>((step + 3) % 8), static_cast<int32_t>((step + 5) % 8)}).ok());
    }
    uint64_t prefetched = 0;
    for (const ExpertLayerStats& s : store->stats()) prefetched += s.prefetched;
    EXPECT_EQ(prefetched > 0, slots >= 4) << slots << " slots";
  }
}

TEST_F(StorePrefetchTest, WhatIsHereIsNotEvictedForItsNeighbours) {
  ExpertFixture f;
  auto store = make(f, 6);
  ASSERT_TRUE(run(f, *store, 0, {1, 2}).ok());   // the oldest
  ASSERT_TRUE(run(f, *store, 1, {0, 1, 2, 3}).ok());
  store->reset_stats();
  const std::vector<int32_t> ids = {1, 2, 3, 4};
  ASSERT_TRUE(store->prefetch(0, ids).ok());
  ASSERT_TRUE(run(f, *store, 0, {1, 2, 3, 4}).ok());
  EXPECT_EQ(store->stats()[0].evicted, 0u);
  EXPECT_EQ(store->stats()[0].hits, 4u);
}

TEST_F(StorePrefetchTest, RefusesWhatDoesNotExist) {
  ExpertFixture f;
  auto store = make(f, 6);
  const std::vector<int32_t> none = {8};
  EXPECT_EQ(store->prefetch(0, none).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(store->prefetch(3, {}).code(), StatusCode::kInvalidArgument);
}

TEST_F(StorePrefetchTest, APredictionThatWasRightIsCountedApart) {
  ExpertFixture f;
  auto store = make(f, 12);
  ASSERT_TRUE(store->prefetch(1, std::vector<int32_t>{5, 2}, ReadAhead::kPredicted).ok());
  wait_until([&] { return counter(store->stats()[1].predicted_bytes) == 2 * f.record_payload_bytes(); });
  ASSERT_TRUE(run(f, *store, 1, {5, 7}).ok());
  const ExpertLayerStats& s = store->stats()[1];
  EXPECT_EQ(s.predicted_reads, 2u);
  EXPECT_EQ(s.predicted_used, 1u);
  EXPECT_EQ(s.predicted_dropped, 0u);
  EXPECT_EQ(s.predicted_wasted_bytes, f.record_payload_bytes());
  EXPECT_EQ(s.hits, 1u);
  EXPECT_EQ(s.misses, 1u);
  EXPECT_EQ(s.prefetched + s.prefetch_hits + s.prefetch_bytes, 0u);
  // The wrong one stays, and a later use of it is an ordinary hit.
  ASSERT_TRUE(run(f, *store, 1, {2}).ok());
  EXPECT_EQ(s.hits, 2u);
  EXPECT_EQ(s.predicted_used, 1u);
  EXPECT_EQ(s.bytes_read, 3 * f.record_payload_bytes());
}

TEST_F(StorePrefetchTest, GuessesNotBegunAreDroppedWhenTheRoutesAreKnown) {
  ExpertFixture f;
  std::atomic<bool> reading{false}, go_on{false};
  f.fs.set_hook([&](const ReadCall&) -> std::optional<Result<size_t>> {
    reading = true;
    while (!go_on) std::this_thread::yield();
    return std::nullopt;
  });
  auto store = make(f, 12);
  // The only reader is busy with 1; 3 and 4 wait.
  ASSERT_TRUE(store->prefetch(0, std::vector<int32_t>{1, 3, 4}, ReadAhead::kPredicted).ok());
  wait_until([&] { return reading.load(); });
  ASSERT_TRUE(store->begin(0, std::vector<int32_t>{3, 6}).ok());
  go_on = true;
  std::vector<int> order;
  for (;;) {
    auto handle = store->next();
    ASSERT_TRUE(handle.ok()) << handle.status().to_string();
    if (!*handle) break;
    order.push_back(handle->expert_id());
  }
  store->end();
  EXPECT_EQ(order, (std::vector<int>{3, 6}));
  const ExpertLayerStats& s = store->stats()[0];
  EXPECT_EQ(s.predicted_dropped, 2u) << "3 came too late to help, 4 was wrong";
  EXPECT_EQ(s.predicted_used, 0u);
  EXPECT_EQ(s.misses, 2u);
  EXPECT_EQ(s.hits, 0u);
  EXPECT_EQ(s.predicted_wasted_bytes, f.record_payload_bytes()) << "of 1";
  EXPECT_EQ(s.bytes_read, 3 * f.record_payload_bytes()) << "4 was never read";
}

TEST_F(StorePrefetchTest, NobodyLeavesForAGuessThatIsNeverRead) {
  ExpertFixture f;
  auto store = make(f, 8);
  ASSERT_TRUE(run(f, *store, 0, {0, 1, 2, 3, 4, 5, 6, 7}).ok());  // every slot is taken
  std::atomic<bool> reading{false}, go_on{false};
  f.fs.set_hook([&](const ReadCall&) -> std::optional<Result<size_t>> {
    reading = true;
    while (!go_on) std::this_thread::yield();
    return std::nullopt;
  });
  ASSERT_TRUE(store->prefetch(1, std::vector<int32_t>{1, 3, 4}, ReadAhead::kPredicted).ok());
  wait_until([&] { return reading.load(); });
  ASSERT_TRUE(store->begin(1, {}).ok());
  EXPECT_EQ(store->stats()[0].evicted, 1u) << "for the one that is being read";
  EXPECT_EQ(store->stats()[1].predicted_dropped, 2u);
  go_on = true;
  store->end();
}

TEST_F(StorePrefetchTest, GuessesWaitForEveryReadOfABatch) {
  ExpertFixture f;
  std::atomic<int> calls{0};
  std::atomic<bool> go_on{false};
  f.fs.set_hook([&](const ReadCall&) -> std::optional<Result<size_t>> {
    ++calls;
    while (!go_on) std::this_thread::yield();
    return std::nullopt;
  });
  auto store = make(f, 12, 3);
  ASSERT_TRUE(store->begin(0, std::vector<int32_t>{3}).ok());
  wait_until([&] { return calls == 1; });
  ASSERT_TRUE(store->prefetch(1, std::vector<int32_t>{0, 1}, ReadAhead::kPredicted).ok());
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  EXPECT_EQ(calls, 1) << "two readers are free, and the batch's read is not over";
  // What is known starts at once.
  ASSERT_TRUE(store->prefetch(2, std::vector<int32_t>{0}).ok());
  wait_until([&] { return calls == 2; });
  go_on = true;
  ASSERT_TRUE(store->next().ok());
  wait_until([&] { return counter(store->stats()[1].predicted_bytes) == 2 * f.record_payload_bytes(); });
  store->end();
  EXPECT_EQ(store->stats()[1].predicted_reads, 2u);
}

// Batches, reads ahead, failures and evictions at random, with several readers: right bytes, no pin left behind.
TEST_F(StorePrefetchTest, RandomTrafficKeepsTheBytesRight) {
  ExpertFixture f;
  std::mt19937 random(9);
  std::atomic<bool> fail{false};
  f.fs.set_hook([&](const ReadCall& call) -> std::optional<Result<size_t>> {
    if (fail && call.call % 5 == 0) return error(StatusCode::kIo, "no disk today");
    return std::nullopt;
  });
  auto store = make(f, 9, 3);
  const auto some = [&](size_t n) {
    std::vector<int32_t> all = {0, 1, 2, 3, 4, 5, 6, 7};
    std::shuffle(all.begin(), all.end(), random);
    all.resize(n);
    return all;
  };
  for (int step = 0; step < 600; ++step) {
    fail = step % 7 == 0;
    const ReadAhead why = random() % 2 == 0 ? ReadAhead::kPredicted : ReadAhead::kKnown;
    ASSERT_TRUE(store->prefetch(static_cast<int>(random() % 3), some(1 + random() % 8), why).ok());
    const Status status = run(f, *store, static_cast<int>(random() % 3), some(1 + random() % 8));
    if (!fail && !status.ok()) {
      // A read ahead of the step before may have failed; the next try is clean.
      EXPECT_EQ(status.code(), StatusCode::kIo) << status.to_string();
    }
    if (step % 50 == 0) store->evict_all();
  }
  fail = false;
  store->evict_all();
  EXPECT_TRUE(run(f, *store, 0, some(8)).ok());
}

}  // namespace
}  // namespace pointsman
