// SPDX-License-Identifier: Apache-2.0
//
// A thread with a small stack of known size, so that the memory budget can count it. Joined when destroyed.
#pragma once

#include <pthread.h>

#include <cstddef>
#include <functional>
#include <utility>

namespace pointsman {

// Stack of every thread that Pointsman starts.
#if defined(NDEBUG) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
inline constexpr size_t kThreadStackBytes = 256 * 1024;
#else  // frames of kernels are several times as large: nothing is shared between the variables of inlined functions
inline constexpr size_t kThreadStackBytes = 2 * 1024 * 1024;
#endif

class Thread {
 public:
  Thread() = default;
  // `cpu_index` >= 0 pins the thread to the cpu_index-th CPU of the process's affinity mask, when there are that many.
  explicit Thread(std::function<void()> body, int cpu_index = -1);
  ~Thread() { join(); }
  Thread(Thread&& other) noexcept : handle_(other.handle_), running_(std::exchange(other.running_, false)) {}
  Thread& operator=(Thread&& other) noexcept {
    if (this != &other) {
      join();
      handle_ = other.handle_;
      running_ = std::exchange(other.running_, false);
    }
    return *this;
  }
  void join();

 private:
  pthread_t handle_{};
  bool running_ = false;
};

// CPUs of the affinity mask of this process. At least 1.
int usable_cpus();

}  // namespace pointsman
