// SPDX-License-Identifier: Apache-2.0
#include <cstdio>

#include "cli/args.h"
#include "cli/command.h"

namespace pointsman::cli {

int report(std::string_view command, const Status& status, bool running) {
  std::fflush(stdout);
  std::fprintf(stderr, "pointsman %.*s: %s\n", static_cast<int>(command.size()), command.data(), status.to_string().c_str());
  switch (status.code()) {
    case StatusCode::kInvalidArgument:
    case StatusCode::kNotFound:
    case StatusCode::kCorrupt:
    case StatusCode::kUnsupported:
    case StatusCode::kBudgetExceeded: return running ? kExitRuntime : kExitRefused;
    default: return kExitRuntime;
  }
}

int usage_error(std::string_view command, const Status& status) {
  return usage_error(command, status.message());
}

int usage_error(std::string_view command, std::string_view message) {
  std::fprintf(stderr, "pointsman %.*s: %.*s\nRun 'pointsman %.*s --help' for the options.\n", static_cast<int>(command.size()),
               command.data(), static_cast<int>(message.size()), message.data(), static_cast<int>(command.size()),
               command.data());
  return kExitUsage;
}

void print_json(const Json& json, bool indent) {
  std::puts(json.dump(indent ? 2 : -1).c_str());
}

}  // namespace pointsman::cli
