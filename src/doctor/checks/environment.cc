// SPDX-License-Identifier: Apache-2.0
//
// Variables that are set and do nothing, or something else than meant: CUDA's on a machine of NPUs, names that no library
// reads, values outside their range.
#include <algorithm>
#include <string_view>

#include "base/edit_distance.h"
#include "base/log.h"
#include "doctor/check.h"
#include "doctor/text.h"

namespace pointsman::doctor {
namespace {

// What HCCL, or torch_npu on its behalf, reads.
constexpr std::string_view kHcclNames[] = {"HCCL_ALGO",
                                           "HCCL_AIV_ENABLE",
                                           "HCCL_BUFFSIZE",
                                           "HCCL_CONNECT_TIMEOUT",
                                           "HCCL_DEBUG_CONFIG",
                                           "HCCL_DETERMINISTIC",
                                           "HCCL_DFS_CONFIG",
                                           "HCCL_DIAGNOSE_ENABLE",
                                           "HCCL_ENTRY_LOG_ENABLE",
                                           "HCCL_EVENT_TIMEOUT",
                                           "HCCL_EXEC_TIMEOUT",
                                           "HCCL_HOST_SOCKET_PORT_RANGE",
                                           "HCCL_IF_BASE_PORT",
                                           "HCCL_IF_IP",
                                           "HCCL_INTER_HCCS_DISABLE",
                                           "HCCL_INTRA_PCIE_ENABLE",
                                           "HCCL_INTRA_ROCE_ENABLE",
                                           "HCCL_LOGIC_SUPERPOD_ID",
                                           "HCCL_MULTI_QP_THRESHOLD",
                                           "HCCL_NPU_SOCKET_PORT_RANGE",
                                           "HCCL_OP_EXPANSION_MODE",
                                           "HCCL_OP_RETRY_ENABLE",
                                           "HCCL_OP_RETRY_PARAMS",
                                           "HCCL_RDMA_PCIE_DIRECT_POST_NOSTRICT",
                                           "HCCL_RDMA_QPS_PER_CONNECTION",
                                           "HCCL_RDMA_QP_PORT_CONFIG_PATH",
                                           "HCCL_RDMA_RETRY_CNT",
                                           "HCCL_RDMA_SL",
                                           "HCCL_RDMA_TC",
                                           "HCCL_RDMA_TIMEOUT",
                                           "HCCL_SOCKET_FAMILY",
                                           "HCCL_SOCKET_IFNAME",
                                           "HCCL_SO_PATH",
                                           "HCCL_WHITELIST_DISABLE",
                                           "HCCL_WHITELIST_FILE"};
// Names that circulate in guides and that no source reads.
constexpr std::string_view kInvented[] = {"ASCEND_GRAPH_OPTIMIZE_LEVEL"};

constexpr int64_t kBasePort = 60000, kBasePorts = 32;

struct Findings {
  const Context& context;
  CheckResult& r;

  void visible_devices() {
    const AscendState& a = context.ascend;
    const bool nvidia = context.machine.exists("/proc/driver/nvidia/version");
    const auto cuda = context.machine.env("CUDA_VISIBLE_DEVICES"), ascend = context.machine.env("ASCEND_RT_VISIBLE_DEVICES");
    if (cuda && a.has_npu() && !nvidia) {
      const std::string what = format("CUDA_VISIBLE_DEVICES={} has no effect on NPUs", printable(*cuda, 60));
      if (ascend) {
        r.warn("environment.cuda_visible_devices_on_npu", what + "; ASCEND_RT_VISIBLE_DEVICES counts",
               "unset CUDA_VISIBLE_DEVICES");
      } else {
        r.fail("environment.cuda_visible_devices_on_npu", what + ": every process sees all devices",
               format("export ASCEND_RT_VISIBLE_DEVICES={}", printable(*cuda, 60)));
      }
    }
    if (ascend) ascend_list(*ascend, a.smi.npus.size());
  }

