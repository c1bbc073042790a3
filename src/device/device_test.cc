// SPDX-License-Identifier: Apache-2.0
#include "device/device.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <vector>

#include "base/thread_pool.h"

namespace pointsman {
namespace {

struct StoreArgs {
  int* out;
  template <class F>
  void each_address(F&&) {}
};

TEST(Buffer, IsChargedWhenMadeAndCreditedWhenGone) {
  auto device = make_cpu_device();
  MemoryBudget budget(100'000);
  {
    Buffer b = std::move(Buffer::make(*device, budget, MemoryClass::kKvCache, 5000)).value();
    EXPECT_EQ(b.size_bytes(), 8192u);
    EXPECT_EQ(budget.used_bytes(MemoryClass::kKvCache), 8192u);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(b.data()) % kPageBytes, 0u);
    std::memset(b.data(), 1, b.size_bytes());
    Buffer moved = std::move(b);
    EXPECT_FALSE(b);  // NOLINT: what a moved-from buffer is
    EXPECT_EQ(b.size_bytes(), 0u);
    EXPECT_EQ(budget.used_bytes(), 8192u);
    Buffer other = std::move(Buffer::make(*device, budget, MemoryClass::kScratch, 1)).value();
    EXPECT_EQ(budget.used_bytes(), 8192u + 4096u);
    other = std::move(moved);
    EXPECT_EQ(budget.used_bytes(), 8192u);
    EXPECT_EQ(budget.used_bytes(MemoryClass::kScratch), 0u);
    other.reset();
    other.reset();
    EXPECT_EQ(budget.used_bytes(), 0u);
  }
  EXPECT_EQ(budget.peak_bytes(), 8192u + 4096u);
}

TEST(Buffer, DoesNotFitNeverTouchesTheDevice) {
  struct NoDevice final : Device {
    std::string_view name() const override { return "none"; }
    bool host_visible() const override { return true; }
    Result<void*> allocate(size_t) override {
      ADD_FAILURE() << "allocate() was called";
      return Status(StatusCode::kUnavailable, "");
    }
    void free(void*, size_t) override {}
    Result<std::unique_ptr<Stream>> make_stream() override { return Status(StatusCode::kUnavailable, ""); }
  } device;
  MemoryBudget budget(4095);
  EXPECT_EQ(Buffer::make(device, budget, MemoryClass::kWeights, 1).status().code(), StatusCode::kBudgetExceeded);
}

TEST(CpuDevice, EveryPageIsPresent) {
  auto device = make_cpu_device();
  constexpr size_t kBytes = size_t{6} << 20;
  void* p = device->allocate(kBytes).value();
  std::vector<unsigned char> present(kBytes / kPageBytes);
  ASSERT_EQ(::mincore(p, kBytes, present.data()), 0);
  for (const unsigned char c : present) EXPECT_EQ(c & 1, 1);
  device->free(p, kBytes);
}

TEST(CpuDevice, AStreamIsImmediate) {
  auto device = make_cpu_device();
  EXPECT_TRUE(device->host_visible());
  auto stream = std::move(device->make_stream()).value();
  EXPECT_TRUE(stream->is_immediate());
  const int source = 5;
  int a = 0, b = 0, c = 0;
  EXPECT_TRUE(stream->copy_to_device(&a, &source, sizeof a).ok());
  EXPECT_TRUE(stream->copy_on_device(&b, &a, sizeof b).ok());
  EXPECT_TRUE(stream->copy_to_host(&c, &b, sizeof c).ok());
  EXPECT_EQ(c, 5);
  EXPECT_EQ(stream->record(), 0u);
  EXPECT_TRUE(stream->wait(0).ok());
  EXPECT_TRUE(stream->wait_from_any_thread(0).ok());

  ThreadPool pool(1);
  EXPECT_TRUE(launch<StoreArgs>(*stream, pool, [](ThreadPool&, const StoreArgs& args) { *args.out = 8; }, {.out = &c}).ok());
  EXPECT_EQ(c, 8);
}

}  // namespace
}  // namespace pointsman
