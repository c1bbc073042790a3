// SPDX-License-Identifier: Apache-2.0
//
// How much memory a process may lock. Transfers to an accelerator and RDMA need pinned memory; on a CPU alone nothing does.
#include "base/log.h"
#include "doctor/check.h"
#include "doctor/text.h"

namespace pointsman::doctor {
namespace {

constexpr int64_t kEnoughBytes = INT64_C(64) << 20;

}  // namespace

CheckResult check_memlock(const Context& context) {
  const Machine& machine = context.machine;
  // "Max locked memory         8388608              8388608              bytes"
  const auto limits = machine.read("/proc/self/limits");
  const auto line = limits ? field(*limits, "Max locked memory") : std::nullopt;
  const auto words = line ? words_of(*line) : std::vector<std::string_view>();
  if (words.size() < 2) return CheckResult::not_applicable("no /proc/self/limits");
  const bool rdma = !machine.list("/sys/class/infiniband").empty();
  const bool gpu = machine.exists("/proc/driver/nvidia/version");
  const bool npu = context.ascend.has_npu();
  if (words[0] == "unlimited") return CheckResult::ok("unlimited");
  const auto bytes = parse_int(words[0]);
  if (!bytes) return CheckResult::not_applicable("/proc/self/limits is not understood");
  CheckResult r =
      CheckResult::ok(format("{} (hard limit {})", human_bytes(static_cast<double>(*bytes)), printable(words[1], 30)));
  r.data = Json::object();
  r.data.set("soft_bytes", *bytes);
  const std::string fix = "ulimit -l unlimited; LimitMEMLOCK=infinity in a systemd unit; --ulimit memlock=-1 for a container";
  if (rdma) {
    r.warn("memlock.rdma",
           format("RDMA devices are present and {} can be locked: registering communication buffers will fail",
                  human_bytes(static_cast<double>(*bytes))),
           fix);
  } else if ((gpu || npu) && *bytes < kEnoughBytes) {
    r.warn("memlock.pinned",
           format("an accelerator is present and {} can be locked: pinned staging buffers are larger",
                  human_bytes(static_cast<double>(*bytes))),
           fix);
  } else if (!gpu && !npu) {
    r.evidence.push_back("nothing here needs locked memory: no accelerator, no RDMA");
  }
  return r;
}

}  // namespace pointsman::doctor
