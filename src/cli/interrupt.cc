// SPDX-License-Identifier: Apache-2.0
#include "cli/interrupt.h"

#include <atomic>
#include <csignal>

namespace pointsman::cli {
namespace {

// Signal handlers have no other way to speak; lock-free, so it may be set in one.
std::atomic<bool> interrupted{false};
static_assert(std::atomic<bool>::is_always_lock_free);

void on_signal(int) {
  interrupted = true;
}

}  // namespace

void catch_interrupts() {
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESETHAND;  // the second one is fatal; no SA_RESTART: a blocked read of the terminal must return
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

bool was_interrupted() {
  return interrupted;
}

void reset_interrupt() {
  interrupted = false;
  catch_interrupts();
}

}  // namespace pointsman::cli
