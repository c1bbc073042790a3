// SPDX-License-Identifier: Apache-2.0
#include "cli/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/log.h"

namespace pointsman::cli {
namespace {

using namespace std::chrono_literals;
constexpr auto kRedraw = 100ms;
constexpr auto kLineEvery = 5s;

// TERM=dumb has no carriage return worth the name.
bool is_terminal() {
  const char* term = std::getenv("TERM");
  return isatty(STDERR_FILENO) == 1 && (term == nullptr || std::strcmp(term, "dumb") != 0);
}
bool wants_color() {
  const char* no = std::getenv("NO_COLOR");
  return no == nullptr || *no == '\0';
}
int terminal_width() {
  if (const char* columns = std::getenv("COLUMNS")) {
    if (const int n = std::atoi(columns); n > 0) return n;
  }
  winsize size{};
  if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return 80;
}

std::string amount(Progress::Unit unit, double n) {
  return unit == Progress::Unit::kBytes ? human_bytes(n) : format("{:.0f}", n);
}

// What both forms say after the bar.
std::string numbers(Progress::Unit unit, uint64_t done, uint64_t total, double seconds) {
  const double d = static_cast<double>(done), t = static_cast<double>(total);
  std::string text = format("{:.0f} %  {} of {}", total > 0 ? std::floor(100 * d / t) : 100, amount(unit, d), amount(unit, t));
  if (unit == Progress::Unit::kTokens) text += " tokens";
  if (seconds > 0.5 && done > 0) {
    text += format("  {}/s", amount(unit, d / seconds));
    if (done < total) text += format("  {:.0f} s left", seconds / d * (t - d));
  }
  return text;
}

}  // namespace

Progress::Progress(std::string label, Unit unit, bool enabled)
    : label_(std::move(label)), unit_(unit), enabled_(enabled), terminal_(enabled && is_terminal()) {}

std::string Progress::bar_line(const std::string& label, Unit unit, uint64_t done, uint64_t total, double seconds, int width,
                               bool color) {
  done = std::min(done, total);
  const std::string text = numbers(unit, done, total, seconds);
  // One column stays free: a full line would wrap on some terminals.
  const int room = width - 1 - static_cast<int>(label.size() + text.size()) - 5;
  if (room < 5) return (label + " " + text).substr(0, static_cast<size_t>(std::max(width - 1, 1)));
  const int filled =
      total > 0 ? static_cast<int>(static_cast<double>(room) * static_cast<double>(done) / static_cast<double>(total)) : room;
  std::string bar(static_cast<size_t>(filled), '=');
  if (filled < room) bar += '>';
  bar.resize(static_cast<size_t>(room), ' ');
  return format("{} [{}{}{}] {}", label, color ? "\x1b[36m" : "", bar, color ? "\x1b[0m" : "", text);
}

void Progress::update(uint64_t done, uint64_t total) {
  if (!enabled_) return;
  const std::lock_guard lock(mutex_);
  const auto now = Clock::now();
  if (now - last_ < (terminal_ ? Clock::duration(kRedraw) : Clock::duration(kLineEvery))) return;
  last_ = now;
  const double seconds = std::chrono::duration<double>(now - start_).count();
  if (terminal_) {
    std::fprintf(stderr, "\r%s\x1b[K", bar_line(label_, unit_, done, total, seconds, terminal_width(), wants_color()).c_str());
    std::fflush(stderr);
    drawn_ = true;
  } else {
    std::fprintf(stderr, "%s %s\n", label_.c_str(), numbers(unit_, std::min(done, total), total, seconds).c_str());
  }
}

void Progress::finish() {
  const std::lock_guard lock(mutex_);
  if (std::exchange(drawn_, false)) std::fputs("\r\x1b[K", stderr);
}

}  // namespace pointsman::cli
