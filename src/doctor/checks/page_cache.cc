// SPDX-License-Identifier: Apache-2.0
//
// What the page cache can hold of a model, and whether somebody fights for it. Misses in the expert store are reads; the page
// cache decides which of them reach the disk.
#include <algorithm>
#include <optional>

#include "base/log.h"
#include "doctor/check.h"
#include "doctor/text.h"

namespace pointsman::doctor {
namespace {

std::string human_kib(int64_t kib) {
  return human_bytes(static_cast<double>(kib) * 1024);
}

std::optional<double> some_pressure(const Machine& machine, const char* path) {
  const auto text = machine.read(path);
  const auto line = text ? field(*text, "some ") : std::nullopt;
  if (!line) return std::nullopt;
  for (const std::string_view word : words_of(*line)) {
    if (word.starts_with("avg60=")) return parse_double(word.substr(6));
  }
  return std::nullopt;
}

}  // namespace

CheckResult check_page_cache(const Context& context) {
  const std::string meminfo = context.machine.read("/proc/meminfo").value_or("");
  const auto number = [&](const char* key) { return leading_int(field(meminfo, key).value_or("")).value_or(0); };
  const int64_t cached = number("Cached:"), available = number("MemAvailable:"),
                dirty = number("Dirty:") + number("Writeback:"), total = number("MemTotal:");
  if (total <= 0) return CheckResult::not_applicable("no /proc/meminfo");
  const auto memory = some_pressure(context.machine, "/proc/pressure/memory"),
             io = some_pressure(context.machine, "/proc/pressure/io");
  CheckResult r = CheckResult::ok(format("{} cached, {} dirty{}{}", human_kib(cached), human_kib(dirty),
                                         memory ? format("; memory pressure {:.1f} %", *memory) : "",
                                         io ? format("; I/O pressure {:.1f} %", *io) : ""));
  r.data = Json::object();
  r.data.set("cached_bytes", cached * 1024);
  r.data.set("dirty_bytes", dirty * 1024);
  if (context.needs && context.needs->total_bytes > 0) {
    const double model = static_cast<double>(context.needs->total_bytes);
    const double room =
        std::max(0.0, static_cast<double>(available) * 1024 - static_cast<double>(context.needs->smallest_budget_bytes));
    const double share = std::min(1.0, room / model);
    r.evidence.push_back(format("beside the smallest budget there is room for {:.0f} % of the model ({}) in the page cache",
                                100 * share, human_bytes(model)));
    r.data.set("model_share", share);
  }
  if (memory && *memory > 10) {
    r.warn(
        "page_cache.pressure",
        format("some tasks wait for memory {:.1f} % of the time: cached experts are dropped as fast as they are read", *memory),
        "give the engine a smaller --memory and leave the rest to the page cache, or stop the neighbours");
  }
  if (dirty > total / 10) {
    r.warn("page_cache.dirty", format("{} wait to be written: reads queue behind them", human_kib(dirty)),
           "wait for the copy to finish, or 'sync', before measuring");
  }
  return r;
}

}  // namespace pointsman::doctor
