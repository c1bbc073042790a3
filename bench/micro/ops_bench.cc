// SPDX-License-Identifier: Apache-2.0
//
// ops_bench [--json] [--isa NAME] [--threads N] [--repeats N] [FILTER]: limits of this machine, then every op as a fraction of them.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/thread.h"
#include "base/thread_pool.h"
#include "ops/bench/op_bench.h"

using namespace pointsman;

int main(int argc, char** argv) {
  std::string isa_wanted;
  bool json = false;
  int threads = usable_cpus();
  ops::OpBenchOptions options;
  for (int i = 1; i < argc; ++i) {
    const std::string_view arg = argv[i];
    const auto value = [&] { return i + 1 < argc ? argv[++i] : ""; };
    if (arg == "--json") json = true;
    else if (arg == "--isa") isa_wanted = value();
    else if (arg == "--threads") threads = std::max(1, std::atoi(value()));
    else if (arg == "--repeats") options.repeats = std::max(1, std::atoi(value()));
    else if (arg.starts_with("-")) return std::fprintf(stderr, "usage: ops_bench [--json] [--isa NAME] [--threads N] [--repeats N] [FILTER]\n"), 2;
    else options.filter = arg;
  }
  const CpuFeatures cpu = detect_cpu_features();
  const auto isa = choose_isa(isa_wanted, cpu);
  if (!isa.ok()) return std::fprintf(stderr, "%s\n", isa.status().to_string().c_str()), 1;
  ThreadPool pool(threads);
  const auto device = make_cpu_device();
  const auto limits = ops::measure_machine_limits(*device, pool, *isa, cpu, {.repeats = options.repeats});
  if (!limits.ok()) return std::fprintf(stderr, "%s\n", limits.status().to_string().c_str()), 1;
  const auto timings = ops::bench_ops(*device, pool, ops::make_cpu_kernels(*isa, cpu), *limits, options);
  if (!timings.ok()) return std::fprintf(stderr, "%s\n", timings.status().to_string().c_str()), 1;
  if (json) {
    std::printf("%s\n", ops::op_bench_json(*limits, *timings).dump(2).c_str());
  } else {
    std::printf("%s, %s\n%s", cpu.model_name.c_str(), isa_name(*isa), ops::op_bench_table(*limits, *timings).c_str());
  }
  return 0;
}
