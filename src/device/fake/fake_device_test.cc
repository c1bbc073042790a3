// SPDX-License-Identifier: Apache-2.0
#include "device/fake/fake_device.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <numeric>
#include <thread>
#include <vector>

#include "base/log.h"
#include "base/thread_pool.h"

namespace pointsman {
namespace {

std::unique_ptr<Stream> stream_of(Device& device) {
  return std::move(device.make_stream()).value();
}

struct AddArgs {
  const float* x = nullptr;
  float* y = nullptr;
  int n = 0;
  template <class F>
  void each_address(F&& visit) {
    visit(const_cast<void*&>(reinterpret_cast<const void*&>(x)));
    visit(reinterpret_cast<void*&>(y));
  }
};
// y += x; a null x counts as ones.
void add(ThreadPool& pool, const AddArgs& a) {
  pool.parallel_for(a.n, 16, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) a.y[i] += a.x != nullptr ? a.x[i] : 1.0f;
  });
}

struct GateArgs {
  template <class F>
  void each_address(F&&) {}
};

TEST(FakeDevice, AddressesAreUnreadableByTheHost) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  auto device = make_fake_device();
  EXPECT_FALSE(device->host_visible());
  void* p = device->allocate(4096).value();
  EXPECT_DEATH({ static_cast<volatile char*>(p)[0] = 1; }, "");
  EXPECT_DEATH({ static_cast<void>(static_cast<volatile char*>(p)[100]); }, "");
  device->free(p, 4096);
}

