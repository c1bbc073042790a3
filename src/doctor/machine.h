// SPDX-License-Identifier: Apache-2.0
//
// What the checks see of a machine: files of /proc, /sys, /etc and /usr/local, the output of two vendor tools, the environment.
// A machine is live (this one), or captured: a small folder that was written by `pointsman doctor --capture DIR`, or by hand as
// a test fixture:
//
//   machine.json       {"schema_version": 1, "captured": "...", "model": {...}, "disk": {...}}; every key but the first
//   optional root/...           files under their own names: root/proc/meminfo, root/sys/devices/system/node/node0/cpulist, ...
//   environment        NAME=value lines
//   commands/NAME.txt  what a tool printed (npu-smi_info, nvidia-smi, nvidia-smi_query); commands/NAME.rc: its exit code, 0
//   without topology.xml       hwloc's export, or topology.synthetic one line, such as "numa:2 core:8 pu:2" (builds with hwloc
//   only)
//
// Checks reach files through a Machine only, so a capture is exactly what they have read: a live machine that records notes
// every path on its way.
//
// Not thread-safe: one Machine, one thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/cpu_features.h"
#include "base/fs.h"
#include "base/json.h"
#include "pointsman/status.h"

namespace pointsman::doctor {

// The tools that are asked. Each has a time limit.
enum class Tool { kNpuSmi, kNvidiaSmi, kNvidiaSmiQuery };

struct ToolOutput {
  bool found = false;
  bool timed_out = false;
  int exit_code = 0;
  std::string text;  // stdout and stderr, at most 1 MiB
  bool ok() const { return found && !timed_out && exit_code == 0; }
};

class Machine {
 public:
  // This machine. `environment` is environ. `record`: keep what is read, for write_capture().
  static std::unique_ptr<Machine> live(char** environment, bool record = false);
  // kNotFound, kCorrupt, kUnsupported: what is wrong with the folder.
  static Result<std::unique_ptr<Machine>> captured(FileSystem& fs, const std::string& directory);
  virtual ~Machine() = default;

  virtual bool is_live() const = 0;
  const std::string& name() const { return name_; }

  // `path` is absolute, as on the machine itself; ".." leads nowhere. At most 4 MiB of a file are read.
  std::optional<std::string> read(const std::string& path) const;
  std::optional<int64_t> read_int(const std::string& path) const;
  // Sorted names; empty when there is no such folder. At most 100,000.
  std::vector<std::string> list(const std::string& path) const;
  bool exists(const std::string& path) const;
  bool is_folder(const std::string& path) const;

  // For functions that take a file system and a prefix (memory_limit.h).
  FileSystem& fs() const { return *fs_; }
  const std::string& root() const { return root_; }

  virtual const ToolOutput& run(Tool tool) const = 0;
  virtual CpuFeatures cpu_features() const = 0;

  const std::map<std::string, std::string>& environment() const { return environment_; }
  std::optional<std::string> env(const std::string& name) const;

  // Of machine.json; null on a live machine.
  const Json& notes() const { return notes_; }
  // Contents of topology.xml and topology.synthetic; empty without.
  const std::string& topology_xml() const { return topology_xml_; }
  const std::string& topology_synthetic() const { return topology_synthetic_; }

 protected:
  std::string name_;
  std::string root_;
  FileSystem* fs_ = nullptr;
  std::map<std::string, std::string> environment_;
  Json notes_;
  std::string topology_xml_, topology_synthetic_;
};

// File of commands/ without its suffix: "npu-smi_info".
const char* tool_file_name(Tool tool);
inline constexpr Tool kTools[] = {Tool::kNpuSmi, Tool::kNvidiaSmi, Tool::kNvidiaSmiQuery};

// Runs the first `arguments[0]` that is found in `folders`, for at most `timeout_ms`; then it is killed with its children.
ToolOutput run_tool(const std::vector<std::string>& arguments, const std::vector<std::string>& folders, int timeout_ms);

// Instruction sets as /proc/cpuinfo tells them.
CpuFeatures cpu_features_of_cpuinfo(std::string_view cpuinfo);

// The variables that checks look at, and that a capture keeps: nothing else of an environment leaves the machine.
bool is_relevant_variable(std::string_view name);

// Writes what `machine` (live, recording) has read into `directory`, which must be empty or absent. `notes` becomes
// machine.json.
Status write_capture(const Machine& machine, const std::string& directory, Json notes, const std::string& topology_xml);

}  // namespace pointsman::doctor
