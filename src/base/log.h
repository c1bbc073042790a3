// SPDX-License-Identifier: Apache-2.0
//
// Logging and message formatting. The library never prints: it hands lines to a sink that the program sets; without one,
// lines are dropped. format() is fmt's, so that a format string is checked at compile time.
//
// Thread-safe. The sink is called under a lock, one line at a time.
#pragma once

#include <fmt/format.h>

#include <functional>
#include <string>
#include <string_view>

#include "pointsman/status.h"

namespace pointsman {

using fmt::format;

enum class LogLevel { kDebug, kInfo, kWarning, kError };

using LogSink = std::function<void(LogLevel, std::string_view line)>;

// Replaces the sink (an empty function silences the library).
void set_log_sink(LogSink sink);
void log_line(LogLevel level, std::string_view line);

template <class... Args>
void log_info(fmt::format_string<Args...> f, Args&&... args) {
  log_line(LogLevel::kInfo, fmt::format(f, std::forward<Args>(args)...));
}
template <class... Args>
void log_warning(fmt::format_string<Args...> f, Args&&... args) {
  log_line(LogLevel::kWarning, fmt::format(f, std::forward<Args>(args)...));
}

// Status{code, format(...)}.
template <class... Args>
Status error(StatusCode code, fmt::format_string<Args...> f, Args&&... args) {
  return {code, fmt::format(f, std::forward<Args>(args)...)};
}

// "1.50 GiB", "24.0 MiB", "512 B": for people. Exact numbers belong in JSON.
std::string human_bytes(double bytes);

}  // namespace pointsman
