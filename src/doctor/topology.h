// SPDX-License-Identifier: Apache-2.0
//
// Cores and NUMA nodes. Read with hwloc where the build has it (live, from its XML export, or from a synthetic description,
// which is how tests see machines that we do not have); otherwise from /sys/devices/system.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace pointsman::doctor {

class Machine;

struct NumaNode {
  int id = 0;
  std::vector<int> cpus;  // sorted
  uint64_t memory_bytes = 0;
};

struct Topology {
  std::string source;  // "hwloc", "hwloc synthetic", "/sys", or why there is none
  int packages = 0, cores = 0, cpus = 0;
  std::vector<NumaNode> nodes;  // sorted by id; empty: not known

  bool known() const { return !nodes.empty(); }
  // Nodes with at least one of these CPUs.
  std::vector<int> nodes_of(const std::vector<int>& cpus) const;
};

bool topology_uses_hwloc();
Topology read_topology(const Machine& machine);
// hwloc's export of this machine, for a capture; empty without hwloc.
std::string export_topology();

}  // namespace pointsman::doctor
