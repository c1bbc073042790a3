// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"

#include <mutex>

namespace pointsman {
namespace {

struct Sink {
  std::mutex mutex;
  LogSink function;
};

// The one process-wide object of the library: a destination, never state that a computation reads.
Sink& sink() {
  static Sink instance;
  return instance;
}

}  // namespace

void set_log_sink(LogSink function) {
  Sink& s = sink();
  std::lock_guard lock(s.mutex);
  s.function = std::move(function);
}

void log_line(LogLevel level, std::string_view line) {
  Sink& s = sink();
  std::lock_guard lock(s.mutex);
  if (s.function) s.function(level, line);
}

std::string human_bytes(double bytes) {
  const char* unit[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  int i = 0;
  while (bytes >= 1024 && i < 5) {
    bytes /= 1024;
    ++i;
  }
  if (i == 0) return fmt::format("{:.0f} B", bytes);
  return fmt::format("{:.{}f} {}", bytes, bytes >= 100 ? 1 : 2, unit[i]);
}

}  // namespace pointsman
