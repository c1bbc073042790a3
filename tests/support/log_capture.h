// SPDX-License-Identifier: Apache-2.0
//
// Keeps the log lines of a scope; restores silence.
#pragma once

#include <string>
#include <vector>

#include "base/log.h"

namespace pointsman::testing {

class LogCapture {
 public:
  LogCapture() {
    set_log_sink([this](LogLevel, std::string_view line) { lines.emplace_back(line); });
  }
  ~LogCapture() { set_log_sink({}); }
  LogCapture(const LogCapture&) = delete;
  LogCapture& operator=(const LogCapture&) = delete;

  std::string text() const {
    std::string all;
    for (const std::string& line : lines) all += line + "\n";
    return all;
  }
  std::vector<std::string> lines;
};

}  // namespace pointsman::testing