  void ascend_list(const std::string& value, size_t devices) {
    const std::string shown = printable(value, 60);
    int64_t before = -1;
    for (const std::string_view piece : split(value, ',')) {
      const auto id = parse_int(piece);
      if (!id || *id < 0) {
        r.fail("environment.visible_devices_format",
               format("ASCEND_RT_VISIBLE_DEVICES={}: expected ids with commas and without blanks", shown),
               "export ASCEND_RT_VISIBLE_DEVICES=0,1,2,3");
        return;
      }
      if (*id <= before) {
        r.fail("environment.visible_devices_order",
               format("ASCEND_RT_VISIBLE_DEVICES={}: ids must ascend; what follows {} is ignored or refused", shown, before),
               "sort the ids; choose ranks by another variable");
        return;
      }
      if (devices > 0 && *id >= static_cast<int64_t>(devices)) {
        r.fail("environment.visible_devices_range",
               format("ASCEND_RT_VISIBLE_DEVICES={}: there are {} devices, 0 to {}", shown, devices, devices - 1),
               "name devices that exist");
        return;
      }
      before = *id;
    }
  }

  void names() {
    size_t unknown = 0;
    for (const auto& [name, value] : context.machine.environment()) {
      const bool invented = std::find(std::begin(kInvented), std::end(kInvented), name) != std::end(kInvented);
      const bool is_hccl =
          name.starts_with("HCCL_") && std::find(std::begin(kHcclNames), std::end(kHcclNames), name) == std::end(kHcclNames);
      if ((!invented && !is_hccl) || ++unknown > 10) continue;
      std::string hint = "remove it";
      if (is_hccl) {
        const auto nearest =
            std::min_element(std::begin(kHcclNames), std::end(kHcclNames), [&](std::string_view a, std::string_view b) {
              return edit_distance(a, name.substr(0, 64)) < edit_distance(b, name.substr(0, 64));
            });
        if (edit_distance(*nearest, name.substr(0, 64)) <= 4) hint = format("did you mean {}?", *nearest);
      }
      r.warn("environment.unknown_variable",
             format("{} is read by no version of the libraries that is known here", printable(name, 64)), hint);
    }
  }

  void one_of(const char* name, std::initializer_list<std::string_view> values) {
    const auto value = context.machine.env(name);
    if (!value || std::find(values.begin(), values.end(), lower(*value)) != values.end()) return;
    std::string list;
    for (const std::string_view v : values) list += format("{}{}", list.empty() ? "" : ", ", v);
    // Newer libraries may know more values than are known here.
    r.warn("environment.value", format("{}={}: expected one of {}", name, printable(*value, 60), list), "correct the value");
  }

  void in_range(const char* name, int64_t low, int64_t high) {
    const auto value = context.machine.env(name);
    if (!value) return;
    const auto n = parse_int(trim(*value));
    if (n && *n >= low && *n <= high) return;
    r.fail("environment.value", format("{}={}: expected {} to {}", name, printable(*value, 60), low, high),
           "correct the value");
  }

  // "eth0,eth1", "=eth0", "^lo": exact names, prefixes, or exclusions.
  void interface(const char* name) {
    const auto value = context.machine.env(name);
    const std::vector<std::string> have = context.machine.list("/sys/class/net");
    if (!value || have.empty() || value->starts_with('^')) return;
    const bool exact = value->starts_with('=');
    for (const std::string_view wanted : split(std::string_view(*value).substr(exact ? 1 : 0), ',')) {
      if (wanted.empty()) continue;
      const std::string_view device = wanted.substr(0, wanted.find(':'));
      const bool found = std::any_of(have.begin(), have.end(),
                                     [&](const std::string& h) { return exact ? h == device : h.starts_with(device); });
      if (found) return;
    }
    std::string list;
    for (const std::string& h : have) {
      if (list.size() < 160) list += (list.empty() ? "" : ", ") + printable(h, 32);
    }
    r.fail("environment.interface_missing", format("{}={}: no such interface; there are {}", name, printable(*value, 60), list),
           "name the interface that connects the hosts, the same on every host");
  }

