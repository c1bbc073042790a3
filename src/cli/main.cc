// SPDX-License-Identifier: Apache-2.0
//
// The program: a table of subcommands. stdout carries the result, stderr everything else.
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>

#include "base/edit_distance.h"
#include "base/log.h"
#include "cli/args.h"
#include "cli/command.h"
#include "cli/log_flags.h"

extern char** environ;

namespace pointsman::cli {
namespace {

struct Command {
  const char* name;
  int (*run)(int argc, char** argv);
  const char* summary;
};
constexpr Command kCommands[] = {
#define PM_TOOL_COMMAND(name, summary) {#name, run_##name, summary},
#ifdef PM_WITHOUT_ENGINE
#define PM_ENGINE_COMMAND(name, summary)
#else
#define PM_ENGINE_COMMAND(name, summary) {#name, run_##name, summary},
#endif
#include "cli/command_list.inc"
#undef PM_TOOL_COMMAND
#undef PM_ENGINE_COMMAND
};

#ifdef PM_WITHOUT_ENGINE
constexpr const char* kLeftOut[] = {
#define PM_TOOL_COMMAND(name, summary)
#define PM_ENGINE_COMMAND(name, summary) #name,
#include "cli/command_list.inc"
#undef PM_TOOL_COMMAND
#undef PM_ENGINE_COMMAND
};
#endif

void print_usage(std::FILE* out) {
  std::fprintf(
      out, "Pointsman runs Mixture-of-Experts models from Hugging Face checkpoints under a memory budget that is kept.\n\n");
  std::fprintf(out, "usage: pointsman COMMAND [options]\n\n");
  for (const Command& c : kCommands) std::fprintf(out, "  %-9s %s\n", c.name, c.summary);
  std::fprintf(out, "\n'pointsman COMMAND --help' has options and examples.\n");
}

int unknown_command(std::string_view name) {
#ifdef PM_WITHOUT_ENGINE
  if (std::find(std::begin(kLeftOut), std::end(kLeftOut), name) != std::end(kLeftOut)) {
    std::fprintf(stderr, "pointsman: this build has no engine, so no '%.*s' (configure with -DPM_BUILD_ENGINE=ON)\n",
                 static_cast<int>(name.size()), name.data());
    return kExitUsage;
  }
#endif
  const auto nearest = std::min_element(std::begin(kCommands), std::end(kCommands), [&](const Command& a, const Command& b) {
    return edit_distance(name, a.name) < edit_distance(name, b.name);
  });
  std::fprintf(stderr, "pointsman: there is no command '%.*s'", static_cast<int>(std::min<size_t>(name.size(), 60)),
               name.data());
  if (edit_distance(name, nearest->name) <= 2) std::fprintf(stderr, "; did you mean '%s'?", nearest->name);
  std::fprintf(stderr, "\nRun 'pointsman --help' for the list.\n");
  return kExitUsage;
}

int dispatch(int argc, char** argv) {
  // Freed memory must go back to the system at once, or peak RSS would not be what the ledger says: one arena, no growing
  // threshold.
  mallopt(M_ARENA_MAX, 1);
  mallopt(M_MMAP_THRESHOLD, 128 * 1024);
  mallopt(M_TRIM_THRESHOLD, 128 * 1024);
  std::signal(SIGPIPE, SIG_IGN);  // a closed pipe is a failed write

  Result<Environment> env = read_environment(environ);
  Status ready = env.ok() ? set_up_log(env->log_level, "text") : env.status();
  if (!ready.ok()) {
    std::fprintf(stderr, "pointsman: %s\n", ready.to_string().c_str());
    return kExitUsage;
  }
  if (argc < 2) {
    print_usage(stderr);
    return kExitUsage;
  }
  const std::string_view name = argv[1];
  if (name == "--help" || name == "-h" || name == "help") {
    print_usage(stdout);
    return kExitOk;
  }
  if (name == "--version") return run_version(argc - 1, argv + 1);
  for (const Command& c : kCommands) {
    if (name == c.name) return c.run(argc - 1, argv + 1);
  }
  return unknown_command(name);
}

}  // namespace

}  // namespace pointsman::cli

int main(int argc, char** argv) {
  const int code = pointsman::cli::dispatch(argc, argv);
  // A result that did not arrive is no result.
  if ((std::fflush(stdout) != 0 || std::ferror(stdout)) && code == pointsman::cli::kExitOk) {
    std::fprintf(stderr, "pointsman: stdout could not be written\n");
    return pointsman::cli::kExitRuntime;
  }
  return code;
}
