// SPDX-License-Identifier: Apache-2.0
//
// What there is of Ascend on a machine: driver and firmware, CANN installations, kernel packages, cards as `npu-smi info` shows
// them, and the Python environment with torch and torch_npu. Files and one command; no device library is loaded.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "doctor/version.h"
#include "doctor/version_facts.h"

namespace pointsman::doctor {

class Machine;

// "[7.0.0,7.5.99]" or "[24.1,24.1.]": from, to; an end with a trailing dot means everything that starts so.
using VersionRange = std::pair<std::string, std::string>;
std::vector<VersionRange> parse_version_ranges(std::string_view text);
bool in_ranges(const Version& version, const std::vector<VersionRange>& ranges);

// version.info of driver or firmware.
struct PackageInfo {
  std::string path;                               // the file
  Version version;                                // of the driver package; the firmware's own number ("7.5.0.1.129")
  Version package;                                // package_version
  std::vector<VersionRange> compatible_firmware;  // in the driver's file
  std::vector<VersionRange> compatible_driver;    // in the firmware's file
};
PackageInfo parse_package_info(std::string_view text, std::string path);

struct Npu {
  int npu = 0, chip = 0, phy_id = -1;
  std::string name;    // "910B3", "Ascend910", "310P3"
  std::string health;  // "OK", "Warning", "Alarm", ...
  std::string bus_id;  // "0000:C1:00.0"
  int64_t hbm_used_mb = -1, hbm_total_mb = -1;
};
struct NpuSmi {
  std::string version;
  std::vector<Npu> npus;
  bool has_phy_id_column = false;
};
// Tolerant: lines that are no rows of the table are passed over. At most 4096 devices.
NpuSmi parse_npu_smi(std::string_view text);

struct CannInstall {
  std::string root;          // "/usr/local/Ascend/cann"
  std::string chosen_by;     // "ASCEND_HOME_PATH", "default"
  Version version;           // toolkit
  std::string version_file;  // where the version stands
  Version ops_version;       // of the operator package, when it says so
  bool has_kernel_folder = false;
  std::vector<std::string> kernel_socs;  // folders: "ascend910b", "ascend910_93"
};

struct PythonEnvironment {
  std::string site;   // folder
  Version python;     // "3.11"; empty when the path does not say
  std::string torch;  // "2.9.0+cpu"; empty: not installed
  std::string torch_npu;
  std::string torchvision;
};

struct AscendState {
  bool device_nodes = false;  // /dev/davinci*
  std::optional<PackageInfo> driver, firmware;
  bool npu_smi_found = false, npu_smi_ok = false, npu_smi_timed_out = false;
  std::string npu_smi_error;
  NpuSmi smi;
  std::vector<CannInstall> installs;  // in search order; the first is the one that would be loaded
  std::vector<PythonEnvironment> pythons;

  std::string soc;     // "Ascend910B3"; empty: not known
  std::string family;  // "A2", "A3", "950PR", "950DT", "310P", ...; empty: not known
  std::string soc_source;

  bool has_npu() const { return !smi.npus.empty() || device_nodes; }
  bool present() const { return has_npu() || driver || !installs.empty() || npu_smi_found; }
  const CannInstall* cann() const { return installs.empty() ? nullptr : &installs[0]; }
  // The environment that has torch_npu, else the first with torch.
  const PythonEnvironment* python() const;
};

// `soc`: what the user says, or empty.
AscendState look_at_ascend(const Machine& machine, const VersionFacts& facts, const std::string& soc);
std::vector<PythonEnvironment> find_pythons(const Machine& machine);

// Folder names of the kernel packages that serve a family, the current one first: "ascend950", "ascend910_95".
std::vector<std::string> kernel_folders(std::string_view family);
// The vendor's package name: "910b", "A3", ...
std::string kernel_package_hint(std::string_view family);

}  // namespace pointsman::doctor
