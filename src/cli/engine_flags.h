// SPDX-License-Identifier: Apache-2.0
//
// The flags that every command with an engine shares: the same names for every model family. And the environment, which is
// checked as strictly as flags. Precedence: flag, environment, default.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/args.h"
#include "pointsman/options.h"
#include "pointsman/status.h"

namespace pointsman::cli {

// POINTSMAN_* variables: an unknown one is an error that lists those that exist; a value out of its set too.
struct Environment {
  std::string isa;        // POINTSMAN_ISA: scalar, avx2, avx512
  std::string io;         // POINTSMAN_IO: auto, pread, uring
  std::string log_level;  // POINTSMAN_LOG_LEVEL: debug, info, warning, error
};
Result<Environment> read_environment(char** environ);

// Sends log lines to stderr. Levels: "debug", "info", "warning", "error"; formats: "text", "json" (one object per line).
Status set_up_log(std::string_view level, std::string_view format);

struct LogFlags {
  std::string level, format = "text";
  bool no_progress = false;

  void declare(ArgParser& args);
  // After parse(): puts them into effect. An exit code after a usage error that was printed.
  std::optional<int> apply(std::string_view command) const;
};

struct EngineFlags {
  std::string model;
  std::string memory, numerics = "bf16", router_guard = "refuse", policy = "lru_per_layer", device = "cpu";
  int64_t threads = 0, context = 0, prefill_chunk = 0, readers = 4, route_noise = -1;
  std::vector<std::string> place;
  bool no_fallback = false, require_lock = false;
  LogFlags log;

  void declare(ArgParser& args);
  Result<EngineOptions> options() const;
  // After parse(): log flags into effect, options() into `out`. An exit code after a usage error that was printed.
  std::optional<int> resolve(std::string_view command, EngineOptions& out) const;
};

}  // namespace pointsman::cli
