// SPDX-License-Identifier: Apache-2.0
#include "doctor/rank_table.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/json.h"
#include "base/log.h"
#include "doctor/text.h"

namespace pointsman::doctor {
namespace {

constexpr size_t kMaxRanks = 262'144;
constexpr size_t kMaxFaults = 64;
constexpr int64_t kLargestId = 1'000'000'000;

// Numbers are strings in version 1.0 ("device_id": "3") and numbers in 2.0.
std::optional<int64_t> number(const Json& object, std::string_view key) {
  const Json* v = object.find(key);
  if (v == nullptr) return std::nullopt;
  if (v->is_int()) return v->as_int();
  if (v->is_string()) return parse_int(trim(v->as_string()));
  return std::nullopt;
}

std::string text(const Json& object, std::string_view key) {
  const Json* v = object.find(key);
  return v != nullptr && v->is_string() ? printable(v->as_string(), 80) : "";
}

class Reader {
 public:
  RankTable table;

  void fault(std::string code, std::string what, std::string fix) {
    if (table.faults.size() < kMaxFaults) table.faults.push_back({std::move(code), std::move(what), std::move(fix)});
  }

  void add(RankPlace place) {
    if (table.ranks.size() < kMaxRanks) {
      table.ranks.push_back(std::move(place));
    } else if (!too_many_) {
      too_many_ = true;
      fault("too_many_ranks", format("more than {} ranks; the rest was not read", kMaxRanks), "split the table");
    }
  }

  void read_device(const Json& device, const std::string& server) {
    const auto rank = number(device, "rank_id"), id = number(device, "device_id");
    if (!rank || *rank < 0 || *rank > kLargestId) {
      fault("no_rank_id", format("a device of server {} has no \"rank_id\", or one that is no number", server),
            "give every device a rank from 0");
      return;
    }
    if (!id || *id < 0 || *id > kLargestId)
      fault("no_device_id", format("rank {} has no \"device_id\"", *rank), "give every rank the device it runs on");
    add({*rank, id && *id >= 0 && *id <= kLargestId ? *id : -1, server, text(device, "device_ip")});
  }

  void read_servers(const Json::Array& servers) {
    std::set<std::string> names;
    for (const Json& server : servers) {
      std::string name = text(server, "server_id");
      if (name.empty()) name = format("#{}", table.servers.size());
      if (!names.insert(name).second)
        fault("duplicate_server", format("server {} is listed twice", name), "merge its devices into one entry");
      if (table.servers.size() < kMaxRanks) table.servers.push_back(name);
      const Json* devices = server.find("device");
      if (devices == nullptr || !devices->is_array()) {
        fault("no_devices", format("server {} has no list \"device\"", name), "list its devices");
        continue;
      }
      for (const Json& device : devices->as_array()) read_device(device, name);
    }
  }

  // What any table must satisfy.
  void check() {
    std::stable_sort(table.ranks.begin(), table.ranks.end(),
                     [](const RankPlace& a, const RankPlace& b) { return a.rank < b.rank; });
    std::map<std::pair<std::string, int64_t>, int64_t> by_device;
    std::map<std::string, int64_t> by_ip;
    int64_t expected = 0;
    bool gap = false;
    for (size_t i = 0; i < table.ranks.size(); ++i) {
      const RankPlace& p = table.ranks[i];
      if (i > 0 && p.rank == table.ranks[i - 1].rank) {
        fault("duplicate_rank", format("rank {} is given twice", p.rank), "number the devices 0 to n-1, each once");
      } else if (p.rank != expected && !gap) {
        gap = true;
        fault("rank_gap", format("rank {} is missing: the next one is {}", expected, p.rank),
              "number the devices 0 to n-1 without a gap");
        expected = p.rank + 1;
      } else {
        expected = p.rank + 1;
      }
      if (p.device >= 0) {
        const auto [it, fresh] = by_device.try_emplace({p.server, p.device}, p.rank);
        if (!fresh) {
          fault("duplicate_device",
                format("device {}{} serves rank {} and rank {}", p.device, p.server.empty() ? "" : " of " + p.server,
                       it->second, p.rank),
                "give every rank a device of its own");
        }
      }
      if (!p.device_ip.empty()) {
        const auto [it, fresh] = by_ip.try_emplace(p.device_ip, p.rank);
        if (!fresh)
          fault("duplicate_ip", format("address {} belongs to rank {} and rank {}", p.device_ip, it->second, p.rank),
                "hccn_tool -i ID -ip -g shows each device's address");
      }
    }
    if (table.servers.size() > 1 && table.kind != "hostfile") {
      std::map<std::string, size_t> per_server;
      for (const RankPlace& p : table.ranks) ++per_server[p.server];
      const auto [least, most] = std::minmax_element(per_server.begin(), per_server.end(),
                                                     [](const auto& a, const auto& b) { return a.second < b.second; });
      if (!per_server.empty() && least->second != most->second) {
        fault("uneven_servers",
              format("server {} has {} devices, server {} has {}", least->first, least->second, most->first, most->second),
              "HCCL expects the same number of devices on every server of a group");
      }
      for (const RankPlace& p : table.ranks) {
        if (!p.device_ip.empty()) continue;
        fault("no_device_ip", format("several servers, and rank {} has no \"device_ip\"", p.rank),
              "hccn_tool -i ID -ip -g shows it");
        break;
      }
    }
    if (table.ranks.empty()) fault("no_ranks", "the table has no ranks", "list at least one device");
  }

