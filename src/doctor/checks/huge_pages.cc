// SPDX-License-Identifier: Apache-2.0
//
// Transparent huge pages (the engine asks for them with madvise for large buffers) and explicit ones (which are memory that
// nobody else can use).
#include "base/log.h"
#include "doctor/check.h"
#include "doctor/text.h"

namespace pointsman::doctor {
namespace {

// "always [madvise] never" -> "madvise".
std::string selected(const std::string& text) {
  const size_t open = text.find('['), close = text.find(']');
  if (open == std::string::npos || close == std::string::npos || close < open) return {};
  return printable(std::string_view(text).substr(open + 1, close - open - 1), 30);
}

}  // namespace

CheckResult check_huge_pages(const Context& context) {
  const Machine& machine = context.machine;
  const std::string mode = selected(machine.read("/sys/kernel/mm/transparent_hugepage/enabled").value_or(""));
  const std::string meminfo = machine.read("/proc/meminfo").value_or("");
  const auto number = [&](const char* key) { return leading_int(field(meminfo, key).value_or("")).value_or(0); };
  const int64_t pages = number("HugePages_Total:"), free = number("HugePages_Free:"), size_kib = number("Hugepagesize:"),
                total_kib = number("MemTotal:");
  if (mode.empty() && total_kib <= 0)
    return CheckResult::not_applicable("neither /sys/kernel/mm/transparent_hugepage nor /proc/meminfo");
  CheckResult r = CheckResult::ok(format("transparent: {}; explicit: {} of {} KiB, {} free",
                                         mode.empty() ? "not in this kernel" : mode, pages, size_kib, free));
  r.data = Json::object();
  r.data.set("transparent", mode);
  r.data.set("explicit_pages", pages);
  r.data.set("explicit_free", free);
  if (mode == "never") {
    r.warn("huge_pages.never",
           "transparent huge pages are off: weights sit in 4 KiB pages and every pass over them misses the TLB",
           "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled");
  } else if (mode == "always") {
    r.evidence.push_back(
        "always: the kernel may round small buffers of other programs up to 2 MiB; madvise is enough for the engine");
  }
  // Numbers of a file: no product of them may overflow.
  const double reserved_kib = static_cast<double>(free) * static_cast<double>(size_kib);
  if (free > 0 && size_kib > 0 && reserved_kib > 0.05 * static_cast<double>(total_kib)) {
    r.warn("huge_pages.reserved",
           format("{} free explicit huge pages hold {} that neither the engine nor the page cache can use", free,
                  human_bytes(reserved_kib * 1024)),
           "sysctl vm.nr_hugepages=0, unless another program is about to take them");
  }
  return r;
}

}  // namespace pointsman::doctor
