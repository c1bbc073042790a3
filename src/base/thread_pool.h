// SPDX-License-Identifier: Apache-2.0
//
// One pool of pinned workers for all computation. parallel_for() hands out index ranges; which worker takes which range never
// changes a result, because no kernel sums across ranges.
//
// Every thread begins with a share of its own, ranges that follow one another, and goes on with those that others have left: memory is
// read in one linear stream per core for as long as possible (ranges in turn cost 5 to 20 % of the bandwidth). A task is complete when
// its ranges are, so a worker that the operating system has put aside delays nobody unless it holds a range. Workers spin for a bounded time after a task (waking an idle core costs
// 10-20 us, and a decode step has some hundred tasks), then sleep.
//
// On a machine with other work a worker is put aside for a time slice (3 ms) again and again, most often with a range in its hand. The caller
// waits 0.1 ms, then has it moved to its own core and sleeps until the range is done; afterwards the worker goes back to where it was.
#pragma once

#include <sched.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
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
  // With kRuns, fn is called once for all the ranges that a thread took at once, which follow one another.
  // REQUIRES: called from one thread at a time; grain >= 1; n / grain < 2^31.
  enum class Calls { kRanges, kRuns };
  void parallel_for(int64_t n, int64_t grain, FunctionRef<void(int64_t begin, int64_t end)> fn, Calls calls = Calls::kRanges);

 private:
  // Ranges of one thread. Upper half of `state`: task number. Lower half: ranges not yet taken. One word, so that taking a range also
  // proves which task it is of.
  struct alignas(64) Share {
    std::atomic<uint64_t> state{0};
    int64_t end = 0;  // of the current task's ranges in this share
    std::atomic<bool> holds{false};  // the thread of this share runs a range
    std::atomic<int> tid{0};         // of the worker; 0 before it runs
    cpu_set_t cpus;                  // where it may run
    bool is_fetched = false;         // to the caller's core, for the range that it holds
  };

  bool take_and_run(int thread);  // one range of the current task, of the thread's own share first; false when none is left
  bool take_and_run_of(Share& share);
  void run_worker(int thread);
  void fetch_holders();
  void send_back();

  const int num_threads_;

  // The current task: written by the caller before a share is released, read only by a
  // thread that holds one of its ranges.
  const FunctionRef<void(int64_t, int64_t)>* fn_ = nullptr;
  int64_t n_ = 0;
  int64_t grain_ = 1;
  Calls calls_ = Calls::kRanges;

  std::unique_ptr<Share[]> shares_;  // [num_threads]
  alignas(64) std::atomic<uint32_t> task_{0};  // raised when all shares of a task are there
  alignas(64) std::atomic<uint32_t> done_{0};
  std::atomic<bool> caller_sleeps_{false};

  std::atomic<bool> stop_{false};
  std::atomic<int> sleepers_{0};
  std::mutex mutex_;
  std::condition_variable wake_;   // workers: a task, or stop
  std::condition_variable ended_;  // the caller: the last range is done
  std::vector<Thread> workers_;
};

}  // namespace pointsman
