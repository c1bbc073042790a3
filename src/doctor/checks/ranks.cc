// SPDX-License-Identifier: Apache-2.0
//
// Rank, device, NUMA node: from a rank table or a hostfile, and the machine's PCI devices.
#include <algorithm>
#include <map>

#include "base/log.h"
#include "doctor/check.h"
#include "doctor/rank_table.h"
#include "doctor/text.h"

namespace pointsman::doctor {
namespace {

constexpr uint64_t kMaxTableBytes = uint64_t{16} << 20;

struct Device {
  std::string bus_id;
  int64_t node = -1;
};

// "00000000:18:00.0" (nvidia-smi) and "0000:C1:00.0" (npu-smi) -> the name in /sys/bus/pci/devices.
std::string pci_name(std::string_view bus_id) {
  std::string name = lower(trim(bus_id));
  const size_t colon = name.find(':');
  if (colon != std::string::npos && colon > 4) name = name.substr(colon - 4);
  return name;
}

// Logical device ids of this machine, with their NUMA nodes.
std::map<int64_t, Device> devices_of(const Context& context) {
  std::map<int64_t, Device> devices;
  for (const Npu& npu : context.ascend.smi.npus) {
    const int64_t id = npu.phy_id >= 0 ? npu.phy_id : static_cast<int64_t>(devices.size());
    devices[id] = {pci_name(npu.bus_id), -1};
  }
  if (devices.empty()) {
    const ToolOutput& query = context.machine.run(Tool::kNvidiaSmiQuery);
    for (const std::string_view line : lines_of(query.ok() ? std::string_view(query.text) : std::string_view())) {
      const auto cells = split(line, ',');
      const auto id = cells.size() >= 5 ? parse_int(trim(cells[0])) : std::nullopt;
      if (id && *id >= 0 && devices.size() < 4096) devices[*id] = {pci_name(cells[4]), -1};
    }
  }
  for (auto& [id, device] : devices) {
    const auto node = context.machine.read_int("/sys/bus/pci/devices/" + device.bus_id + "/numa_node");
    // The kernel says -1 on machines with one node.
    if (node) device.node = *node < 0 && context.topology.nodes.size() == 1 ? context.topology.nodes[0].id : *node;
  }
  return devices;
}

// The server of the table that is this machine: the only one, or the one with its name.
std::string local_server(const Context& context, const RankTable& table) {
  if (table.servers.size() == 1) return table.servers[0];
  const std::string host(trim(context.machine.read("/proc/sys/kernel/hostname").value_or("")));
  for (const std::string& s : table.servers) {
    if (!host.empty() && (s == host || s.starts_with(host + "."))) return s;
    if (const auto ip = context.machine.env("HCCL_IF_IP"); ip && s == *ip) return s;
  }
  return {};
}

std::string node_text(int64_t node, const Topology& t) {
  if (node < 0) return "node ?";
  for (const NumaNode& n : t.nodes) {
    if (n.id == node) return format("node {} (CPUs {})", node, printable(cpu_list(n.cpus), 40));
  }
  return format("node {}", node);
}

}  // namespace

CheckResult check_ranks(const Context& context) {
  const Options& o = context.options;
  const bool is_hostfile = !o.hostfile.empty();
  std::string path = is_hostfile ? o.hostfile : o.rank_table;
  std::optional<std::string> text;
  if (!path.empty()) {
    // Named by the user: a file of the machine that runs the doctor.
    Result<std::string> content = read_text_file(FileSystem::real(), path, kMaxTableBytes);
    if (content.ok()) text = std::move(*content);
    if (!content.ok()) {
      CheckResult r = CheckResult::ok(printable(path));
      r.fail("ranks.unreadable", content.status().message(), "give a readable file");
      return r;
    }
  } else if (const auto variable = context.machine.env("RANK_TABLE_FILE")) {
    path = *variable;
    text = context.machine.read(path);
    if (!text) {
      CheckResult r = CheckResult::ok("RANK_TABLE_FILE=" + printable(path));
      r.fail("ranks.unreadable", format("RANK_TABLE_FILE names {}, which cannot be read", printable(path)),
             "correct the path (absolute), or unset the variable");
      return r;
    }
  } else {
    return CheckResult::not_applicable("no --rank-table, --hostfile or RANK_TABLE_FILE");
  }
  const Result<RankTable> parsed = is_hostfile ? parse_hostfile(*text) : parse_rank_table(*text);
  CheckResult r = CheckResult::ok(printable(path));
  if (!parsed.ok()) {
    r.fail("ranks.not_a_table", parsed.status().message(), "write the table anew");
    return r;
  }
  const RankTable& table = *parsed;
  r.summary = format("{} on {}, {} ({})", counted(static_cast<int64_t>(table.ranks.size()), "rank"),
                     counted(static_cast<int64_t>(std::max<size_t>(1, table.servers.size())), "server"), table.kind,
                     printable(path, 160));
  for (const RankFault& f : table.faults) {
    if (r.problems.size() < 16) r.fail("ranks." + f.code, f.what, f.fix);
  }
  const std::map<int64_t, Device> devices = devices_of(context);
  const std::string here = local_server(context, table);
  Json map = Json::array();
  std::map<int64_t, size_t> per_node;
  int64_t before = -1;
  bool in_order = true;
  size_t local = 0;
  for (const RankPlace& p : table.ranks) {
    const bool is_here = p.server == here || table.servers.empty();
    const auto device = is_here ? devices.find(p.device) : devices.end();
    if (is_here && !devices.empty() && device == devices.end() && r.problems.size() < 16) {
      r.fail("ranks.no_such_device",
             format("rank {} is on device {}; this machine has {} devices, up to {}", p.rank, p.device, devices.size(),
                    devices.rbegin()->first),
             "use devices that exist");
    }
    const int64_t node = device != devices.end() ? device->second.node : -1;
    if (is_here) {
      ++local;
      if (node >= 0) ++per_node[node];
      in_order = in_order && p.device > before;
      before = p.device;
    }
    if (map.as_array().size() < 1024) {
      Json row = Json::object();
      row.set("rank", p.rank);
      row.set("server", p.server);
      row.set("device", p.device);
      row.set("bus_id", device != devices.end() ? device->second.bus_id : "");
      row.set("numa_node", node);
      map.push_back(std::move(row));
    }
    if (device != devices.end() && r.evidence.size() < 16) {
      r.evidence.push_back(
          format("rank {}: device {}, {}, {}", p.rank, p.device, device->second.bus_id, node_text(node, context.topology)));
    }
  }
  r.data = Json::object();
  r.data.set("map", std::move(map));
  r.data.set("local_server", here);
  if (!in_order) r.evidence.push_back("local ranks are not in the order of the devices: LOCAL_RANK is not the device id here");
  if (local > 1 && context.topology.nodes.size() > 1 && !per_node.empty()) {
    r.evidence.push_back(
        "bind each rank to the CPUs of its device's node: for speed. No source shows that crossing nodes makes HCCL hang");
  }
  return r;
}

}  // namespace pointsman::doctor
