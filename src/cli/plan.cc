// SPDX-License-Identifier: Apache-2.0
//
// pointsman plan: what a model needs, line by line, before a weight is read.
#include <algorithm>
#include <cstdio>

#include "base/log.h"
#include "cli/args.h"
#include "cli/command.h"
#include "cli/engine_flags.h"
#include "cli/unit_groups.h"
#include "pointsman/engine.h"

namespace pointsman::cli {
namespace {

constexpr const char* kName = "plan";

// Bandwidths are assumptions until 'pointsman bench' measures this machine; they are printed beside what follows from them.
struct Speed {
  double dram_gbps = 20, disk_gbps = 2;

  // Decode reads every active weight once from memory, and what is not resident from disk before that. The two are added: an
  // upper bound of the time, since the engine overlaps them where routing allows.
  double tokens_per_s(const MemoryPlan& p) const {
    const double s = static_cast<double>(p.active_weight_bytes_per_token) / (dram_gbps * 1e9) +
                     static_cast<double>(p.expected_disk_bytes_per_token) / (disk_gbps * 1e9);
    return s > 0 ? 1 / s : 0;
  }
};

std::string human(uint64_t bytes) {
  return human_bytes(static_cast<double>(bytes));
}

void print_text(const std::string& model, const MemoryPlan& p, const Speed& speed) {
  std::printf("%s\n\n", model.c_str());
  for (const PlanItem& i : p.items) std::printf("  %-14s %12s  %s\n", i.name.c_str(), human(i.bytes).c_str(), i.detail.c_str());
  std::printf("  %-14s %12s\n\n", "total", human(p.total_bytes).c_str());
  std::printf("  budget          %12s  %llu bytes%s\n", human(p.budget_bytes).c_str(),
              static_cast<unsigned long long>(p.budget_bytes), p.fits() ? "" : ": TOO SMALL");
  std::printf("  smallest budget %12s  %llu bytes\n", human(p.smallest_budget_bytes).c_str(),
              static_cast<unsigned long long>(p.smallest_budget_bytes));
  std::printf("  all resident    %12s  nothing is evicted from here on\n", human(p.full_residency_bytes).c_str());
  std::printf("  beside it       %12s  at most, for the program, its libraries and libc\n\n",
              human(kProcessOverheadBytes).c_str());
  std::printf("placement\n");
  for (const UnitGroup& g : group_units(p.units)) {
    std::printf("  %-28s %-10s %12s%s\n", g.name.c_str(), placement_name(g.placement), human(g.bytes).c_str(),
                g.layers > 1 ? format("  {} layers of {}", g.layers, human(g.bytes_each)).c_str() : "");
  }
  std::printf("\nper token\n  weights read    %12s  of them from disk %s, when hits are as likely as slots\n",
              human(p.active_weight_bytes_per_token).c_str(), human(p.expected_disk_bytes_per_token).c_str());
  std::printf("  KV cache        %12s\n", human(p.kv_bytes_per_token).c_str());
  std::printf(
      "  expected speed  %8.3g tokens/s, assuming %.1f GB/s of memory and %.1f GB/s of disk (--dram-gbps, --disk-gbps)\n",
      speed.tokens_per_s(p), speed.dram_gbps, speed.disk_gbps);
}

Json plan_json(const std::string& model, const MemoryPlan& p, const Speed& speed) {
  Json j = Json::object();
  j.set("schema_version", 1);
  j.set("model", model);
  j.set("fits", p.fits());
  j.set("budget_bytes", p.budget_bytes);
  j.set("smallest_budget_bytes", p.smallest_budget_bytes);
  j.set("full_residency_bytes", p.full_residency_bytes);
  j.set("total_bytes", p.total_bytes);
  j.set("process_overhead_bytes", kProcessOverheadBytes);
  Json items = Json::array();
  for (const PlanItem& i : p.items) {
    Json item = Json::object();
    item.set("name", i.name);
    item.set("bytes", i.bytes);
    item.set("detail", i.detail);
    items.push_back(std::move(item));
  }
  j.set("items", std::move(items));
  Json units = Json::array();
  for (const PlanUnit& u : p.units) {
    Json unit = Json::object();
    unit.set("name", u.name);
    unit.set("placement", placement_name(u.placement));
    unit.set("bytes", u.bytes);
    unit.set("count", u.count);
    units.push_back(std::move(unit));
  }
  j.set("placement", std::move(units));
  j.set("num_slots", p.num_slots);
  j.set("num_experts_total", p.num_experts_total);
  j.set("expert_bytes", p.expert_bytes);
  j.set("prefill_chunk", p.prefill_chunk);
  j.set("max_sessions", p.max_sessions);
  j.set("batch_tokens", p.batch_tokens);
  j.set("context_length", p.context_length);
  j.set("threads", p.num_threads);
  j.set("active_weight_bytes_per_token", p.active_weight_bytes_per_token);
  j.set("expected_disk_bytes_per_token", p.expected_disk_bytes_per_token);
  j.set("kv_bytes_per_token", p.kv_bytes_per_token);
  j.set("expected_tokens_per_s", speed.tokens_per_s(p));
  Json assumed = Json::object();
  assumed.set("dram_gbps", speed.dram_gbps);
  assumed.set("disk_gbps", speed.disk_gbps);
  j.set("assumed", std::move(assumed));
  return j;
}

}  // namespace

int run_plan(int argc, char** argv) {
  ArgParser args(kName, "What a model needs in memory, line by line, and the smallest budget that would do. Reads no weights.",
                 "  pointsman plan MODEL --memory 12GiB -c 8192\n"
                 "  pointsman plan MODEL --memory 12GiB --place 'layers.0.experts=pinned' --json\n"
                 "Exit code 3 when the budget is too small; the plan is printed all the same.\n");
  EngineFlags flags;
  Speed speed;
  bool json = false;
  int64_t sessions = 1;
  flags.declare(args);
  args.option("--sessions", sessions, "sessions that are to decode together (default: 1, at most 64)");
  args.option("--dram-gbps", speed.dram_gbps, "memory bandwidth to assume (default: 20)");
  args.option("--disk-gbps", speed.disk_gbps, "disk bandwidth to assume (default: 2)");
  args.flag("--json", json, "one JSON object");
  if (auto code = args.parse(argc, argv)) return *code;
  if (!(speed.dram_gbps > 0) || !(speed.disk_gbps > 0))
    return usage_error(kName, "--dram-gbps and --disk-gbps: expected more than 0");
  EngineOptions options;
  if (auto code = flags.resolve(kName, options)) return *code;
  options.max_sessions = sessions;
  const Result<MemoryPlan> plan = Engine::plan(options);
  if (!plan.ok()) return report(kName, plan.status());
  if (json) {
    print_json(plan_json(options.model_dir, *plan, speed));
  } else {
    print_text(options.model_dir, *plan, speed);
  }
  if (plan->fits()) return kExitOk;
  return report(kName, error(StatusCode::kBudgetExceeded, "the smallest budget is {} bytes ({}), {} more than {}",
                             plan->smallest_budget_bytes, human(plan->smallest_budget_bytes),
                             human(plan->smallest_budget_bytes - plan->budget_bytes), human(plan->budget_bytes)));
}

}  // namespace pointsman::cli
