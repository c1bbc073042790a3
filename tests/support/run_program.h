// SPDX-License-Identifier: Apache-2.0
//
// Runs the built command-line program as its users do.
#pragma once

#include <cstdint>
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

// `run` of `num_tokens` greedy tokens after `tokens` on two threads; ids on stdout, statistics as JSON on stderr.
struct GreedyRun {
  std::string model;
  std::string tokens;  // "1,2,3"
  int64_t num_tokens = 0;
  int64_t context_length = 0;
  uint64_t budget_bytes = 0;
  std::vector<std::string> more = {};  // further arguments
};
std::vector<std::string> greedy_run_args(const GreedyRun& run);

// The last line that starts with '{', parsed; null without one.
Json last_json_line(const std::string& text);

// "1,2,3"
std::string join_ids(const std::vector<int32_t>& ids);

}  // namespace pointsman::testing
