// SPDX-License-Identifier: Apache-2.0
//
// The flags that every command with an engine shares: the same names for every model family.
#pragma once

#include <string>
#include <vector>

#include "cli/args.h"
#include "pointsman/options.h"
#include "pointsman/status.h"

namespace pointsman::cli {

struct EngineFlags {
  std::string model;
  std::string memory, numerics = "bf16", router_guard = "refuse", policy = "lru_per_layer", device = "cpu";
  int64_t threads = 0, context = 0, prefill_chunk = 0, readers = 4, route_noise = -1;
  std::vector<std::string> place;
  bool no_fallback = false, require_lock = false;

  void declare(ArgParser& args);
  Result<EngineOptions> options() const;
};

// POINTSMAN_* variables, checked: an unknown one is an error that lists those that exist.
struct Environment {
  std::string isa;        // POINTSMAN_ISA
  std::string io;         // POINTSMAN_IO
  std::string log_level;  // POINTSMAN_LOG_LEVEL
};
Result<Environment> read_environment(char** environ);

}  // namespace pointsman::cli
