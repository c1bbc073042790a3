// SPDX-License-Identifier: Apache-2.0
//
// The container's CPU quota. A quota below the number of CPUs that the process sees does not look like fewer CPUs: every thread
// runs until the period's share is used up, then all of them stand still.
#include <algorithm>
#include <cmath>
#include <optional>

#include "base/cgroup.h"
#include "base/log.h"
#include "doctor/check.h"
#include "doctor/text.h"

namespace pointsman::doctor {
namespace {

// In CPUs; nothing when there is no limit at this level.
std::optional<double> quota_of(FileSystem& fs, const CgroupFolder& folder) {
  std::string text;
  if (folder.is_v2) {
    // "200000 100000" or "max 100000", microseconds
    if (!read_kernel_file(fs, folder.path + "/cpu.max", text)) return std::nullopt;
    const auto words = words_of(trim(text));
    if (words.size() != 2) return std::nullopt;
    const auto quota = parse_int(words[0]), period = parse_int(words[1]);
    if (!quota || !period || *quota <= 0 || *period <= 0) return std::nullopt;
    return static_cast<double>(*quota) / static_cast<double>(*period);
  }
  if (!read_kernel_file(fs, folder.path + "/cpu.cfs_quota_us", text)) return std::nullopt;
  const auto quota = leading_int(text);
  if (!read_kernel_file(fs, folder.path + "/cpu.cfs_period_us", text)) return std::nullopt;
  const auto period = leading_int(text);
  if (!quota || !period || *quota <= 0 || *period <= 0) return std::nullopt;
  return static_cast<double>(*quota) / static_cast<double>(*period);
}

}  // namespace

CheckResult check_cpu_quota(const Context& context) {
  const auto allowed =
      parse_cpu_list(field(context.machine.read("/proc/self/status").value_or(""), "Cpus_allowed_list:").value_or(""));
  const size_t cpus = allowed ? allowed->size() : 0;
  std::optional<double> least;
  std::string where;
  for (const CgroupFolder& folder : cgroup_folders(context.machine.fs(), context.machine.root(), "cpu")) {
    const auto quota = quota_of(context.machine.fs(), folder);
    if (!quota || (least && *least <= *quota)) continue;
    least = quota;
    where = folder.path.substr(context.machine.root().size());
  }
  if (cpus == 0) return CheckResult::not_applicable("/proc/self/status does not list CPUs");
  if (!least) return CheckResult::ok(format("{} CPUs, no quota", cpus));
  CheckResult r = CheckResult::ok(format("{} CPUs, quota {:.2f} CPUs ({})", cpus, *least, printable(where, 120)));
  r.data = Json::object();
  r.data.set("cpus", static_cast<int64_t>(cpus));
  r.data.set("quota_cpus", *least);
  if (*least < static_cast<double>(cpus) * 0.99) {
    const auto threads = std::max<long>(1, std::lround(std::floor(*least)));
    r.warn("cpu_quota.below_cpus",
           format("{} CPUs are visible, the quota allows {:.2f}: as many threads as CPUs stop in the middle of every period",
                  cpus, *least),
           format("run with -t {}, or give the container a cpuset instead of a quota", threads));
  }
  return r;
}

}  // namespace pointsman::doctor
