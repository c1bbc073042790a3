// SPDX-License-Identifier: Apache-2.0
//
// How much memory there is: of the machine, and of the container with every level above it. Enough for the model's smallest
// budget?
#include "memory/memory_limit.h"

#include "base/cgroup.h"
#include "base/log.h"
#include "doctor/check.h"
#include "doctor/text.h"

namespace pointsman::doctor {
namespace {

std::string human(uint64_t bytes) {
  return human_bytes(static_cast<double>(bytes));
}

// The kernel's count of processes killed for want of memory in this group.
int64_t oom_kills(const Machine& machine) {
  for (const CgroupFolder& folder : cgroup_folders(machine.fs(), machine.root(), "memory")) {
    std::string text;
    const char* file = folder.is_v2 ? "/memory.events" : "/memory.oom_control";
    if (!read_kernel_file(machine.fs(), folder.path + file, text)) continue;
    if (const auto kills = field(text, "oom_kill ")) return leading_int(*kills).value_or(0);
  }
  return 0;
}

}  // namespace

CheckResult check_memory(const Context& context) {
  const Machine& machine = context.machine;
  const MemoryLimits limits = read_memory_limits(machine.fs(), machine.root());
  const auto total_kib = leading_int(field(machine.read("/proc/meminfo").value_or(""), "MemTotal:").value_or(""));
  if (!limits.available_bytes || !total_kib || *total_kib <= 0) return CheckResult::not_applicable("no /proc/meminfo");
  const uint64_t total = static_cast<uint64_t>(*total_kib) * 1024;
  const uint64_t budget = default_budget_bytes(limits);
  CheckResult r = CheckResult::ok(
      format("{} of {} available; default budget {}", human(*limits.available_bytes), human(total), human(budget)));
  r.data = Json::object();
  r.data.set("total_bytes", total);
  r.data.set("available_bytes", *limits.available_bytes);
  r.data.set("default_budget_bytes", budget);
  const auto room = limits.container_room_bytes();
  if (room) {
    const std::string path = limits.container_path.substr(std::min(machine.root().size(), limits.container_path.size()));
    r.evidence.push_back(format("container limit {}, {} used ({})", human(*limits.container_limit_bytes),
                                human(limits.container_used_bytes), printable(path, 120)));
    r.data.set("container_limit_bytes", *limits.container_limit_bytes);
    r.data.set("container_room_bytes", *room);
  }
  if (const int64_t kills = oom_kills(machine); kills > 0) {
    r.warn("memory.oom_kills", format("the kernel has killed {} processes of this container for want of memory", kills),
           "give --memory explicitly, below the container's limit; 'dmesg' or the container's events name the victims");
  }
  if (!context.needs) return r;
  const uint64_t need = context.needs->smallest_budget_bytes;
  const char* at_least = context.needs->is_lower_bound ? "at least " : "";
  r.evidence.push_back(format("the model needs {}{}", at_least, human(need)));
  r.data.set("smallest_budget_bytes", need);
  if (room && *room < need && *limits.container_limit_bytes < need) {
    r.fail("memory.limit_below_model",
           format("the container's limit of {} is smaller than the model's smallest budget, {}{} ({} bytes)",
                  human(*limits.container_limit_bytes), at_least, human(need), need),
           format("raise the container's memory limit to {} or more, or take a smaller model", human(need + (need >> 3))));
  } else if (room && *room < need) {
    r.fail("memory.container_full",
           format("the container has {} left of {}; the model needs {}{}", human(*room), human(*limits.container_limit_bytes),
                  at_least, human(need)),
           "stop what else runs in the container, or raise its limit");
  } else if (*limits.available_bytes < need) {
    r.fail("memory.below_model",
           format("{} are available; the model needs {}{} ({} bytes)", human(*limits.available_bytes), at_least, human(need),
                  need),
           "stop what else uses memory, or take a smaller model; 'pointsman plan MODEL' shows the items");
  }
  return r;
}

}  // namespace pointsman::doctor
