// SPDX-License-Identifier: Apache-2.0
//
// The store with readers that come back in any order, on the CPU and on a device that computes later; and proof that it does
// not allocate while it runs. Meaningful under ThreadSanitizer.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <new>
#include <random>
#include <set>
#include <thread>

#include "base/philox.h"
#include "base/thread_pool.h"
#include "device/fake/fake_device.h"
#include "experts/policy.h"
#include "experts/store.h"
#include "support/counting_new.h"
#include "support/expert_fixture.h"

namespace pointsman {
namespace {

using testing::ExpertFixture;
using testing::ExpertFixtureShape;
using testing::ReadCall;

std::unique_ptr<ExpertStore> make_store(Device& device, MemoryBudget& budget, const ExpertFixture& f,
                                        ExpertStoreOptions options) {
  auto store = ExpertStore::make(device, budget, *f.checkpoint, f.catalogue, std::move(options));
  EXPECT_TRUE(store.ok()) << store.status().to_string();
  return store.ok() ? std::move(store).value() : nullptr;
}

std::vector<int32_t> random_ids(std::mt19937& rng, int num_experts) {
  std::vector<int32_t> ids;
  for (int e = 0; e < num_experts; ++e) {
    if (rng() % 3 == 0) ids.push_back(e);
  }
  std::shuffle(ids.begin(), ids.end(), rng);
  return ids;
}

// Reads pause for a time that depends on the offset alone.
void delay_reads(ExpertFixture& f, uint32_t max_us) {
  f.fs.set_hook([max_us](const ReadCall& c) -> std::optional<Result<size_t>> {
    std::this_thread::sleep_for(
        std::chrono::microseconds(philox4x32_10({static_cast<uint32_t>(c.offset), 0, 0, 0}, {0, 0})[0] % max_us));
    return std::nullopt;
  });
}

TEST(StoreConcurrency, RandomBatchesWithReadsFinishingInAnyOrder) {
  for (const std::string_view policy : policy_names()) {
    ExpertFixture f({.num_layers = 4, .num_experts = 12, .hidden = 20, .intermediate = 41});
    delay_reads(f, 300);
    auto device = make_cpu_device();
    MemoryBudget budget(uint64_t{1} << 30);
    auto store = make_store(*device, budget, f, {.num_slots = 7, .num_readers = 5, .policy = std::string(policy)});
    std::mt19937 rng(11);
    uint64_t asked = 0;
    std::vector<ExpertHandle> held;  // some live on over several batches
    for (int step = 0; step < 250; ++step) {
      const int layer = static_cast<int>(rng() % 4);
      const auto ids = random_ids(rng, 12);
      ASSERT_TRUE(store->begin(layer, ids).ok());
      asked += ids.size();
      std::set<int> came;
      const bool stop_early = rng() % 8 == 0;
      while (true) {
        auto handle = store->next();
        ASSERT_TRUE(handle.ok()) << handle.status().to_string();
        if (!*handle) break;
        EXPECT_TRUE(came.insert(handle->expert_id()).second) << "handed out twice";
        EXPECT_EQ(ids[static_cast<size_t>(handle->batch_idx())], handle->expert_id());
        const auto expected = f.expected(layer, handle->expert_id(), ExpertPart::kDown);
        EXPECT_EQ(std::memcmp(handle->part(ExpertPart::kDown).data, expected.data(), expected.size()), 0);
        if (stop_early) break;
        if (rng() % 6 == 0) held.push_back(std::move(*handle));
        if (held.size() > 4) held.erase(held.begin() + static_cast<std::ptrdiff_t>(rng() % held.size()));
      }
      if (!stop_early) {
        EXPECT_EQ(came.size(), ids.size());
      }
      store->end();
      if (rng() % 40 == 0) store->evict_all();
    }
    uint64_t hits = 0, misses = 0, verified = 0, bytes = 0;
    for (const ExpertLayerStats& s : store->stats()) {
      hits += s.hits;
      misses += s.misses;
      verified += s.verified_sha256 + s.verified_xxh3;
      bytes += s.bytes_read;
    }
    EXPECT_EQ(hits + misses, asked);
    EXPECT_EQ(bytes, verified * f.record_payload_bytes());
    EXPECT_LE(verified, misses);  // batches that ended early left some unread
    held.clear();
  }
}

TEST(StoreConcurrency, CountersAreExactWhenEveryBatchRunsToItsEnd) {
  ExpertFixture f({.num_layers = 2, .num_experts = 10});
  delay_reads(f, 100);
  auto device = make_cpu_device();
  MemoryBudget budget(uint64_t{1} << 30);
  auto store = make_store(*device, budget, f, {.num_slots = 20, .num_readers = 3});
  std::mt19937 rng(3);
  std::map<int, std::set<int>> resident;
  uint64_t hits[2] = {}, misses[2] = {};
  for (int step = 0; step < 60; ++step) {
    const int layer = step % 2;
    const auto ids = random_ids(rng, 10);
    ASSERT_TRUE(store->begin(layer, ids).ok());
    for (const int e : ids) ++(resident[layer].insert(e).second ? misses : hits)[layer];
    while (std::move(store->next()).value()) {
    }
    EXPECT_EQ(store->stats()[static_cast<size_t>(layer)].hits, hits[layer]);
    EXPECT_EQ(store->stats()[static_cast<size_t>(layer)].misses, misses[layer]);
    EXPECT_EQ(store->stats()[static_cast<size_t>(layer)].verified_sha256, misses[layer]);
    EXPECT_EQ(store->stats()[static_cast<size_t>(layer)].evicted, 0u);
  }
}

TEST(StoreConcurrency, NothingAllocatesInSteadyState) {
  // The names of the files are looked up at every read, as they are once a second elsewhere.
  ExpertFixture f({.num_layers = 3, .num_experts = 8, .path_check_interval_ms = 0});
  auto device = make_cpu_device();
  MemoryBudget budget(uint64_t{1} << 30);
  auto store = make_store(*device, budget, f, {.num_slots = 5, .num_readers = 3});
  const std::vector<int32_t> ids = {0, 1, 2, 3, 4, 5, 6, 7};
  const auto pass = [&] {
    for (int layer = 0; layer < 3; ++layer) {
      ASSERT_TRUE(store->begin(layer, ids).ok());
      for (;;) {
        auto handle = store->next();
        ASSERT_TRUE(handle.ok());
        if (!*handle) break;
      }
      store->end();
    }
  };
  pass();  // first reads: SHA-256
  const uint64_t before = num_news.load();
  for (int i = 0; i < 5; ++i) pass();
  EXPECT_EQ(num_news.load() - before, 0u);
  EXPECT_GT(store->stats()[0].verified_xxh3, 0u) << "it did read";
}

// Sums an expert's bytes on the device, slowly, after the handle is gone.
struct SumArgs {
  const uint8_t* bytes = nullptr;
  uint64_t* out = nullptr;
  int64_t n = 0;
  template <class F>
  void each_address(F&& visit) {
    visit(const_cast<void*&>(reinterpret_cast<const void*&>(bytes)));
    visit(reinterpret_cast<void*&>(out));
  }
};
void slow_sum(ThreadPool&, const SumArgs& a) {
  uint64_t sum = 0;
  for (int64_t i = 0; i < a.n; ++i) {
    sum = sum * 31 + a.bytes[i];
    if (i % 512 == 0) std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  *a.out = sum;
}
uint64_t sum_of(const std::vector<std::byte>& bytes) {
  uint64_t sum = 0;
  for (const std::byte b : bytes) sum = sum * 31 + static_cast<uint64_t>(b);
  return sum;
}

TEST(StoreConcurrency, ASlotIsNotOverwrittenBeforeTheComputeStreamHasPassed) {
  ExpertFixture f({.num_layers = 2, .num_experts = 16, .hidden = 20, .intermediate = 41});
  auto device = make_fake_device({.max_delay_us = 300, .seed = 4});
  MemoryBudget budget(uint64_t{1} << 30);
  auto stream = std::move(device->make_stream()).value();
  ThreadPool pool(1);
  auto store = make_store(*device, budget, f, {.num_slots = 2, .num_readers = 2, .compute_stream = stream.get()});
  Buffer sums = std::move(Buffer::make(*device, budget, MemoryClass::kScratch, 16 * sizeof(uint64_t))).value();
  std::vector<int32_t> ids(16);
  for (int i = 0; i < 16; ++i) ids[static_cast<size_t>(i)] = i;
  for (int layer = 0; layer < 2; ++layer) {
    ASSERT_TRUE(store->begin(layer, ids).ok());
    for (;;) {
      auto handle = store->next();
      ASSERT_TRUE(handle.ok()) << handle.status().to_string();
      if (!*handle) break;
      const Tensor up = handle->part(ExpertPart::kUp);
      ASSERT_TRUE(launch<SumArgs>(*stream, pool, slow_sum,
                                  {.bytes = up.as<uint8_t>(),
                                   .out = static_cast<uint64_t*>(sums.data()) + handle->expert_id(),
                                   .n = up.size_bytes()})
                      .ok());
    }  // released here, with its kernel still to run
    store->end();
    std::vector<uint64_t> host(16);
    ASSERT_TRUE(stream->copy_to_host(host.data(), sums.data(), 16 * sizeof(uint64_t)).ok());
    const Status status = stream->synchronize();
    ASSERT_TRUE(status.ok()) << status.to_string();
    for (int e = 0; e < 16; ++e) EXPECT_EQ(host[static_cast<size_t>(e)], sum_of(f.expected(layer, e, ExpertPart::kUp))) << e;
  }
  store.reset();
}

TEST(StoreConcurrency, StagingCarriesExpertsOfSeveralChunks) {
  ExpertFixture f({.num_layers = 1, .num_experts = 4, .hidden = 1024, .intermediate = 530});
  auto device = make_fake_device({.max_delay_us = 500, .seed = 9});
  MemoryBudget budget(uint64_t{1} << 30);
  auto stream = std::move(device->make_stream()).value();
  const ExpertStoreOptions options{.num_slots = 2, .num_readers = 2, .compute_stream = stream.get()};
  auto store = make_store(*device, budget, f, options);
  const ExpertStore::Cost cost = ExpertStore::cost(f.catalogue, options, device->host_visible());
  EXPECT_GT(cost.read_buffer_bytes, 0u);
  EXPECT_EQ(budget.used_bytes(MemoryClass::kReadBuffers), cost.read_buffer_bytes);
  EXPECT_EQ(budget.used_bytes(), cost.slots_bytes + cost.read_buffer_bytes + cost.table_bytes + cost.stack_bytes);
  ASSERT_TRUE(store->begin(0, std::vector<int32_t>{0, 1, 2, 3}).ok());
  for (int n = 0; n < 4; ++n) {
    ExpertHandle handle = std::move(store->next()).value();
    for (const ExpertPart p : {ExpertPart::kGate, ExpertPart::kUp, ExpertPart::kDown}) {
      const auto expected = f.expected(0, handle.expert_id(), p);
      EXPECT_EQ(std::memcmp(device->host_view(handle.part(p).data), expected.data(), expected.size()), 0);
    }
  }
}

TEST(StoreConcurrency, AFailedCopyToTheDeviceIsNamedAndTheStoreGoesOn) {
  ExpertFixture f;
  auto device = make_fake_device();
  MemoryBudget budget(uint64_t{1} << 30);
  auto stream = std::move(device->make_stream()).value();
  auto store = make_store(*device, budget, f, {.num_slots = 4, .num_readers = 2, .compute_stream = stream.get()});
  for (uint64_t n = 1; n <= 3; ++n) {
    store->evict_all();
    device->set_failures(0, n, 0);
    ASSERT_TRUE(store->begin(0, std::vector<int32_t>{0, 1, 2, 3}).ok());
    Status status;
    for (;;) {
      auto handle = store->next();
      status = handle.status();
      if (!handle.ok() || !*handle) break;
    }
    EXPECT_EQ(status.code(), StatusCode::kIo) << n;
    EXPECT_TRUE(status.message().starts_with("layer 1 expert ")) << status.message();
    device->set_failures(0, 0, 0);
    ASSERT_TRUE(store->begin(0, std::vector<int32_t>{0, 1, 2, 3}).ok());
    for (int i = 0; i < 4; ++i) EXPECT_TRUE(store->next().ok());
  }
}

TEST(StoreConcurrency, RefusedDeviceMemoryLeavesNothingBehind) {
  ExpertFixture f;
  auto device = make_fake_device({.fail_allocation = 1});
  MemoryBudget budget(uint64_t{1} << 30);
  auto stream = std::move(device->make_stream()).value();
  const ExpertStoreOptions options{.num_slots = 4, .compute_stream = stream.get()};
  EXPECT_EQ(ExpertStore::make(*device, budget, *f.checkpoint, f.catalogue, options).status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(budget.used_bytes(), 0u);
  EXPECT_EQ(ExpertStore::make(*device, budget, *f.checkpoint, f.catalogue, {.num_slots = 4}).status().code(),
            StatusCode::kInvalidArgument)
      << "an asynchronous device without a compute stream";
}

}  // namespace
}  // namespace pointsman