TEST(FakeDevice, FreshMemoryIsNaN) {
  auto device = make_fake_device();
  auto stream = stream_of(*device);
  void* p = device->allocate(10'000).value();
  std::vector<float> host(2500, 0.0f);
  ASSERT_TRUE(stream->copy_to_host(host.data(), p, 10'000).ok());
  ASSERT_TRUE(stream->synchronize().ok());
  for (const float v : host) EXPECT_TRUE(std::isnan(v));
  device->free(p, 10'000);
}

TEST(FakeDevice, CopiesGoThereAndBack) {
  auto device = make_fake_device();
  auto stream = stream_of(*device);
  auto* p = static_cast<std::byte*>(device->allocate(8192).value());
  std::vector<int> source(1000), result(1000);
  std::iota(source.begin(), source.end(), 7);
  ASSERT_TRUE(stream->copy_to_device(p, source.data(), 4000).ok());
  ASSERT_TRUE(stream->copy_on_device(p + 4096, p, 4000).ok());
  ASSERT_TRUE(stream->copy_to_host(result.data(), p + 4096, 4000).ok());
  ASSERT_TRUE(stream->synchronize().ok());
  EXPECT_EQ(source, result);
  EXPECT_EQ(static_cast<int*>(device->host_view(p))[3], 10);
  const FakeCounters c = device->counters();
  EXPECT_EQ(c.copies_to_device, 1u);
  EXPECT_EQ(c.copies_on_device, 1u);
  EXPECT_EQ(c.copies_to_host, 1u);
  EXPECT_EQ(c.bytes_to_host, 4000u);
  device->free(p, 8192);
}

TEST(FakeDevice, WorkRunsLaterAndInOrder) {
  auto device = make_fake_device({.max_delay_us = 2000, .seed = 5});
  auto stream = stream_of(*device);
  auto* p = static_cast<int*>(device->allocate(4096).value());
  std::vector<int> seen(20, -1), values(20);
  std::iota(values.begin(), values.end(), 0);
  for (size_t i = 0; i < 20; ++i) {
    ASSERT_TRUE(stream->copy_to_device(p, &values[i], sizeof(int)).ok());
    ASSERT_TRUE(stream->copy_to_host(&seen[i], p, sizeof(int)).ok());
  }
  EXPECT_FALSE(stream->is_immediate());
  ASSERT_TRUE(stream->synchronize().ok());
  EXPECT_EQ(seen, values);
  device->free(p, 4096);
}

TEST(FakeDevice, ACopyTakesItsDataWhenItRuns) {
  auto device = make_fake_device();
  auto stream = stream_of(*device);
  auto* p = static_cast<int*>(device->allocate(4096).value());
  // A kernel that holds the stream until we have changed the source.
  static std::atomic<bool> go;
  go = false;
  ThreadPool pool(1);
  ASSERT_TRUE(launch<GateArgs>(*stream, pool,
                               [](ThreadPool&, const GateArgs&) {
                                 while (!go) std::this_thread::yield();
                               },
                               {})
                  .ok());
  int source = 1, result = 0;
  ASSERT_TRUE(stream->copy_to_device(p, &source, sizeof source).ok());
  ASSERT_TRUE(stream->copy_to_host(&result, p, sizeof result).ok());
  source = 2;
  go = true;
  ASSERT_TRUE(stream->synchronize().ok());
  EXPECT_EQ(result, 2);
  device->free(p, 4096);
}

TEST(FakeDevice, KernelsSeeRealMemory) {
  auto device = make_fake_device({.max_delay_us = 200});
  auto stream = stream_of(*device);
  ThreadPool pool(2);
  auto* x = static_cast<float*>(device->allocate(4096).value());
  auto* y = static_cast<float*>(device->allocate(4096).value());
  std::vector<float> ones(1000, 1.0f), twos(1000, 2.0f), out(1000);
  ASSERT_TRUE(stream->copy_to_device(x, ones.data(), 4000).ok());
  ASSERT_TRUE(stream->copy_to_device(y, twos.data(), 4000).ok());
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(launch<AddArgs>(*stream, pool, add, {.x = x, .y = y, .n = 1000}).ok());
  ASSERT_TRUE(launch<AddArgs>(*stream, pool, add, {.x = nullptr, .y = y, .n = 1000}).ok());  // null stays null
  ASSERT_TRUE(stream->copy_to_host(out.data(), y, 4000).ok());
  ASSERT_TRUE(stream->synchronize().ok());
  for (const float v : out) EXPECT_EQ(v, 6.0f);
  EXPECT_EQ(device->counters().kernels, 4u);
  device->free(x, 4096);
  device->free(y, 4096);
}

TEST(FakeDevice, AHostPointerInAKernelIsNamed) {
  auto device = make_fake_device();
  auto stream = stream_of(*device);
  ThreadPool pool(1);
  float host[4] = {};
  ASSERT_TRUE(launch<AddArgs>(*stream, pool, add, {.x = nullptr, .y = host, .n = 4}).ok());
  const Status status = stream->synchronize();
  EXPECT_EQ(status.code(), StatusCode::kInternal);
  EXPECT_NE(status.message().find("host pointer given to a kernel"), std::string::npos) << status.message();
  EXPECT_TRUE(stream->synchronize().ok()) << "reported once";
  EXPECT_EQ(host[0], 0.0f);
}

TEST(FakeDevice, FreedMemoryIsNotUsable) {
  auto device = make_fake_device();
  auto stream = stream_of(*device);
  void* p = device->allocate(4096).value();
  device->free(p, 4096);
  void* q = device->allocate(4096).value();
  EXPECT_NE(p, q);
  int host = 0;
  ASSERT_TRUE(stream->copy_to_host(&host, p, sizeof host).ok());
  EXPECT_EQ(stream->synchronize().code(), StatusCode::kInternal);
  EXPECT_EQ(device->host_view(p), nullptr);
  device->free(q, 4096);
}

TEST(FakeDevice, CopiesOnTheWrongSideOrTooLongAreErrors) {
  auto device = make_fake_device();
  auto stream = stream_of(*device);
  auto* p = static_cast<std::byte*>(device->allocate(4096).value());
  std::vector<std::byte> host(8192);
  const auto fails = [&](Status submitted) {
    EXPECT_TRUE(submitted.ok());
    return stream->synchronize().code() == StatusCode::kInternal;
  };
  EXPECT_TRUE(fails(stream->copy_to_device(host.data(), host.data(), 10)));
  EXPECT_TRUE(fails(stream->copy_to_device(p, p, 10)));
  EXPECT_TRUE(fails(stream->copy_to_host(p, p, 10)));
  EXPECT_TRUE(fails(stream->copy_to_host(host.data(), host.data(), 10)));
  EXPECT_TRUE(fails(stream->copy_on_device(p, host.data(), 10)));
  EXPECT_TRUE(fails(stream->copy_to_device(p, host.data(), 4097)));
  EXPECT_TRUE(fails(stream->copy_to_device(p + 4000, host.data(), 97)));
  EXPECT_FALSE(fails(stream->copy_to_device(p + 4000, host.data(), 96)));
  EXPECT_FALSE(fails(stream->copy_to_device(p + 4096, host.data(), 0)));
  device->free(p, 4096);
}

TEST(FakeDevice, TheNthAllocationIsRefused) {
  auto device = make_fake_device({.fail_allocation = 2});
  MemoryBudget budget(1 << 20);
  auto first = Buffer::make(*device, budget, MemoryClass::kScratch, 100);
  ASSERT_TRUE(first.ok());
  const auto second = Buffer::make(*device, budget, MemoryClass::kScratch, 100);
  EXPECT_EQ(second.status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(budget.used_bytes(), 4096u) << "the charge of the refused one is credited";
  EXPECT_TRUE(Buffer::make(*device, budget, MemoryClass::kScratch, 100).ok());
  device->set_failures(1, 0, 0);
  EXPECT_FALSE(Buffer::make(*device, budget, MemoryClass::kScratch, 100).ok());
}

TEST(FakeDevice, TheMemoryLimitHolds) {
  auto device = make_fake_device({.memory_limit_bytes = 10'000});
  void* p = device->allocate(8192).value();
  EXPECT_EQ(device->allocate(4096).status().code(), StatusCode::kUnavailable);
  device->free(p, 8192);
  p = device->allocate(10'000).value();
  device->free(p, 10'000);
  EXPECT_EQ(device->counters().peak_bytes, 10'000u);
  EXPECT_EQ(device->counters().live_bytes, 0u);
}

TEST(FakeDevice, AFailedCopyStopsWhatFollowsUntilItIsReported) {
  auto device = make_fake_device({.fail_copy = 2});
  auto stream = stream_of(*device);
  auto* p = static_cast<int*>(device->allocate(4096).value());
  const int one = 1, two = 2;
  int result = 0;
  ASSERT_TRUE(stream->copy_to_device(p, &one, sizeof one).ok());
  const uint64_t before = stream->record();
  ASSERT_TRUE(stream->copy_to_device(p, &two, sizeof two).ok());
  ASSERT_TRUE(stream->copy_to_host(&result, p, sizeof result).ok());
  const uint64_t after = stream->record();
  EXPECT_TRUE(stream->wait_from_any_thread(after).ok()) << "errors belong to the stream's own thread";
  EXPECT_TRUE(stream->wait(before).ok()) << "the failure came later";
  EXPECT_EQ(result, 0);
  EXPECT_EQ(stream->wait(after).code(), StatusCode::kIo);
  ASSERT_TRUE(stream->copy_to_host(&result, p, sizeof result).ok());
  EXPECT_TRUE(stream->synchronize().ok());
  EXPECT_EQ(result, 1);
  device->free(p, 4096);
}

TEST(FakeDevice, AFailedKernelIsReported) {
  auto device = make_fake_device({.fail_kernel = 1});
  auto stream = stream_of(*device);
  ThreadPool pool(1);
  auto* y = static_cast<float*>(device->allocate(4096).value());
  ASSERT_TRUE(launch<AddArgs>(*stream, pool, add, {.x = nullptr, .y = y, .n = 4}).ok());
  EXPECT_EQ(stream->synchronize().code(), StatusCode::kUnavailable);
  EXPECT_EQ(device->counters().kernels, 0u);
  device->free(y, 4096);
}

TEST(FakeDevice, AnotherThreadMayWait) {
  auto device = make_fake_device({.max_delay_us = 3000});
  auto stream = stream_of(*device);
  auto* p = static_cast<int*>(device->allocate(4096).value());
  const int value = 42;
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(stream->copy_to_device(p, &value, sizeof value).ok());
  const uint64_t ticket = stream->record();
  EXPECT_GT(ticket, 0u);
  std::thread other([&] {
    EXPECT_TRUE(stream->wait_from_any_thread(ticket).ok());
    EXPECT_EQ(*static_cast<int*>(device->host_view(p)), 42);
  });
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(stream->wait(ticket).ok());
  other.join();
  device->free(p, 4096);
}

TEST(FakeDevice, LeaksAreReported) {
  std::string report = "unset";
  { auto device = make_fake_device({.leak_report = &report}); }
  EXPECT_EQ(report, "");
  {
    auto device = make_fake_device({.leak_report = &report});
    ASSERT_TRUE(device->allocate(12'288).ok());
  }
  EXPECT_NE(report.find("1 allocations were not freed: 12288 bytes"), std::string::npos) << report;
}

TEST(FakeDevice, AStreamFinishesItsWorkBeforeItGoes) {
  auto device = make_fake_device({.max_delay_us = 500});
  auto* p = static_cast<int*>(device->allocate(4096).value());
  int result = 0;
  const int value = 9;
  {
    auto stream = stream_of(*device);
    ASSERT_TRUE(stream->copy_to_device(p, &value, sizeof value).ok());
    ASSERT_TRUE(stream->copy_to_host(&result, p, sizeof result).ok());
  }
  EXPECT_EQ(result, 9);
  device->free(p, 4096);
}

}  // namespace
}  // namespace pointsman
