// SPDX-License-Identifier: Apache-2.0
#include "base/thread_pool.h"

#include <algorithm>

#include "base/check.h"

namespace pointsman {
namespace {

// About 50 us on a 3.5 GHz core: longer than the serial parts of a decode step, shorter than a time slice.
constexpr int kSpins = 4000;
// A waiting caller sleeps after this many spins, about 100 us, far longer than a range of a decode step takes: the thread that holds the
// range has been put aside by the operating system and may need this core. It then comes to it at once, a spinning caller would keep it away
// for the length of a time slice.
constexpr int kCallerSpins = 8000;

inline void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

ThreadPool::ThreadPool(int num_threads, bool pin) : num_threads_(num_threads), shares_(new Share[static_cast<size_t>(std::max(num_threads, 1))]) {
  PM_CHECK(num_threads >= 1);
  workers_.reserve(static_cast<size_t>(num_threads - 1));
  for (int i = 1; i < num_threads; ++i) workers_.emplace_back([this, i] { run_worker(i); }, pin ? i : -1);
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard lock(mutex_);
    stop_.store(true, std::memory_order_release);
  }
  wake_.notify_all();
  workers_.clear();
}

void ThreadPool::parallel_for(int64_t n, int64_t grain, FunctionRef<void(int64_t, int64_t)> fn) {
  if (n <= 0) return;
  const int64_t num_ranges = (n + grain - 1) / grain;
  if (num_threads_ == 1 || num_ranges == 1) {
    for (int64_t begin = 0; begin < n; begin += grain) fn(begin, std::min(n, begin + grain));
    return;
  }
  PM_CHECK(num_ranges < (int64_t{1} << 31));
  fn_ = &fn;
  n_ = n;
  grain_ = grain;
  done_.store(0, std::memory_order_relaxed);
  const uint32_t task = task_.load(std::memory_order_relaxed) + 1;
  for (int t = 0; t < num_threads_; ++t) {
    const int64_t begin = num_ranges * t / num_threads_, end = num_ranges * (t + 1) / num_threads_;
    shares_[static_cast<size_t>(t)].end = end;
    shares_[static_cast<size_t>(t)].state.store((uint64_t{task} << 32) | static_cast<uint64_t>(end - begin), std::memory_order_release);
  }
  task_.store(task, std::memory_order_seq_cst);
  // seq_cst on both sides: either the sleeper sees the new task before it waits, or we see the sleeper here.
  if (sleepers_.load(std::memory_order_seq_cst) > 0) {
    { std::lock_guard lock(mutex_); }
    wake_.notify_all();
  }
  while (take_and_run(0)) {
  }
  for (int spins = 0; done_.load(std::memory_order_acquire) != static_cast<uint32_t>(num_ranges); ++spins) {
    if (spins < kCallerSpins) {
      pause_cpu();
      continue;
    }
    std::unique_lock lock(mutex_);
    // seq_cst on both sides again: the thread of the last range sees the sleeper, or we see its range done.
    caller_sleeps_.store(true, std::memory_order_seq_cst);
    ended_.wait(lock, [&] { return done_.load(std::memory_order_seq_cst) == static_cast<uint32_t>(num_ranges); });
    caller_sleeps_.store(false, std::memory_order_relaxed);
  }
}

bool ThreadPool::take_and_run(int thread) {
  for (int i = 0; i < num_threads_; ++i) {
    const int victim = thread + i < num_threads_ ? thread + i : thread + i - num_threads_;
    if (take_and_run_of(shares_[static_cast<size_t>(victim)])) return true;
  }
  return false;
}

bool ThreadPool::take_and_run_of(Share& share) {
  uint64_t state = share.state.load(std::memory_order_acquire);
  for (;;) {
    if (static_cast<uint32_t>(state) == 0) return false;
    if (share.state.compare_exchange_weak(state, state - 1, std::memory_order_acq_rel, std::memory_order_acquire)) break;
  }
  // We hold a range, so this task cannot end and its fields cannot change until done_ is raised below.
  const int64_t begin = (share.end - static_cast<uint32_t>(state)) * grain_;
  (*fn_)(begin, std::min(n_, begin + grain_));
  done_.fetch_add(1, std::memory_order_seq_cst);
  if (caller_sleeps_.load(std::memory_order_seq_cst)) {
    { std::lock_guard lock(mutex_); }
    ended_.notify_one();
  }
  return true;
}

void ThreadPool::run_worker(int thread) {
  int idle = 0;
  while (!stop_.load(std::memory_order_acquire)) {
    // Read before the shares are looked at: a task whose shares were not there yet raises it afterwards.
    const uint32_t seen = task_.load(std::memory_order_acquire);
    if (take_and_run(thread)) {
      idle = 0;
      continue;
    }
    while (task_.load(std::memory_order_acquire) == seen && ++idle < kSpins) pause_cpu();
    if (idle < kSpins) continue;
    std::unique_lock lock(mutex_);
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    wake_.wait(lock, [this, seen] { return stop_.load(std::memory_order_acquire) || task_.load(std::memory_order_seq_cst) != seen; });
    sleepers_.fetch_sub(1, std::memory_order_relaxed);
    idle = 0;
  }
}

}  // namespace pointsman
