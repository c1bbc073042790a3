// SPDX-License-Identifier: Apache-2.0
#include "doctor/topology.h"

#include <algorithm>
#include <cctype>

#include "base/log.h"
#include "doctor/machine.h"
#include "doctor/text.h"

#ifdef PM_HAVE_HWLOC
#include <hwloc.h>
#endif

namespace pointsman::doctor {
namespace {

constexpr size_t kMaxNodes = 4096;

Topology from_sysfs(const Machine& machine) {
  Topology t{.source = "/sys"};
  const std::string base = "/sys/devices/system/node";
  for (const std::string& name : machine.list(base)) {
    if (!name.starts_with("node") || t.nodes.size() >= kMaxNodes) continue;
    const auto id = parse_int(std::string_view(name).substr(4));
    if (!id || *id < 0) continue;
    NumaNode node{.id = static_cast<int>(*id)};
    const auto cpus = parse_cpu_list(machine.read(base + "/" + name + "/cpulist").value_or(""));
    if (cpus) node.cpus = *cpus;
    // "Node 0 MemTotal:       263837852 kB"
    const std::string meminfo = machine.read(base + "/" + name + "/meminfo").value_or("");
    for (const std::string_view line : lines_of(meminfo)) {
      const size_t at = line.find("MemTotal:");
      if (at == std::string_view::npos) continue;
      const auto kib = leading_int(line.substr(at + 9));
      if (kib && *kib > 0) node.memory_bytes = static_cast<uint64_t>(*kib) * 1024;
    }
    t.nodes.push_back(std::move(node));
  }
  std::sort(t.nodes.begin(), t.nodes.end(), [](const NumaNode& a, const NumaNode& b) { return a.id < b.id; });
  for (const NumaNode& n : t.nodes) t.cpus += static_cast<int>(n.cpus.size());
  std::vector<std::pair<int64_t, int64_t>> cores;
  std::vector<int64_t> packages;
  for (const NumaNode& n : t.nodes) {
    for (const int cpu : n.cpus) {
      const std::string topology = format("/sys/devices/system/cpu/cpu{}/topology", cpu);
      const auto package = machine.read_int(topology + "/physical_package_id"), core = machine.read_int(topology + "/core_id");
      if (!package || !core) continue;
      packages.push_back(*package);
      cores.emplace_back(*package, *core);
    }
  }
  const auto distinct = [](auto& v) {
    std::sort(v.begin(), v.end());
    return static_cast<int>(std::unique(v.begin(), v.end()) - v.begin());
  };
  t.packages = distinct(packages);
  t.cores = distinct(cores);
  if (t.nodes.empty()) t.source = "no /sys/devices/system/node";
  return t;
}

#ifdef PM_HAVE_HWLOC

// hwloc's object of one machine, released with the scope.
class Hwloc {
 public:
  Hwloc() { made_ = hwloc_topology_init(&topology_) == 0; }
  ~Hwloc() {
    if (made_) hwloc_topology_destroy(topology_);
  }
  Hwloc(const Hwloc&) = delete;
  Hwloc& operator=(const Hwloc&) = delete;
  bool made() const { return made_; }
  hwloc_topology_t get() const { return topology_; }

