// SPDX-License-Identifier: Apache-2.0
//
// One pool of pinned workers for all computation. parallel_for() hands out index ranges; which worker takes which range never
// changes a result, because no kernel sums across ranges.
//
// Ranges are taken dynamically and a task is complete when its ranges are, so a worker that the operating system has put
// aside delays nobody unless it holds a range. Workers spin for a bounded time after a task (waking an idle core costs
// 10-20 us, and a decode step has some hundred tasks), then sleep.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <vector>

#include "base/function_ref.h"
#include "base/thread.h"

namespace pointsman {

class ThreadPool {
 public:
  // `num_threads` >= 1 includes the calling thread: num_threads - 1 workers are started. With `pin`, worker i is bound to the
  // i-th CPU of the affinity mask, when there are that many; the caller is never pinned.
  explicit ThreadPool(int num_threads, bool pin = true);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return num_threads_; }

  // Calls fn(begin, end) for consecutive ranges of `grain` indices (the last may be shorter) that cover [0, n), from several
  // threads; returns when all are done. fn must not throw and must not call parallel_for of the same pool.
  // REQUIRES: called from one thread at a time; grain >= 1; n / grain < 2^31.
  void parallel_for(int64_t n, int64_t grain, FunctionRef<void(int64_t begin, int64_t end)> fn);

 private:
  bool take_and_run();  // one range of the current task; false when none is left
  void run_worker();

  const int num_threads_;

  // The current task: written by the caller before `state_` is released, read only by a thread that holds one of its ranges.
  const FunctionRef<void(int64_t, int64_t)>* fn_ = nullptr;
  int64_t n_ = 0;
  int64_t grain_ = 1;
  uint32_t num_ranges_ = 0;

  // Upper half: task number. Lower half: ranges not yet taken. One word, so that taking a range also proves which task it is of.
  alignas(64) std::atomic<uint64_t> state_{0};
  alignas(64) std::atomic<uint32_t> done_{0};

  std::atomic<bool> stop_{false};
  std::atomic<int> sleepers_{0};
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<Thread> workers_;
};

}  // namespace pointsman
