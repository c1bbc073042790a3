// SPDX-License-Identifier: Apache-2.0
//
// data/audit/cann_versions.json as the checks use it: which torch_npu goes with which torch and CANN, which drivers with which
// CANN, what each SoC needs. The file is part of the program; another one can be given with --data.
//
// A row that is absent means "unknown", never "wrong": versions appear between two readings of the public tables.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "doctor/version.h"
#include "pointsman/status.h"

namespace pointsman::doctor {

struct VersionFacts {
  struct TorchRow {
    std::string torch_npu, branch, torch, cann;
  };
  struct DriverRow {
    std::string cann;                        // "8.5.0", "9.1.X"
    std::vector<std::string> hdk, excluded;  // "25.0.X"
  };
  struct HardwareDriver {
    std::string hardware, hdk, cann;
  };
  struct SocRow {
    std::string family;                 // "A2", "A3", "950PR", ...
    std::vector<std::string> prefixes;  // "Ascend910B1"
    std::string min_cann;               // empty: not known
    bool has_mc2_dispatch = true;       // MoE dispatch and combine operators
    std::string note;
  };

  std::string generated;  // date of the tables
  std::vector<TorchRow> torch_rows;
  std::map<std::string, std::vector<std::string>> torch_python;
  std::vector<DriverRow> driver_rows;
  std::vector<HardwareDriver> hardware_drivers;
  std::vector<SocRow> socs;
  std::vector<std::string> extension_releases, extension_cann;  // releases of torch_npu that run on a range of CANNs
  std::string recommended;                                      // one line

  const SocRow* soc(std::string_view soc_name) const;        // "Ascend910B3": the longest prefix
  const SocRow* family(std::string_view family_name) const;  // "A2", any case
  const TorchRow* torch_row(const Version& torch_npu) const;
  // An exact row before a pattern.
  const DriverRow* driver_row(const Version& cann) const;
};

// kCorrupt: no such table, or of a wrong shape, with the key.
Result<VersionFacts> parse_version_facts(std::string_view json);
// The tables of this build.
VersionFacts builtin_version_facts();

}  // namespace pointsman::doctor
