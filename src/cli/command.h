// SPDX-License-Identifier: Apache-2.0
//
// One subcommand: one file, one line in the table of main.cc. argv[0] is the subcommand's name.
#pragma once

#include <string>
#include <string_view>

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

// Prints "pointsman COMMAND: corrupt: ..." and gives the exit code: 2 for bad arguments, 3 for refused input, 4 for what failed while
// running (`running`: after the model was loaded).
int report(std::string_view command, const Status& status, bool running = false);

}  // namespace pointsman::cli
