// SPDX-License-Identifier: Apache-2.0
//
// Swap, and whether the machine is thrashing. Experts are read on demand into memory that stays; when the kernel swaps that
// memory out, every hit becomes a random read behind the engine's back.
#include <chrono>
#include <optional>
#include <thread>

#include "base/log.h"
#include "doctor/check.h"
#include "doctor/text.h"

namespace pointsman::doctor {
namespace {

std::string human_kib(int64_t kib) {
  return human_bytes(static_cast<double>(kib) * 1024);
}

int64_t pages_swapped(const Machine& machine) {
  const std::string vmstat = machine.read("/proc/vmstat").value_or("");
  return leading_int(field(vmstat, "pswpin ").value_or("")).value_or(0) +
         leading_int(field(vmstat, "pswpout ").value_or("")).value_or(0);
}

// "full avg10=0.00 avg60=0.00 avg300=0.00 total=0": the value of avg60 in percent.
std::optional<double> pressure(const Machine& machine, const char* line_start) {
  const auto text = machine.read("/proc/pressure/memory");
  if (!text) return std::nullopt;
  const auto line = field(*text, line_start);
  if (!line) return std::nullopt;
  for (const std::string_view word : words_of(*line)) {
    if (word.starts_with("avg60=")) return parse_double(word.substr(6));
  }
  return std::nullopt;
}

constexpr double kThrashPercent = 5;   // of the time every task waits for memory
constexpr double kThrashPages = 1000;  // per second, 4 MB/s at 4 KiB
constexpr int kSampleMs = 300;

}  // namespace

CheckResult check_swap(const Context& context) {
  const Machine& machine = context.machine;
  const std::string meminfo = machine.read("/proc/meminfo").value_or("");
  const auto total = leading_int(field(meminfo, "SwapTotal:").value_or("")),
             free = leading_int(field(meminfo, "SwapFree:").value_or(""));
  if (!total || !free) return CheckResult::not_applicable("no /proc/meminfo");
  const auto full = pressure(machine, "full ");
  std::string stalls = full ? format("; all tasks stalled on memory {:.1f} % of the last minute", *full) : "";
  if (*total == 0) {
    CheckResult r = CheckResult::ok("no swap" + stalls);
    if (full && *full > kThrashPercent) {
      r.fail("swap.reclaim_thrash",
             format("without swap, yet all tasks wait for memory {:.1f} % of the time: the kernel drops and rereads pages of "
                    "running programs",
                    *full),
             "stop what uses the memory ('ps -eo rss,comm --sort=-rss'), or give the engine a smaller --memory");
    }
    return r;
  }
  const int64_t used = *total - *free;
  double rate = 0;
  if (machine.is_live()) {
    const int64_t before = pages_swapped(machine);
    std::this_thread::sleep_for(std::chrono::milliseconds(kSampleMs));
    rate = static_cast<double>(pages_swapped(machine) - before) * 1000 / kSampleMs;
  }
  const auto swappiness = machine.read_int("/proc/sys/vm/swappiness");
  CheckResult r = CheckResult::ok(
      format("{} of {} used, swappiness {}{}", human_kib(used), human_kib(*total), swappiness.value_or(-1), stalls));
  r.data = Json::object();
  r.data.set("total_bytes", *total * 1024);
  r.data.set("used_bytes", used * 1024);
  if (full) r.data.set("stalled_percent", *full);
  const auto available = leading_int(field(meminfo, "MemAvailable:").value_or("")),
             memory = leading_int(field(meminfo, "MemTotal:").value_or(""));
  if (rate > kThrashPages || (full && *full > kThrashPercent)) {
    std::string what = full && *full > kThrashPercent ? format("all tasks wait for memory {:.1f} % of the time", *full)
                                                      : format("{:.0f} pages a second move to and from swap", rate);
    r.fail("swap.thrash", format("{} with {} in swap: the machine is thrashing", what, human_kib(used)),
           "stop what uses the memory, or give the engine a smaller --memory; measurements on this machine mean nothing until "
           "then");
  } else if (available && memory && *memory > 0 && *available < *memory / 10 && used > *total / 2) {
    r.warn("swap.nearly_full",
           format("{} of {} swap in use and {} memory available", human_kib(used), human_kib(*total), human_kib(*available)),
           "free memory before loading a model");
  } else if (swappiness && *swappiness >= 60) {
    r.warn(
        "swap.swappiness",
        format("swap is on with swappiness {}: under pressure the kernel swaps experts out as readily as it drops cached files",
               *swappiness),
        "sysctl vm.swappiness=10, or swapoff for the engine's container (memory.swap.max=0)");
  }
  return r;
}

}  // namespace pointsman::doctor
