// SPDX-License-Identifier: Apache-2.0
//
// NUMA nodes and the process's affinity. Weights that live on the other socket are read at a fraction of the bandwidth.
#include <algorithm>

#include "base/log.h"
#include "doctor/check.h"
#include "doctor/text.h"

namespace pointsman::doctor {

CheckResult check_numa(const Context& context) {
  const Machine& machine = context.machine;
  const Topology& t = context.topology;
  const std::string status = machine.read("/proc/self/status").value_or("");
  const auto allowed = parse_cpu_list(field(status, "Cpus_allowed_list:").value_or(""));
  if (!t.known()) return CheckResult::not_applicable("no topology: " + t.source);
  std::vector<int> mine = allowed.value_or(std::vector<int>());
  const std::vector<int> touched = t.nodes_of(mine);
  CheckResult r = CheckResult::ok(format("{}, {}, {}, {} ({}); this process may use {} on node{} {}",
                                         counted(static_cast<int64_t>(t.nodes.size()), "NUMA node"),
                                         counted(t.packages, "package"), counted(t.cores, "core"), counted(t.cpus, "CPU"),
                                         t.source, counted(static_cast<int64_t>(mine.size()), "CPU"),
                                         touched.size() == 1 ? "" : "s", touched.empty() ? "?" : cpu_list(touched)));
  r.data = Json::object();
  Json nodes = Json::array();
  for (const NumaNode& n : t.nodes) {
    Json node = Json::object();
    node.set("id", n.id);
    node.set("cpus", cpu_list(n.cpus));
    node.set("memory_bytes", n.memory_bytes);
    nodes.push_back(std::move(node));
    if (t.nodes.size() > 1 && r.evidence.size() < 16) {
      r.evidence.push_back(format("node {}: {} CPUs ({}), {}", n.id, n.cpus.size(), printable(cpu_list(n.cpus), 60),
                                  human_bytes(static_cast<double>(n.memory_bytes))));
    }
  }
  r.data.set("nodes", std::move(nodes));
  r.data.set("allowed_cpus", cpu_list(mine));
  r.data.set("source", t.source);

  if (mine.size() == 1 && t.cpus > 1) {
    r.warn("numa.one_cpu", format("the process is bound to CPU {} of {}", mine[0], t.cpus),
           "start it without taskset, or give it the CPUs of one node: numactl --cpunodebind=0 --membind=0");
  }
  // Nodes without CPUs are memory only (HBM, CXL): they are no reason to bind.
  if (touched.size() > 1) {
    std::string first = std::to_string(touched[0]);
    r.warn("numa.spans_nodes", format("threads would run on nodes {}, and read weights across sockets", cpu_list(touched)),
           format("one process per node: numactl --cpunodebind={} --membind={} pointsman ...; or --interleave=all when the "
                  "model does not fit one node",
                  first, first));
  }
  if (touched.size() == 1 && context.needs) {
    for (const NumaNode& n : t.nodes) {
      if (n.id == touched[0] && n.memory_bytes > 0 && n.memory_bytes < context.needs->smallest_budget_bytes) {
        r.warn("numa.node_too_small",
               format("node {} has {}, the model needs {}", n.id, human_bytes(static_cast<double>(n.memory_bytes)),
                      human_bytes(static_cast<double>(context.needs->smallest_budget_bytes))),
               "numactl --interleave=all");
      }
    }
  }
  const auto memories = parse_cpu_list(field(status, "Mems_allowed_list:").value_or(""), 4096);
  if (memories && !memories->empty() && !touched.empty()) {
    const bool local = std::any_of(touched.begin(), touched.end(), [&](int id) {
      return std::find(memories->begin(), memories->end(), id) != memories->end();
    });
    if (!local) {
      r.warn(
          "numa.remote_memory",
          format("CPUs on node {}, memory only from node {}: every access is remote", cpu_list(touched), cpu_list(*memories)),
          "set cpuset.cpus and cpuset.mems of the container to the same node");
    }
  }
  if (const auto reclaim = machine.read_int("/proc/sys/vm/zone_reclaim_mode"); reclaim && *reclaim != 0 && t.nodes.size() > 1) {
    r.warn("numa.zone_reclaim",
           format("vm.zone_reclaim_mode is {}: a full node drops cached experts instead of using the other node", *reclaim),
           "sysctl vm.zone_reclaim_mode=0");
  }
  return r;
}

}  // namespace pointsman::doctor
