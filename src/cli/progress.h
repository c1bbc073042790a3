// SPDX-License-Identifier: Apache-2.0
//
// Progress of long work, on stderr. On a terminal a bar that redraws itself (as wide as COLUMNS or the window, without colour
// when NO_COLOR is set) and leaves nothing behind; elsewhere a plain line every few seconds, so that short work prints nothing.
//
// update() is thread-safe.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>

namespace pointsman::cli {

class Progress {
 public:
  enum class Unit { kBytes, kTokens };
  // Nothing is printed unless `enabled`.
  Progress(std::string label, Unit unit, bool enabled);
  ~Progress() { finish(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void update(uint64_t done, uint64_t total);
  // Wipes the bar.
  void finish();

  // "loading [=====>    ] 45 %  1.20 GiB of 2.60 GiB  812 MiB/s  2 s left"; for a terminal of `width` columns.
  static std::string bar_line(const std::string& label, Unit unit, uint64_t done, uint64_t total, double seconds, int width,
                              bool color);

 private:
  using Clock = std::chrono::steady_clock;
  const std::string label_;
  const Unit unit_;
  const bool enabled_, terminal_;
  const Clock::time_point start_ = Clock::now();
  std::mutex mutex_;
  Clock::time_point last_ = start_;
  bool drawn_ = false;
};

}  // namespace pointsman::cli
