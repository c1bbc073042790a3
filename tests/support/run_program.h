// SPDX-License-Identifier: Apache-2.0
//
// Runs the built command-line program as its users do.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"

namespace pointsman::testing {

struct ProgramResult {
  int exit_code = -1;  // 128 + signal when it was killed
  std::string out, err;
};

// `pointsman ARGS...`. `cgroup`: a directory of a cgroup v1 memory group that the program enters before it starts, or "".
// Without the program the test program aborts.
ProgramResult run_program(const std::vector<std::string>& args, const std::string& cgroup = "");

// The last line that starts with '{', parsed; null without one.
Json last_json_line(const std::string& text);

// "1,2,3"
std::string join_ids(const std::vector<int32_t>& ids);

}  // namespace pointsman::testing
