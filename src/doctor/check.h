// SPDX-License-Identifier: Apache-2.0
//
// A check looks at a machine and says ok, warning, failure or not applicable, with what it saw and what to do. One file per
// check in checks/, one line in check_list.inc; adding one touches nothing else.
//
// A check never fails to answer: what cannot be read is "not applicable" or "unknown" in the evidence. It keeps its answer
// bounded whatever the machine's files hold.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "doctor/ascend.h"
#include "doctor/machine.h"
#include "doctor/topology.h"
#include "doctor/version_facts.h"

namespace pointsman::doctor {

enum class State { kNotApplicable = 0, kOk = 1, kWarning = 2, kFailure = 3 };  // the larger one wins
const char* state_name(State state);                                           // "n.a.", "ok", "warning", "failure"

// One thing that is wrong. `code` is stable: "CHECK.reason".
struct Problem {
  std::string code;
  State state = State::kWarning;
  std::string what;  // found against expected
  std::string fix;
};

struct CheckResult {
  std::string name;
  State state = State::kNotApplicable;
  std::string summary;                // one line
  std::vector<std::string> evidence;  // more lines
  std::vector<Problem> problems;
  Json data;  // figures for programs; null without

  static CheckResult not_applicable(std::string why) { return {.summary = std::move(why)}; }
  static CheckResult ok(std::string summary) { return {.state = State::kOk, .summary = std::move(summary)}; }
  void warn(std::string code, std::string what, std::string fix) {
    add(State::kWarning, std::move(code), std::move(what), std::move(fix));
  }
  void fail(std::string code, std::string what, std::string fix) {
    add(State::kFailure, std::move(code), std::move(what), std::move(fix));
  }

 private:
  void add(State s, std::string code, std::string what, std::string fix) {
    if (s > state) state = s;
    problems.push_back({std::move(code), s, std::move(what), std::move(fix)});
  }
};

// What is known of a model's needs without reading weights.
struct ModelNeeds {
  uint64_t smallest_budget_bytes = 0;
  bool is_lower_bound = false;  // this build has no planner: dense weights alone
  uint64_t total_bytes = 0;     // of the checkpoint
};

struct LockProblem {
  std::string name, what;
};
struct LockReport {
  uint64_t checked = 0, bytes = 0;
  std::vector<LockProblem> problems;
  std::string note;  // what was left out
};

struct Options {
  std::string model;  // folder; empty: none
  bool deep = false;
  std::string logs;        // folder; empty: none
  std::string rank_table;  // file; empty: RANK_TABLE_FILE of the machine's environment
  std::string hostfile;    // file; empty: none
  std::string soc;         // overrides what npu-smi says: "Ascend910B3", or a family: "a2", "a3", "950pr", "950dt"
  std::optional<int64_t> group_timeout_s;
  // HCCL_BUFFSIZE calculator; 0: not given.
  int64_t experts = 0, ep = 0, batch = 0, hidden = 0, top_k = 0, shared_experts = 0;
  std::string comm_alg;  // "", "fullmesh_v1", "fullmesh_v2", "hierarchy"
  // Builds with the engine plan and verify through it; without, the doctor does what the checkpoint alone allows.
  std::function<Result<uint64_t>(const std::string& model)> plan;  // its smallest budget
  std::function<Result<LockReport>(const std::string& model)> verify_lock;
};

struct Context {
  const Machine& machine;
  const Options& options;
  const VersionFacts& facts;
  const AscendState& ascend;
  const Topology& topology;
  std::optional<ModelNeeds> needs;  // of options.model, or of the capture
};

using CheckFunction = CheckResult (*)(const Context& context);
struct Check {
  const char* name;
  CheckFunction run;
};
// Sorted by name.
std::vector<Check> all_checks();

#define PM_DOCTOR_CHECK(name) CheckResult check_##name(const Context& context);
#include "doctor/check_list.inc"
#undef PM_DOCTOR_CHECK

}  // namespace pointsman::doctor
