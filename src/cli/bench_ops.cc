// SPDX-License-Identifier: Apache-2.0
//
// pointsman bench ops: every kernel as a fraction of what this machine can do, both measured now, and the operators of the mixture beside other ways
// to do the same (src/ops/bench).
#include <cstdio>

#include "base/log.h"
#include "base/thread.h"
#include "base/thread_pool.h"
#include "cli/args.h"
#include "cli/bench.h"
#include "cli/command.h"
#include "cli/engine_flags.h"
#include "ops/bench/moe_bench.h"
#include "ops/bench/op_bench.h"
#include "ops/bench/tune.h"

extern char** environ;

namespace pointsman::cli {
namespace {

constexpr const char* kName = "bench ops";

// Measures the choice between paths and writes it where engines look for it.
int tune(ThreadPool& pool, Isa isa, const CpuFeatures& cpu, const Environment& env, int repeats, bool json) {
  if (env.cache_dir.empty()) return usage_error(kName, "--tune: neither XDG_CACHE_HOME nor HOME is an absolute path, so there is no place for the table");
  const ops::KernelTable kernels = ops::make_cpu_kernels(isa, cpu);
  const auto device = make_cpu_device();
  const ops::MachineKey key{.cpu = cpu.model_name, .isa = isa_name(isa), .threads = pool.num_threads()};
  const auto tuning = ops::tune_paths(*device, pool, kernels, key, {.repeats = repeats},
                                      [](int done, int all) { log_info("tune: {} of {} shapes and formats", done, all); });
  if (!tuning.ok()) return report(kName, tuning.status());
  if (const Status s = ops::write_path_table(FileSystem::real(), env.cache_dir, tuning->table); !s.ok()) return report(kName, s);
  const std::string path = join_path(env.cache_dir, ops::path_table_file_name(key));
  if (json) {
    Json j = Json::object();
    j.set("schema_version", 1);
    j.set("path_table", path);
    Json list = Json::array();
    for (const ops::TuneTiming& t : tuning->timings) {
      Json one = Json::object();
      one.set("experts", t.shape.experts);
      one.set("top_k", t.shape.top_k);
      one.set("hidden", t.shape.hidden);
      one.set("width", t.shape.width);
      one.set("weights", std::string(dtype_name(t.format)));
      one.set("rows", t.rows);
      for (int p = 0; p < ops::kNumPanelPaths; ++p) {
        if (t.quartile_s[p] > 0) one.set(format("{}_s", ops::panel_path_name(static_cast<ops::PanelPath>(p))), t.quartile_s[p]);
      }
      one.set("chosen", std::string(ops::panel_path_name(t.chosen)));
      one.set("built_in", std::string(ops::panel_path_name(t.built_in)));
      list.push_back(std::move(one));
    }
    j.set("timings", std::move(list));
    print_json(j);
  } else {
    std::printf("%s, %s, %d threads\n%s\nwritten to %s: engines with as many threads read it when they start\n", cpu.model_name.c_str(), isa_name(isa),
                pool.num_threads(), ops::tuning_text(*tuning).c_str(), path.c_str());
  }
  return kExitOk;
}

}  // namespace

int run_bench_ops(int argc, char** argv) {
  ArgParser args(kName, "Limits of this machine - memory, fp32, bf16 - and every kernel as a fraction of them; the fused gate, permute and combine beside\n"
                 "separate passes, a plain copy and the plain chain; and what each step costs of one layer.",
                 "  pointsman bench ops\n"
                 "  pointsman bench ops --filter matmul_bf16 --json\n"
                 "  pointsman bench ops --filter route\n"
                 "  pointsman bench ops --filter layer\n"
                 "  pointsman bench ops --tune\n"
                 "  POINTSMAN_ISA=avx2 pointsman bench ops -t 1 --markdown\n"
                 "Needs up to 3 GiB (with --filter route: 1.5); no model.\n");
  int64_t threads = 0;
  bool json = false, markdown = false, tunes = false;
  ops::OpBenchOptions options;
  int64_t repeats = options.repeats;
  LogFlags log;
  args.option("-t,--threads", threads, "threads (default: all CPUs)");
  args.option("--repeat", repeats, "repetitions, interleaved (default: 15)");
  args.option("--filter", options.filter, "only ops whose name and shape hold this text");
  args.flag("--tune", tunes, "measure which way of multiplying packed weights is fastest by rows per expert, and keep the table for engines here");
  args.flag("--json", json, "one JSON object");
  args.flag("--markdown", markdown, "tables for a document");
  log.declare(args);
  if (auto code = args.parse(argc, argv)) return *code;
  if (auto code = log.apply(kName)) return *code;
  if (json && markdown) return usage_error(kName, "--json and --markdown: one of them");
  if (threads < 0 || threads > 1024 || repeats < 1 || repeats > 10000)
    return usage_error(kName, "-t: expected 1 to 1024; --repeat: 1 to 10000");
  const Result<Environment> env = read_environment(environ);
  if (!env.ok()) return usage_error(kName, env.status());
  const CpuFeatures cpu = detect_cpu_features();
  const Result<Isa> isa = choose_isa(env->isa, cpu);
  if (!isa.ok()) return report(kName, isa.status());
  options.repeats = static_cast<int>(repeats);
  ThreadPool pool(threads == 0 ? usable_cpus() : static_cast<int>(threads));
  if (tunes && (markdown || !options.filter.empty())) return usage_error(kName, "--tune goes with --json, --repeat and -t only");
  if (tunes) return tune(pool, *isa, cpu, *env, options.repeats, json);
  const auto device = make_cpu_device();
  const auto limits = ops::measure_machine_limits(*device, pool, *isa, cpu, {.repeats = options.repeats});
  if (!limits.ok()) return report(kName, limits.status());
  const ops::KernelTable kernels = ops::make_cpu_kernels(*isa, cpu);
  const auto timings = ops::bench_ops(*device, pool, kernels, *limits, options);
  if (!timings.ok()) return report(kName, timings.status());
  const auto moe = ops::bench_moe(*device, pool, kernels, {.repeats = options.repeats, .filter = options.filter});
  if (!moe.ok()) return report(kName, moe.status());
  if (json) {
    Json j = ops::op_bench_json(*limits, *timings);
    ops::add_moe_bench(*moe, j);
    j.set("schema_version", 1);
    j.set("cpu", cpu.model_name);
    j.set("isa", isa_name(*isa));
    print_json(j);
  } else if (markdown) {
    std::printf("%s, %s\n\n%s%s", cpu.model_name.c_str(), isa_name(*isa), ops::op_bench_markdown(*limits, *timings).c_str(), ops::moe_bench_markdown(*moe).c_str());
  } else {
    std::printf("%s, %s\n%s%s", cpu.model_name.c_str(), isa_name(*isa), ops::op_bench_table(*limits, *timings).c_str(), ops::moe_bench_table(*moe).c_str());
  }
  return kExitOk;
}

}  // namespace pointsman::cli
