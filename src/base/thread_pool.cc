// SPDX-License-Identifier: Apache-2.0
#include "base/thread_pool.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/check.h"

namespace pointsman {
namespace {

// About 50 us on a 3.5 GHz core: longer than the serial parts of a decode step, shorter than a time slice.
constexpr int kSpins = 4000;
// A caller waits so long for a range, or four times as long as its own ranges took, before it thinks that the thread was put aside.
constexpr int64_t kPatienceNs = 100'000;

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

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

void ThreadPool::parallel_for(int64_t n, int64_t grain, FunctionRef<void(int64_t, int64_t)> fn, Calls calls) {
  if (n <= 0) return;
  const int64_t num_ranges = (n + grain - 1) / grain;
  if (num_threads_ == 1 || num_ranges == 1) {
    if (calls == Calls::kRuns) return fn(0, n);
    for (int64_t begin = 0; begin < n; begin += grain) fn(begin, std::min(n, begin + grain));
    return;
  }
  PM_CHECK(num_ranges < (int64_t{1} << 31));
  fn_ = &fn;
  n_ = n;
  grain_ = grain;
  calls_ = calls;
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
  const int64_t start = now_ns();
  int64_t own = 0;
  while (take_and_run(0)) ++own;
  const auto is_done = [&] { return done_.load(std::memory_order_seq_cst) == static_cast<uint32_t>(num_ranges); };
  if (is_done()) return;
  const int64_t waits_from = now_ns();
  const int64_t patience = std::max(kPatienceNs, 4 * (waits_from - start) / std::max<int64_t>(own, 1));
  for (int spins = 1; !is_done(); ++spins) {
    pause_cpu();
    if (spins % 64 != 0 || now_ns() - waits_from < patience) continue;
    fetch_holders();
    {
      std::unique_lock lock(mutex_);
      // seq_cst on both sides again: the thread of the last range sees the sleeper, or we see its range done.
      caller_sleeps_.store(true, std::memory_order_seq_cst);
      ended_.wait(lock, is_done);
      caller_sleeps_.store(false, std::memory_order_relaxed);
    }
    send_back();
    return;
  }
}

// Errors are no harm: the range is waited for in any case.
void ThreadPool::fetch_holders() {
  const int cpu = sched_getcpu();
  if (cpu < 0 || cpu >= CPU_SETSIZE) return;
  cpu_set_t here;
  CPU_ZERO(&here);
  CPU_SET(cpu, &here);
  for (int t = 1; t < num_threads_; ++t) {
    Share& share = shares_[static_cast<size_t>(t)];
    const int tid = share.tid.load(std::memory_order_acquire);
    if (tid != 0 && share.holds.load(std::memory_order_relaxed)) share.is_fetched = sched_setaffinity(tid, sizeof(here), &here) == 0;
  }
}

void ThreadPool::send_back() {
  for (int t = 1; t < num_threads_; ++t) {
    Share& share = shares_[static_cast<size_t>(t)];
    if (std::exchange(share.is_fetched, false)) sched_setaffinity(share.tid.load(std::memory_order_relaxed), sizeof(share.cpus), &share.cpus);
  }
}

bool ThreadPool::take_and_run(int thread) {
  std::atomic<bool>& holds = shares_[static_cast<size_t>(thread)].holds;
  holds.store(true, std::memory_order_relaxed);
  bool ran = false;
  for (int i = 0; i < num_threads_; ++i) {
    const int victim = thread + i < num_threads_ ? thread + i : thread + i - num_threads_;
    if ((ran = take_and_run_of(shares_[static_cast<size_t>(victim)]))) break;
  }
  holds.store(false, std::memory_order_relaxed);
  return ran;
}

// Takes a quarter of what is left, so that there are few atomic operations: each waits for all loads before it, and memory then stands still.
bool ThreadPool::take_and_run_of(Share& share) {
  uint64_t state = share.state.load(std::memory_order_acquire);
  uint32_t left, count;
  do {
    left = static_cast<uint32_t>(state);
    if (left == 0) return false;
    count = std::max(left / 4, uint32_t{1});
  } while (!share.state.compare_exchange_weak(state, state - count, std::memory_order_acq_rel, std::memory_order_acquire));
  // We hold ranges, so this task cannot end and its fields cannot change until done_ is raised below.
  int64_t begin = (share.end - left) * grain_;
  const int64_t step = calls_ == Calls::kRuns ? static_cast<int64_t>(count) * grain_ : grain_, end = begin + static_cast<int64_t>(count) * grain_;
  for (; begin < end; begin += step) (*fn_)(begin, std::min(n_, begin + step));
  done_.fetch_add(count, std::memory_order_seq_cst);
  if (caller_sleeps_.load(std::memory_order_seq_cst)) {
    { std::lock_guard lock(mutex_); }
    ended_.notify_one();
  }
  return true;
}

void ThreadPool::run_worker(int thread) {
  Share& own = shares_[static_cast<size_t>(thread)];
  if (sched_getaffinity(0, sizeof(own.cpus), &own.cpus) == 0) own.tid.store(::gettid(), std::memory_order_release);
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
