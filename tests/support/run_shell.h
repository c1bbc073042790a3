// SPDX-License-Identifier: Apache-2.0
//
// Runs a line of sh in which $P is the built program: for tests of pipes, input, environment and signals. See run_program.h for
// plain runs.
#pragma once

#include <sys/wait.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include "support/temp_dir.h"

namespace pointsman::testing {

struct ShellResult {
  int exit_code = -1;
  std::string out, err;
};

inline ShellResult run_shell(const std::string& line) {
  const TempDir dir;
  const std::string script = "P='" + std::string(PM_BINARY_DIR) + "/pointsman'\ncd '" + PM_SOURCE_DIR + "'\n" + line + "\n";
  dir.write("script", script);
  const int status = std::system(("sh " + dir.file("script") + " >" + dir.file("out") + " 2>" + dir.file("err")).c_str());
  const auto read = [&](const char* name) {
    std::ifstream in(dir.file(name), std::ios::binary);
    std::stringstream text;
    text << in.rdbuf();
    return text.str();
  };
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), read("out"), read("err")};
}

}  // namespace pointsman::testing
