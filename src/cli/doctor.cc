// SPDX-License-Identifier: Apache-2.0
//
// pointsman doctor: is this machine fit?
#include "doctor/doctor.h"

#include <unistd.h>

#include <cstdio>
#include <ctime>

#include "base/log.h"
#include "base/thread.h"
#include "cli/args.h"
#include "cli/command.h"
#include "cli/log_flags.h"

#ifndef PM_WITHOUT_ENGINE
#include "cli/interrupt.h"
#include "cli/utc_now.h"
#include "pointsman/engine.h"
#include "verify/model_lock.h"
#endif

extern char** environ;

namespace pointsman::cli {
namespace {

constexpr const char* kName = "doctor";
constexpr uint64_t kMaxTableBytes = uint64_t{16} << 20;

#ifndef PM_WITHOUT_ENGINE

Result<uint64_t> smallest_budget(const std::string& model) {
  PM_ASSIGN_OR_RETURN(const MemoryPlan plan, Engine::plan({.model_dir = model}));
  return plan.smallest_budget_bytes;
}

Result<doctor::LockReport> verify_model(const std::string& model) {
  FileSystem& fs = FileSystem::real();
  PM_ASSIGN_OR_RETURN(const LockFile lock, read_lock_file(fs, model));
  PM_ASSIGN_OR_RETURN(const LockCheck check,
                      check_lock(fs, model, lock, usable_cpus(), [](uint64_t, uint64_t) { return !was_interrupted(); }));
  doctor::LockReport report{.checked = check.files + check.tensors + check.experts, .bytes = check.bytes};
  for (const LockMismatch& m : check.mismatches) report.problems.push_back({m.kind + " " + m.name, m.what});
  return report;
}

#endif

// What a capture says of the model and its disk.
Json capture_notes(const doctor::Options& options, const doctor::Report& report) {
  Json notes = Json::object();
  notes.set("schema_version", 1);
  notes.set("captured", utc_now());
  notes.set("tool_version", PM_VERSION);
  if (options.model.empty()) return notes;
  Json model = Json::object();
  model.set("path", options.model);
  for (const doctor::CheckResult& c : report.checks) {
    if (c.name == "disk" && !c.data.is_null()) notes.set("disk", c.data);
    if (c.name == "memory") {
      if (const Json* smallest = c.data.find("smallest_budget_bytes")) model.set("smallest_budget_bytes", *smallest);
    }
    if (c.name == "model") {
      if (const Json* bytes = c.data.find("bytes")) model.set("total_bytes", *bytes);
    }
  }
  notes.set("model", std::move(model));
  return notes;
}

struct Flags {
  doctor::Options options;
  std::string machine, capture, data;
  std::vector<std::string> only;
  int64_t group_timeout = 0;
  bool json = false, all = false;
  LogFlags log;

  void declare(ArgParser& args) {
    args.positional("MODEL,-m,--model", options.model,
                    "Hugging Face model folder: also check it, its memory needs and its disk", false);
    args.flag("--deep", options.deep, "verify every hash of the model, measure the disk for longer");
    args.option("--logs", options.logs, "folder of plog/slog, HCCL, NCCL and process logs of a job: which rank failed first?");
    args.option("--rank-table", options.rank_table, "HCCL rank table (default: RANK_TABLE_FILE)");
    args.option("--hostfile", options.hostfile, "hostfile ('host slots=8') instead of a rank table");
    args.option("--machine", machine, "look at a captured machine instead of this one");
    args.option("--capture", capture, "write what was read of this machine into a new folder, for --machine elsewhere");
    args.list("--check", only, "run this check only; repeatable");
    args.option("--group-timeout", group_timeout, "timeout of the process group in seconds, for the order of HCCL's limits");
    args.option("--experts", options.experts, "HCCL_BUFFSIZE calculator: routed experts of a layer");
    args.option("--ep", options.ep, "ranks of the expert-parallel group");
    args.option("--batch", options.batch, "most tokens of one rank in a step");
    args.option("--hidden", options.hidden, "hidden size");
    args.option("--topk", options.top_k, "experts per token");
    args.option("--shared-experts", options.shared_experts, "shared experts (default: 0)");
    args.option("--comm-alg", options.comm_alg, "fullmesh_v1, fullmesh_v2 (A3), fullmesh, hierarchy (A2)");
    args.option("--soc", options.soc, "SoC or family when npu-smi is not there: Ascend910B3, a2, a3, 950pr, 950dt");
    args.option("--data", data, "folder with another cann_versions.json");
    args.flag("--all", all, "list checks that do not apply one by one");
    args.flag("--json", json, "one JSON object");
    log.declare(args);
  }

