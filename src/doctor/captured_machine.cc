// SPDX-License-Identifier: Apache-2.0
#include <set>

#include "base/log.h"
#include "doctor/machine.h"
#include "doctor/text.h"

namespace pointsman::doctor {
namespace {

constexpr uint64_t kMaxSideFileBytes = uint64_t{4} << 20;

class CapturedMachine final : public Machine {
 public:
  bool is_live() const override { return false; }
  const ToolOutput& run(Tool tool) const override { return outputs_.at(tool); }
  CpuFeatures cpu_features() const override { return cpu_features_of_cpuinfo(read("/proc/cpuinfo").value_or("")); }

  Status load(FileSystem& fs, const std::string& directory) {
    name_ = directory;
    fs_ = &fs;
    root_ = join_path(directory, "root");
    PM_ASSIGN_OR_RETURN(const std::string text, read_text_file(fs, join_path(directory, "machine.json"), kMaxSideFileBytes));
    Result<Json> notes = parse_json(text);
    if (!notes.ok()) return notes.status().with_context(join_path(directory, "machine.json"));
    const Json* version = notes->find("schema_version");
    if (version == nullptr || !version->is_int()) {
      return error(StatusCode::kCorrupt,
                   "{}/machine.json: no \"schema_version\"; expected what 'pointsman doctor --capture' writes", directory);
    }
    if (version->as_int() != 1) {
      return error(StatusCode::kUnsupported, "{}/machine.json: schema_version {}, expected 1; capture the machine again",
                   directory, version->as_int());
    }
    notes_ = std::move(*notes);
    PM_RETURN_IF_ERROR(optional_file(fs, join_path(directory, "topology.xml"), topology_xml_));
    PM_RETURN_IF_ERROR(optional_file(fs, join_path(directory, "topology.synthetic"), topology_synthetic_));
    std::string variables;
    PM_RETURN_IF_ERROR(optional_file(fs, join_path(directory, "environment"), variables));
    for (const std::string_view line : lines_of(variables)) {
      const size_t equals = line.find('=');
      if (equals == std::string_view::npos || equals == 0) continue;
      environment_[std::string(line.substr(0, equals))] = std::string(line.substr(equals + 1));
    }
    for (const Tool tool : kTools) {
      ToolOutput& out = outputs_[tool];
      const std::string stem = join_path(directory, std::string("commands/") + tool_file_name(tool));
      out.found = fs.stat(stem + ".txt").ok();
      PM_RETURN_IF_ERROR(optional_file(fs, stem + ".txt", out.text));
      std::string rc;
      PM_RETURN_IF_ERROR(optional_file(fs, stem + ".rc", rc));
      if (trim(rc) == "timeout") {
        out.timed_out = true;
      } else {
        out.exit_code = static_cast<int>(leading_int(rc).value_or(0));
      }
    }
    return ok_status();
  }

 private:
  static Status optional_file(FileSystem& fs, const std::string& path, std::string& out) {
    if (!fs.stat(path).ok()) return ok_status();
    PM_ASSIGN_OR_RETURN(out, read_text_file(fs, path, kMaxSideFileBytes));
    return ok_status();
  }

  std::map<Tool, ToolOutput> outputs_;
};

}  // namespace

Result<std::unique_ptr<Machine>> Machine::captured(FileSystem& fs, const std::string& directory) {
  auto machine = std::make_unique<CapturedMachine>();
  PM_RETURN_IF_ERROR(machine->load(fs, directory));
  return std::unique_ptr<Machine>(std::move(machine));
}

}  // namespace pointsman::doctor