 private:
  hwloc_topology_t topology_ = nullptr;
  bool made_ = false;
};

Topology flatten(hwloc_topology_t topology, std::string source) {
  Topology t{.source = std::move(source)};
  const auto count = [&](hwloc_obj_type_t type) { return std::max(0, hwloc_get_nbobjs_by_type(topology, type)); };
  t.packages = count(HWLOC_OBJ_PACKAGE);
  t.cores = count(HWLOC_OBJ_CORE);
  t.cpus = count(HWLOC_OBJ_PU);
  const int nodes = count(HWLOC_OBJ_NUMANODE);
  for (int i = 0; i < nodes && t.nodes.size() < kMaxNodes; ++i) {
    const hwloc_obj_t object = hwloc_get_obj_by_type(topology, HWLOC_OBJ_NUMANODE, static_cast<unsigned>(i));
    if (object == nullptr) continue;
    NumaNode node{.id = static_cast<int>(object->os_index)};
    if (object->attr != nullptr) node.memory_bytes = object->attr->numanode.local_memory;
    int cpu = -1;
    while (object->cpuset != nullptr && (cpu = hwloc_bitmap_next(object->cpuset, cpu)) >= 0 && node.cpus.size() < 65536) {
      node.cpus.push_back(cpu);
    }
    t.nodes.push_back(std::move(node));
  }
  std::sort(t.nodes.begin(), t.nodes.end(), [](const NumaNode& a, const NumaNode& b) { return a.id < b.id; });
  return t;
}

Topology with_hwloc(const Machine& machine) {
  Hwloc h;
  if (!h.made()) return {.source = "hwloc failed to start"};
  std::string source = "hwloc";
  if (!machine.is_live()) {
    if (!machine.topology_synthetic().empty()) {
      const std::string description(trim(machine.topology_synthetic()));
      // A description of a few bytes can ask for a machine with more processors than there is memory to list them.
      double product = 1;
      for (const std::string_view word : words_of(description)) {
        const auto n = leading_int(word.substr(word.find(':') == std::string_view::npos ? 0 : word.find(':') + 1));
        if (n && *n > 0) product *= static_cast<double>(*n);
      }
      if (product > 65536) return {.source = "the synthetic topology has more than 65536 processors"};
      if (hwloc_topology_set_synthetic(h.get(), description.c_str()) != 0)
        return {.source = "topology.synthetic is not understood by hwloc"};
      source = "hwloc synthetic";
    } else if (!machine.topology_xml().empty()) {
      const std::string& xml = machine.topology_xml();
      if (hwloc_topology_set_xmlbuffer(h.get(), xml.c_str(), static_cast<int>(xml.size() + 1)) != 0) {
        return {.source = "topology.xml is not understood by hwloc"};
      }
      source = "hwloc export";
    }
  }
  // Also what the process may not use: the affinity is compared with the whole machine.
  hwloc_topology_set_flags(h.get(), HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED);
  if (hwloc_topology_load(h.get()) != 0) return {.source = "hwloc could not load the topology"};
  return flatten(h.get(), std::move(source));
}

#endif

}  // namespace

std::vector<int> Topology::nodes_of(const std::vector<int>& some) const {
  std::vector<int> ids;
  for (const NumaNode& node : nodes) {
    const bool touches = std::any_of(some.begin(), some.end(),
                                     [&](int cpu) { return std::binary_search(node.cpus.begin(), node.cpus.end(), cpu); });
    if (touches) ids.push_back(node.id);
  }
  return ids;
}

#ifdef PM_HAVE_HWLOC

bool topology_uses_hwloc() {
  return true;
}

Topology read_topology(const Machine& machine) {
  const bool described = !machine.topology_synthetic().empty() || !machine.topology_xml().empty();
  if (machine.is_live()) {
    Topology files = from_sysfs(machine);  // also for a capture that a build without hwloc will read
    Topology t = with_hwloc(machine);
    return t.known() ? t : files;
  }
  return described ? with_hwloc(machine) : from_sysfs(machine);
}

std::string export_topology() {
  Hwloc h;
  if (!h.made()) return {};
  hwloc_topology_set_flags(h.get(), HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED);
  if (hwloc_topology_load(h.get()) != 0) return {};
  char* xml = nullptr;
  int length = 0;
  if (hwloc_topology_export_xmlbuffer(h.get(), &xml, &length, 0) != 0 || xml == nullptr) return {};
  std::string text(xml, length > 0 ? static_cast<size_t>(length - 1) : 0);
  hwloc_free_xmlbuffer(h.get(), xml);
  return text;
}

#else

bool topology_uses_hwloc() {
  return false;
}

Topology read_topology(const Machine& machine) {
  Topology t = from_sysfs(machine);
  if (!t.known() && (!machine.topology_synthetic().empty() || !machine.topology_xml().empty())) {
    t.source = "described for hwloc, which this build is without";
  }
  return t;
}

std::string export_topology() {
  return {};
}

#endif

}  // namespace pointsman::doctor