  // What the flags alone can be wrong about.
  Status check(const ArgParser& args) {
    const auto refuse = [](std::string message) { return Status(StatusCode::kInvalidArgument, std::move(message)); };
    if (!machine.empty() && !capture.empty())
      return refuse("--machine and --capture exclude each other: a capture is of this machine");
    if (!options.rank_table.empty() && !options.hostfile.empty())
      return refuse("--rank-table and --hostfile exclude each other");
    if (args.given("--group-timeout")) {
      if (group_timeout < 1 || group_timeout > 31'536'000)
        return refuse(format("--group-timeout {}: expected 1 to 31536000 seconds", group_timeout));
      options.group_timeout_s = group_timeout;
    }
    const bool some =
        options.experts != 0 || options.batch != 0 || options.hidden != 0 || options.top_k != 0 || options.ep != 0;
    const bool shape = options.experts > 0 && options.hidden > 0 && options.top_k > 0;
    if (some && (options.batch <= 0 || options.ep <= 0 || (!shape && options.model.empty())))
      return refuse(
          "the HCCL_BUFFSIZE calculator needs --ep and --batch, and MODEL or --experts, --hidden and --topk, each from 1");
    return ok_status();
  }
};

}  // namespace

int run_doctor(int argc, char** argv) {
  ArgParser args(
      kName,
      "Is this machine fit? CPU, memory, NUMA, disk, model folder, CUDA, Ascend, communication settings, logs of a failed job.",
      "  pointsman doctor\n"
      "  pointsman doctor MODEL --deep\n"
      "  pointsman doctor --logs run7/ --json\n"
      "  pointsman doctor --experts 256 --ep 16 --batch 128 --hidden 7168 --topk 8 --soc a3\n"
      "  pointsman doctor --capture here/ && pointsman doctor --machine here/\n"
      "Exit code 0 without a failure, 1 with one, 3 when a folder that was named cannot be used.\n");
  Flags f;
  f.declare(args);
  if (auto code = args.parse(argc, argv)) return *code;
  if (auto code = f.log.apply(kName)) return *code;
  if (const Status s = f.check(args); !s.ok()) return usage_error(kName, s);
  FileSystem& fs = FileSystem::real();
  if (!f.options.logs.empty()) {
    if (const auto names = fs.list(f.options.logs); !names.ok()) return report(kName, names.status().with_context("--logs"));
  }
  doctor::VersionFacts facts = doctor::builtin_version_facts();
  if (!f.data.empty()) {
    const Result<std::string> text = read_text_file(fs, join_path(f.data, "cann_versions.json"), kMaxTableBytes);
    if (!text.ok()) return report(kName, text.status().with_context("--data"));
    Result<doctor::VersionFacts> other = doctor::parse_version_facts(*text);
    if (!other.ok()) return report(kName, other.status().with_context(join_path(f.data, "cann_versions.json")));
    facts = std::move(*other);
  }
  std::unique_ptr<doctor::Machine> machine;
  if (f.machine.empty()) {
    machine = doctor::Machine::live(environ, !f.capture.empty());
  } else {
    Result<std::unique_ptr<doctor::Machine>> captured = doctor::Machine::captured(fs, f.machine);
    if (!captured.ok()) return report(kName, captured.status().with_context("--machine"));
    machine = std::move(*captured);
  }
#ifndef PM_WITHOUT_ENGINE
  f.options.plan = smallest_budget;
  f.options.verify_lock = verify_model;
  catch_interrupts();
#endif
  const Result<doctor::Report> result = doctor::run_checks(*machine, f.options, facts, f.only);
  if (!result.ok()) return usage_error(kName, result.status());
  if (!f.capture.empty()) {
    if (const Status s =
            doctor::write_capture(*machine, f.capture, capture_notes(f.options, *result), doctor::export_topology());
        !s.ok())
      return report(kName, s);
  }
  if (f.json) {
    print_json(doctor::report_json(*result));
  } else {
    std::fputs(doctor::report_text(*result, f.all, ::isatty(1) != 0).c_str(), stdout);
  }
  return result->worst() == doctor::State::kFailure ? kExitFindings : kExitOk;
}

}  // namespace pointsman::cli