 private:
  bool too_many_ = false;
};

}  // namespace

Result<RankTable> parse_rank_table(std::string_view json) {
  PM_ASSIGN_OR_RETURN(const Json root, parse_json(json, {.max_depth = 32}));
  if (!root.is_object()) return {error(StatusCode::kCorrupt, "a rank table is an object, found {}", root.type_name())};
  Reader reader;
  const std::string version = text(root, "version");
  reader.table.kind = "rank table " + (version.empty() ? "without a version" : version);
  if (const Json* ranks = root.find("rank_list"); ranks != nullptr && ranks->is_array()) {
    for (const Json& r : ranks->as_array()) reader.read_device(r, "");
    const auto count = number(root, "rank_count");
    if (count && *count != static_cast<int64_t>(ranks->as_array().size())) {
      reader.fault("count", format("\"rank_count\" is {}, the list has {}", *count, ranks->as_array().size()),
                   "correct the count");
    }
  } else if (const Json* servers = root.find("server_list"); servers != nullptr && servers->is_array()) {
    reader.read_servers(servers->as_array());
    const auto count = number(root, "server_count");
    if (count && *count != static_cast<int64_t>(servers->as_array().size())) {
      reader.fault("count", format("\"server_count\" is {}, the list has {}", *count, servers->as_array().size()),
                   "correct the count");
    }
  } else {
    return {error(StatusCode::kUnsupported,
                  "neither \"server_list\" (version 1.x) nor \"rank_list\" (2.0): no rank table that is known here")};
  }
  const std::string status = text(root, "status");
  if (!status.empty() && status != "completed") {
    reader.fault("not_completed", format("\"status\" is \"{}\": whoever writes the table has not finished", status),
                 "wait until it is \"completed\"");
  }
  reader.check();
  return std::move(reader.table);
}

Result<RankTable> parse_hostfile(std::string_view content) {
  Reader reader;
  reader.table.kind = "hostfile";
  std::set<std::string> seen;
  int64_t rank = 0;
  size_t line_number = 0;
  for (std::string_view line : lines_of(content)) {
    ++line_number;
    line = trim(line.substr(0, line.find('#')));
    if (line.empty()) continue;
    const auto words = words_of(line);
    std::string host = printable(words[0], 120);
    int64_t slots = 1;
    // "host:8" as MPICH writes it; an IPv6 address has more than one colon.
    const size_t colon = host.find(':');
    if (colon != std::string::npos && colon == host.rfind(':')) {
      if (const auto n = parse_int(host.substr(colon + 1))) {
        slots = *n;
        host.resize(colon);
      }
    }
    for (size_t i = 1; i < words.size(); ++i) {
      for (const std::string_view key : {std::string_view("slots="), std::string_view("max_slots=")}) {
        if (!words[i].starts_with(key)) continue;
        const auto n = parse_int(words[i].substr(key.size()));
        if (!n) {
          reader.fault("slots", format("line {}: \"{}\" is no number of slots", line_number, printable(words[i], 40)),
                       "write slots=8");
        } else if (key == "slots=") {
          slots = *n;
        }
      }
    }
    if (slots < 0 || slots > 4096) {
      reader.fault("slots", format("line {}: {} slots, expected 0 to 4096", line_number, slots), "write slots=8");
      continue;
    }
    if (!seen.insert(host).second) {
      reader.fault("duplicate_server",
                   format("line {}: host {} is listed twice, its devices would serve two ranks", line_number, host),
                   "merge the lines");
    }
    if (reader.table.servers.size() < kMaxRanks) reader.table.servers.push_back(host);
    for (int64_t device = 0; device < slots; ++device) reader.add({rank++, device, host, ""});
    if (line_number > 1'000'000 || reader.table.ranks.size() >= kMaxRanks) break;
  }
  reader.check();
  return std::move(reader.table);
}

}  // namespace pointsman::doctor
