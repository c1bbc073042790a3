// SPDX-License-Identifier: Apache-2.0
//
// Is this machine fit? Runs every check over a machine and reports. Builds without the engine; what only the engine can say (a
// model's smallest budget, its lock file) comes in as functions.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"
#include "doctor/check.h"

namespace pointsman::doctor {

struct Report {
  std::string machine;              // "this machine", or the folder of a capture
  std::vector<CheckResult> checks;  // in the order of check_list.inc

  State worst() const;
  int count(State state) const;
};

// `only`: names of checks; empty: all. An unknown name is kInvalidArgument with the list.
Result<Report> run_checks(const Machine& machine, const Options& options, const VersionFacts& facts,
                          const std::vector<std::string>& only = {});

// Schema version 1: docs/formats/cli_json.md.
Json report_json(const Report& report);
// A table; `all` lists checks that do not apply one by one, otherwise they share a line. `color`: ANSI colours.
std::string report_text(const Report& report, bool all, bool color);

}  // namespace pointsman::doctor