  void ports() {
    if (!context.ascend.has_npu()) return;
    const auto configured = context.machine.env("HCCL_IF_BASE_PORT");
    const auto base = configured ? parse_int(trim(*configured)) : std::optional<int64_t>(kBasePort);
    if (!base || *base < 1024 || *base > 65520 - kBasePorts) {
      r.fail("environment.value",
             format("HCCL_IF_BASE_PORT={}: expected 1024 to {}", printable(configured.value_or(""), 40), 65520 - kBasePorts),
             "correct the value");
      return;
    }
    const auto range = context.machine.read("/proc/sys/net/ipv4/ip_local_port_range");
    const auto words = range ? words_of(trim(*range)) : std::vector<std::string_view>();
    const auto low = words.size() == 2 ? parse_int(words[0]) : std::nullopt,
               high = words.size() == 2 ? parse_int(words[1]) : std::nullopt;
    if (!low || !high || *high < *base || *low > *base + kBasePorts - 1) return;
    const auto reserved = parse_cpu_list(context.machine.read("/proc/sys/net/ipv4/ip_local_reserved_ports").value_or(""));
    for (int64_t port = *base; port < *base + kBasePorts; ++port) {
      const bool is_free = !reserved || std::find(reserved->begin(), reserved->end(), port) == reserved->end();
      if (!is_free || port < *low || port > *high) continue;
      r.warn("environment.ports_not_reserved",
             format("HCCL listens on ports {} to {}; the kernel hands out {} to {} to anybody, {} among them", *base,
                    *base + kBasePorts - 1, *low, *high, port),
             format("sysctl net.ipv4.ip_local_reserved_ports={}-{}", *base, *base + kBasePorts - 1));
      return;
    }
  }

  void nccl() {
    const bool nvidia = context.machine.exists("/proc/driver/nvidia/version");
    if (const auto size = context.machine.env("NCCL_BUFFSIZE")) {
      const auto n = parse_int(trim(*size));
      if (n && *n < 65536)
        r.warn("environment.nccl_buffsize_unit", format("NCCL_BUFFSIZE={} is in bytes (HCCL_BUFFSIZE is in MB)", *n),
               format("export NCCL_BUFFSIZE={}", std::max<int64_t>(*n, 1) * 1048576));
    }
    if (nvidia || !context.ascend.has_npu()) return;
    std::string ignored;
    for (const auto& [name, value] : context.machine.environment()) {
      if (name.starts_with("NCCL_") && ignored.size() < 160) ignored += (ignored.empty() ? "" : ", ") + printable(name, 48);
    }
    if (!ignored.empty())
      r.warn("environment.nccl_on_npu", ignored + ": read by NCCL, which does not run here", "set the HCCL_ counterparts");
  }
};

}  // namespace

CheckResult check_environment(const Context& context) {
  CheckResult r = CheckResult::ok("");
  size_t seen = 0;
  for (const auto& [name, value] : context.machine.environment()) {
    for (const char* prefix : {"ASCEND", "HCCL_", "NCCL_", "CUDA_", "TORCH_HCCL", "TORCH_NCCL"})
      seen += name.starts_with(prefix);
  }
  if (seen == 0) return CheckResult::not_applicable("no ASCEND_*, HCCL_*, NCCL_*, CUDA_* variable");
  r.summary = counted(static_cast<int64_t>(seen), "variable") + " of CUDA, NCCL, Ascend and HCCL";
  Findings f{context, r};
  f.visible_devices();
  f.names();
  f.one_of("HCCL_DETERMINISTIC", {"false", "true", "strict"});
  f.one_of("HCCL_OP_EXPANSION_MODE", {"host", "ai_cpu", "aicpu_ts", "aiv", "ccu_ms", "ccu_sched"});
  f.one_of("HCCL_SOCKET_FAMILY", {"af_inet", "af_inet6"});
  f.in_range("HCCL_RDMA_TIMEOUT", 5, 24);
  f.in_range("HCCL_RDMA_RETRY_CNT", 1, 7);
  f.interface("HCCL_SOCKET_IFNAME");
  f.interface("NCCL_SOCKET_IFNAME");
  f.interface("GLOO_SOCKET_IFNAME");
  f.ports();
  f.nccl();
  if (context.machine.env("HCCL_OP_EXPANSION_MODE").value_or("") == "CCU_MS" && context.ascend.family == "950PR") {
    r.fail("environment.value", "HCCL_OP_EXPANSION_MODE=CCU_MS: the 950PR does not have it", "use CCU_SCHED or leave it unset");
  }
  if (context.machine.env("ASCEND_LAUNCH_BLOCKING").value_or("0") == "1") {
    r.warn("environment.launch_blocking",
           "ASCEND_LAUNCH_BLOCKING=1: every operator waits for the device, and graph capture is excluded",
           "unset it outside of debugging");
  }
  if (context.machine.env("CUDA_LAUNCH_BLOCKING").value_or("0") == "1") {
    r.warn("environment.launch_blocking", "CUDA_LAUNCH_BLOCKING=1: every kernel waits for the device",
           "unset it outside of debugging");
  }
  return r;
}

}  // namespace pointsman::doctor
