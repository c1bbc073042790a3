// SPDX-License-Identifier: Apache-2.0
#include "base/thread_pool.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <chrono>
#include <set>
#include <thread>
#include <vector>

namespace pointsman {
namespace {

TEST(ThreadPool, CoversEveryIndexOnce) {
  for (const int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.num_threads(), threads);
    for (const int64_t n : {0, 1, 2, 7, 64, 1000}) {
      for (const int64_t grain : {1, 3, 64, 5000}) {
        std::vector<std::atomic<int>> seen(static_cast<size_t>(n));
        pool.parallel_for(n, grain, [&](int64_t begin, int64_t end) {
          EXPECT_LT(begin, end);
          EXPECT_LE(end - begin, grain);
          EXPECT_EQ(begin % grain, 0);
          for (int64_t i = begin; i < end; ++i) seen[static_cast<size_t>(i)].fetch_add(1);
        });
        for (const auto& count : seen) ASSERT_EQ(count.load(), 1) << threads << " threads, n " << n << ", grain " << grain;
      }
    }
  }
}

TEST(ThreadPool, NegativeCountIsNothing) {
  ThreadPool pool(2);
  pool.parallel_for(-3, 1, [](int64_t, int64_t) { ADD_FAILURE(); });
}

TEST(ThreadPool, WritesOfATaskAreSeenByTheNext) {
  ThreadPool pool(4);
  std::vector<int64_t> values(257, 0);
  for (int round = 0; round < 3000; ++round) {
    pool.parallel_for(257, 16, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) ++values[static_cast<size_t>(i)];
    });
  }
  for (const int64_t v : values) EXPECT_EQ(v, 3000);
}

TEST(ThreadPool, WorkersWakeAfterTheyFellAsleep) {
  ThreadPool pool(3);
  for (int round = 0; round < 5; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    std::atomic<int64_t> sum{0};
    pool.parallel_for(100, 1, [&](int64_t begin, int64_t) { sum += begin; });
    EXPECT_EQ(sum.load(), 4950);
  }
}

TEST(ThreadPool, SeveralThreadsTakePart) {
  ThreadPool pool(3, /*pin=*/false);
  std::mutex mutex;
  std::set<std::thread::id> ids;
  pool.parallel_for(30, 1, [&](int64_t, int64_t) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    std::lock_guard lock(mutex);
    ids.insert(std::this_thread::get_id());
  });
  EXPECT_GE(ids.size(), 2u);
  EXPECT_LE(ids.size(), 3u);
}

// A thread that has done its own share goes on with the others': one that stands still delays nobody but by what it holds, a quarter of its share.
TEST(ThreadPool, WhatAStandingThreadLeavesIsDoneByTheOthers) {
  ThreadPool pool(2, /*pin=*/false);
  constexpr int kHeld = 100 / 2 / 4;
  std::atomic<int> done{0};
  std::atomic<bool> stands{false}, gave_up{false};
  pool.parallel_for(100, 1, [&](int64_t, int64_t) {
    if (!stands.exchange(true)) {
      // Until all others are done.
      const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
      while (done.load() < 100 - kHeld && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
      gave_up = done.load() < 100 - kHeld;
    }
    ++done;
  });
  EXPECT_FALSE(gave_up);
  EXPECT_EQ(done.load(), 100);
}

// On one thread of an otherwise idle pool the ranges come in order, and each share is one stretch.
TEST(ThreadPool, EveryThreadBeginsWithAStretchOfItsOwn) {
  ThreadPool pool(2, /*pin=*/false);
  for (int round = 0; round < 200; ++round) {
    std::mutex mutex;
    std::vector<std::pair<std::thread::id, int64_t>> order;
    pool.parallel_for(64, 1, [&](int64_t begin, int64_t) {
      std::lock_guard lock(mutex);
      order.emplace_back(std::this_thread::get_id(), begin);
    });
    // Within either half ranges are taken in order, whoever takes them.
    int64_t next[2] = {0, 32};
    for (const auto& [id, begin] : order) next[begin / 32] = std::max(next[begin / 32], begin + 1);
    EXPECT_EQ(next[0], 32);
    EXPECT_EQ(next[1], 64);
    int64_t last[2] = {-1, 31};
    for (const auto& [id, begin] : order) {
      if (id != std::this_thread::get_id()) continue;
      EXPECT_GT(begin, last[begin / 32]);
      last[begin / 32] = begin;
    }
  }
}

// A worker that does not come to its end is moved to the caller's core meanwhile, and is where it was afterwards.
TEST(ThreadPool, AWorkerThatIsWaitedForGoesBackToItsCores) {
  for (const bool pin : {true, false}) {
    ThreadPool pool(2, pin);
    const auto caller = std::this_thread::get_id();
    const auto cpus_of_worker = [&] {
      cpu_set_t cpus;
      CPU_ZERO(&cpus);
      std::atomic<bool> is_there{false};
      pool.parallel_for(2, 1, [&](int64_t, int64_t) {
        if (std::this_thread::get_id() != caller) {
          EXPECT_EQ(sched_getaffinity(0, sizeof(cpus), &cpus), 0);
          is_there = true;
        }
        while (!is_there.load()) std::this_thread::yield();
      });
      return cpus;
    };
    const cpu_set_t before = cpus_of_worker();
    int sums = 0;
    for (int round = 0; round < 10; ++round) {
      std::atomic<int> sum{0};
      pool.parallel_for(16, 1, [&](int64_t begin, int64_t) {
        // Long for a range: the caller's own take a few microseconds.
        if (std::this_thread::get_id() != caller) std::this_thread::sleep_for(std::chrono::milliseconds(3));
        sum += static_cast<int>(begin);
      });
      sums += sum.load();
    }
    EXPECT_EQ(sums, 10 * 120);
    const cpu_set_t after = cpus_of_worker();
    EXPECT_TRUE(CPU_EQUAL(&before, &after)) << "pinned: " << pin;
  }
}

TEST(ThreadPool, PoolsComeAndGo) {
  for (int i = 0; i < 50; ++i) {
    ThreadPool pool(1 + i % 4);
    std::atomic<int> n{0};
    if (i % 3 != 0) pool.parallel_for(8, 2, [&](int64_t begin, int64_t end) { n += static_cast<int>(end - begin); });
    EXPECT_EQ(n.load(), i % 3 != 0 ? 8 : 0);
  }
}

TEST(Thread, RunsAndIsJoined) {
  std::atomic<bool> ran{false};
  {
    Thread thread([&] { ran = true; });
    Thread moved = std::move(thread);
    thread = Thread();
  }
  EXPECT_TRUE(ran);
  EXPECT_GE(usable_cpus(), 1);
}

}  // namespace
}  // namespace pointsman
