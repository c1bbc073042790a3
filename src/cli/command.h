// SPDX-License-Identifier: Apache-2.0
//
// One subcommand: one file, one line in the table of main.cc. argv[0] is the subcommand's name.
#pragma once

#include <string>
#include <string_view>

#include "base/json.h"
#include "pointsman/status.h"

namespace pointsman::cli {

int run_bench(int argc, char** argv);
int run_chat(int argc, char** argv);
int run_compare(int argc, char** argv);
int run_inspect(int argc, char** argv);
int run_lock(int argc, char** argv);
int run_plan(int argc, char** argv);
int run_run(int argc, char** argv);
int run_trace(int argc, char** argv);
int run_version(int argc, char** argv);

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
