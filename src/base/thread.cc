// SPDX-License-Identifier: Apache-2.0
#include "base/thread.h"

#include <sched.h>

#include <memory>

#include "base/check.h"

namespace pointsman {
namespace {

void* trampoline(void* argument) {
  std::unique_ptr<std::function<void()>> body(static_cast<std::function<void()>*>(argument));
  (*body)();
  return nullptr;
}

}  // namespace

Thread::Thread(std::function<void()> body, int cpu_index) {
  pthread_attr_t attr;
  PM_CHECK(pthread_attr_init(&attr) == 0);
  PM_CHECK(pthread_attr_setstacksize(&attr, kThreadStackBytes) == 0);
  if (cpu_index >= 0) {
    cpu_set_t allowed;
    if (sched_getaffinity(0, sizeof allowed, &allowed) == 0 && cpu_index < CPU_COUNT(&allowed)) {
      int seen = 0;
      for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
        if (!CPU_ISSET(cpu, &allowed) || seen++ != cpu_index) continue;
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        pthread_attr_setaffinity_np(&attr, sizeof one, &one);
        break;
      }
    }
  }
  auto heap = std::make_unique<std::function<void()>>(std::move(body));
  const int rc = pthread_create(&handle_, &attr, trampoline, heap.get());
  pthread_attr_destroy(&attr);
  PM_CHECK(rc == 0, "pthread_create failed (%d)", rc);
  heap.release();
  running_ = true;
}

void Thread::join() {
  if (!running_) return;
  pthread_join(handle_, nullptr);
  running_ = false;
}

int usable_cpus() {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return 1;
  const int n = CPU_COUNT(&allowed);
  return n < 1 ? 1 : n;
}

}  // namespace pointsman
