// SPDX-License-Identifier: Apache-2.0
//
// What every command shares: flags of the log, and the environment, which is checked as strictly as flags.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "cli/args.h"
#include "pointsman/status.h"

namespace pointsman::cli {

// POINTSMAN_* variables: an unknown one is an error that lists those that exist; a value out of its set too.
struct Environment {
  std::string isa;        // POINTSMAN_ISA: scalar, avx2, avx512
  std::string io;         // POINTSMAN_IO: auto, pread, uring
  std::string log_level;  // POINTSMAN_LOG_LEVEL: debug, info, warning, error
  // XDG_CACHE_HOME/pointsman, else HOME/.cache/pointsman; empty when neither is an absolute path.
  std::string cache_dir;
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

}  // namespace pointsman::cli
