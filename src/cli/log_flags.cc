// SPDX-License-Identifier: Apache-2.0
#include "cli/log_flags.h"

#include <algorithm>
#include <cstdio>

#include "base/cpu_features.h"
#include "base/json.h"
#include "base/log.h"
#include "cli/command.h"

extern char** environ;

namespace pointsman::cli {

void LogFlags::declare(ArgParser& args) {
  args.option("--log-level", level, "debug, info, warning (default) or error");
  args.option("--log-format", format, "text (default) or json");
  args.flag("--no-progress", no_progress, "no progress bar");
}

std::optional<int> LogFlags::apply(std::string_view command) const {
  std::string wanted = level;
  if (wanted.empty()) {
    const Result<Environment> env = read_environment(environ);
    if (!env.ok()) return usage_error(command, env.status());
    wanted = env->log_level;
  }
  if (const Status s = set_up_log(wanted, format); !s.ok()) return usage_error(command, s);
  return std::nullopt;
}

Status set_up_log(std::string_view level, std::string_view format) {
  LogLevel least = LogLevel::kWarning;
  if (level == "debug")
    least = LogLevel::kDebug;
  else if (level == "info")
    least = LogLevel::kInfo;
  else if (level == "error")
    least = LogLevel::kError;
  else if (!level.empty() && level != "warning") {
    return error(StatusCode::kInvalidArgument, "log level '{}': expected debug, info, warning or error", level);
  }
  if (format != "text" && format != "json") {
    return error(StatusCode::kInvalidArgument, "log format '{}': expected text or json", format);
  }
  const bool json = format == "json";
  set_log_sink([least, json](LogLevel line_level, std::string_view line) {
    if (line_level < least) return;
    constexpr const char* kNames[] = {"debug", "info", "warning", "error"};
    const char* name = kNames[static_cast<int>(line_level)];
    if (json) {
      Json j = Json::object();
      j.set("level", name);
      j.set("message", line);
      std::fprintf(stderr, "%s\n", j.dump().c_str());
    } else {
      std::fprintf(stderr, "pointsman: %s%s%.*s\n", line_level == LogLevel::kInfo ? "" : name,
                   line_level == LogLevel::kInfo ? "" : ": ", static_cast<int>(line.size()), line.data());
    }
  });
  return ok_status();
}

Result<Environment> read_environment(char** variables) {
  Environment env;
  std::string cache, home;
  for (char** v = variables; *v != nullptr; ++v) {
    const std::string_view text = *v;
    if (text.starts_with("XDG_CACHE_HOME=/")) cache = text.substr(text.find('=') + 1);
    if (text.starts_with("HOME=/")) home = text.substr(text.find('=') + 1);
    if (!text.starts_with("POINTSMAN_")) continue;
    const std::string_view name = text.substr(0, text.find('='));
    const std::string value(text.substr(std::min(text.size(), name.size() + 1)));
    if (name == "POINTSMAN_ISA") {
      env.isa = value;
      if (!value.empty()) {
        if (const Result<Isa> isa = parse_isa(value); !isa.ok()) return isa.status().with_context("POINTSMAN_ISA");
      }
    } else if (name == "POINTSMAN_IO") {
      env.io = value;
      if (value != "auto" && value != "pread" && value != "uring" && !value.empty()) {
        return error(StatusCode::kInvalidArgument, "POINTSMAN_IO={}: expected auto, pread or uring", value);
      }
    } else if (name == "POINTSMAN_LOG_LEVEL") {
      env.log_level = value;
    } else {
      return error(StatusCode::kInvalidArgument,
                   "unknown environment variable {}: known are POINTSMAN_IO, POINTSMAN_ISA, POINTSMAN_LOG_LEVEL", name);
    }
  }
  if (!cache.empty() || !home.empty()) env.cache_dir = (cache.empty() ? home + "/.cache" : cache) + "/pointsman";
  return env;
}

}  // namespace pointsman::cli
