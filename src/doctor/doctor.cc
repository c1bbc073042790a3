// SPDX-License-Identifier: Apache-2.0
#include "doctor/doctor.h"

#include <algorithm>

#include "base/log.h"
#include "checkpoint/checkpoint.h"
#include "doctor/text.h"

namespace pointsman::doctor {

const char* state_name(State state) {
  switch (state) {
    case State::kNotApplicable: return "n.a.";
    case State::kOk: return "ok";
    case State::kWarning: return "warning";
    case State::kFailure: return "failure";
  }
  return "unknown";
}

std::vector<Check> all_checks() {
  return {
#define PM_DOCTOR_CHECK(name) {#name, check_##name},
#include "doctor/check_list.inc"
#undef PM_DOCTOR_CHECK
  };
}

State Report::worst() const {
  State worst = State::kNotApplicable;
  for (const CheckResult& c : checks) worst = std::max(worst, c.state);
  return worst;
}

int Report::count(State state) const {
  return static_cast<int>(std::count_if(checks.begin(), checks.end(), [&](const CheckResult& c) { return c.state == state; }));
}

namespace {

// What the model needs: from the engine's planner where the build has it, else at least its dense weights, which are always in
// memory.
std::optional<ModelNeeds> needs_of(const Options& options, const Json& notes) {
  if (!options.model.empty()) {
    const auto checkpoint = Checkpoint::open(FileSystem::real(), options.model);
    if (!checkpoint.ok()) return std::nullopt;  // the model check says why
    ModelNeeds needs{.is_lower_bound = true};
    for (const TensorEntry& t : (*checkpoint)->tensors()) {
      needs.total_bytes += t.size_bytes;
      if (!contains(t.name, ".experts.")) needs.smallest_budget_bytes += t.size_bytes;
    }
    if (options.plan) {
      if (const Result<uint64_t> smallest = options.plan(options.model); smallest.ok()) {
        needs.smallest_budget_bytes = *smallest;
        needs.is_lower_bound = false;
      }
    }
    return needs;
  }
  const Json* model = notes.find("model");
  const auto number = [&](const char* key) -> uint64_t {
    const Json* v = model != nullptr ? model->find(key) : nullptr;
    return v != nullptr && v->is_int() && v->as_int() > 0 ? static_cast<uint64_t>(v->as_int()) : 0;
  };
  if (number("smallest_budget_bytes") == 0) return std::nullopt;
  return ModelNeeds{.smallest_budget_bytes = number("smallest_budget_bytes"), .total_bytes = number("total_bytes")};
}

}  // namespace

Result<Report> run_checks(const Machine& machine, const Options& options, const VersionFacts& facts,
                          const std::vector<std::string>& only) {
  const std::vector<Check> checks = all_checks();
  for (const std::string& name : only) {
    if (std::none_of(checks.begin(), checks.end(), [&](const Check& c) { return name == c.name; })) {
      std::string names;
      for (const Check& c : checks) names += std::string(names.empty() ? "" : ", ") + c.name;
      return error(StatusCode::kInvalidArgument, "there is no check '{}': {}", printable(name, 60), names);
    }
  }
  const AscendState ascend = look_at_ascend(machine, facts, options.soc);
  const Topology topology = read_topology(machine);
  const Context context{machine, options, facts, ascend, topology, needs_of(options, machine.notes())};
  Report report{.machine = machine.name()};
  for (const Check& c : checks) {
    if (!only.empty() && std::find(only.begin(), only.end(), c.name) == only.end()) continue;
    CheckResult result = c.run(context);
    result.name = c.name;
    report.checks.push_back(std::move(result));
  }
  return report;
}

Json report_json(const Report& report) {
  Json j = Json::object();
  j.set("schema_version", 1);
  j.set("machine", printable(report.machine, 4096));
  j.set("ok", report.worst() != State::kFailure);
  Json counts = Json::object();
  for (const State s : {State::kOk, State::kWarning, State::kFailure, State::kNotApplicable}) {
    counts.set(s == State::kNotApplicable ? "not_applicable" : state_name(s), report.count(s));
  }
  j.set("counts", std::move(counts));
  Json checks = Json::array();
  for (const CheckResult& c : report.checks) {
    Json check = Json::object();
    check.set("name", c.name);
    check.set("state", c.state == State::kNotApplicable ? "not_applicable" : state_name(c.state));
    check.set("summary", c.summary);
    Json::Array evidence(c.evidence.begin(), c.evidence.end());
    check.set("evidence", std::move(evidence));
    Json problems = Json::array();
    for (const Problem& p : c.problems) {
      Json problem = Json::object();
      problem.set("code", p.code);
      problem.set("state", state_name(p.state));
      problem.set("what", p.what);
      problem.set("fix", p.fix);
      problems.push_back(std::move(problem));
    }
    check.set("problems", std::move(problems));
    check.set("data", c.data);
    checks.push_back(std::move(check));
  }
  j.set("checks", std::move(checks));
  return j;
}

namespace {

std::string colored(State state, std::string text, bool color) {
  if (!color) return text;
  const char* code = state == State::kOk ? "32" : state == State::kWarning ? "33" : state == State::kFailure ? "31;1" : "2";
  return format("\033[{}m{}\033[0m", code, text);
}

}  // namespace

std::string report_text(const Report& report, bool all, bool color) {
  std::string out;
  std::string skipped;
  constexpr const char* kWords[] = {"n.a.", "ok", "warn", "FAIL"};
  for (const CheckResult& c : report.checks) {
    if (c.state == State::kNotApplicable && !all) {
      skipped += (skipped.empty() ? "" : ", ") + c.name;
      continue;
    }
    out +=
        colored(c.state, format("{:<5}", kWords[static_cast<int>(c.state)]), color) + format("{:<15}{}\n", c.name, c.summary);
    const std::string indent(20, ' ');
    for (const std::string& line : c.evidence) out += indent + line + "\n";
    for (const Problem& p : c.problems) {
      out +=
          indent + colored(p.state, p.state == State::kFailure ? "FAIL" : "warn", color) + " " + p.what + " [" + p.code + "]\n";
      if (!p.fix.empty()) out += indent + "fix: " + p.fix + "\n";
    }
  }
  if (!skipped.empty()) out += colored(State::kNotApplicable, "n.a. ", color) + skipped + "\n";
  out += format("{}: {} ok, {}, {}, {} not applicable\n", printable(report.machine, 400), report.count(State::kOk),
                counted(report.count(State::kWarning), "warning"), counted(report.count(State::kFailure), "failure"),
                report.count(State::kNotApplicable));
  return out;
}

}  // namespace pointsman::doctor
