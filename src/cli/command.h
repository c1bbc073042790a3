// SPDX-License-Identifier: Apache-2.0
//
// One subcommand: one file, one line in command_list.inc. argv[0] is the subcommand's name.
#pragma once

#include <string>
#include <string_view>

#include "base/json.h"
#include "pointsman/status.h"

namespace pointsman::cli {

#define PM_TOOL_COMMAND(name, summary) int run_##name(int argc, char** argv);
#define PM_ENGINE_COMMAND(name, summary) int run_##name(int argc, char** argv);
#include "cli/command_list.inc"
#undef PM_TOOL_COMMAND
#undef PM_ENGINE_COMMAND

// Prints "pointsman COMMAND: corrupt: ..." to stderr and gives the exit code. 3, refused: the model, its config, the budget or
// the request cannot be - unless `running` (a first token was made), when every failure is 4. Failures of the system are
// always 4.
int report(std::string_view command, const Status& status, bool running = false);
// The same for flags and environment: 2, with a pointer to --help.
int usage_error(std::string_view command, const Status& status);
int usage_error(std::string_view command, std::string_view message);

// One line of JSON, or an indented object, to stdout.
void print_json(const Json& json, bool indent = true);

}  // namespace pointsman::cli
