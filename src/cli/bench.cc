// SPDX-License-Identifier: Apache-2.0
#include "cli/bench.h"

#include <cstdio>
#include <string_view>

#include "cli/args.h"
#include "cli/command.h"

namespace pointsman::cli {
namespace {

struct Part {
  const char* name;
  int (*run)(int argc, char** argv);
  const char* summary;
};
// Sorted.
constexpr Part kParts[] = {
    {"cache", run_bench_cache, "hit rates of every eviction policy and of the optimum on recorded routes, by cache size"},
    {"decode", run_bench_decode, "tokens per second of a model, per budget, against the memory bandwidth of this machine"},
    {"io", run_bench_io, "cold reads of experts against the disk's own rate"},
    {"ops", run_bench_ops, "kernels against the limits of this machine"},
};

void print_usage(std::FILE* out) {
  std::fprintf(out,
               "Measure. Everything that is compared is measured in the same run, interleaved; results are medians.\n\n"
               "usage: pointsman bench PART [options]\n\n");
  for (const Part& p : kParts) std::fprintf(out, "  %-9s %s\n", p.name, p.summary);
  std::fprintf(
      out,
      "\nExamples:\n  pointsman bench decode MODEL --memory 2GiB -n 64\n  pointsman bench io MODEL --memory 2GiB --json\n"
      "'pointsman bench PART --help' has the options.\n");
}

}  // namespace

int run_bench(int argc, char** argv) {
  const std::string_view name = argc > 1 ? argv[1] : "";
  if (name == "--help" || name == "-h") {
    print_usage(stdout);
    return kExitOk;
  }
  for (const Part& p : kParts) {
    if (name == p.name) return p.run(argc - 1, argv + 1);
  }
  if (!name.empty())
    std::fprintf(stderr, "pointsman bench: there is no part '%.*s'\n", static_cast<int>(name.size()), name.data());
  print_usage(stderr);
  return kExitUsage;
}

}  // namespace pointsman::cli
