// SPDX-License-Identifier: Apache-2.0
//
// The flags that every command with an engine shares: the same names for every model family. Precedence: flag, environment
// (log_flags.h), default.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/args.h"
#include "cli/log_flags.h"
#include "pointsman/options.h"
#include "pointsman/status.h"

namespace pointsman::cli {

struct EngineFlags {
  std::string model;
  std::string memory, numerics = "bf16", kv_cache = "auto", mla = "absorbed", router_guard = "refuse", policy{kDefaultPolicy}, prefetch = "off", device = "cpu", verify = "full", direct = "auto";
  double read_timeout = 120;
  int64_t threads = 0, context = 0, prefill_chunk = 0, readers = 4, route_noise = -1;
  std::string hot_set;
  std::vector<std::string> place;
  bool no_fallback = false, require_lock = false;
  LogFlags log;

  void declare(ArgParser& args);
  Result<EngineOptions> options() const;
  // After parse(): log flags into effect, options() into `out`. An exit code after a usage error that was printed.
  std::optional<int> resolve(std::string_view command, EngineOptions& out) const;
};

}  // namespace pointsman::cli
