// SPDX-License-Identifier: Apache-2.0
//
// X3. Style: facts of several files. Python says its group's timeout in a note; variables come from the tree.
#include <charconv>
#include <optional>

#include "audit/rule.h"
#include "audit/rules/words.h"

namespace pointsman::audit::rules {
namespace {

using python::Expr;
using python::ExprKind;

// datetime.timedelta(...) in seconds, where every argument is a number.
std::optional<double> seconds_of(const Expr& e) {
  if (!e.is(ExprKind::kCall) || e.last_name() != "timedelta") return std::nullopt;
  constexpr std::pair<std::string_view, double> kUnits[] = {{"days", 86400}, {"seconds", 1}, {"microseconds", 1e-6}, {"milliseconds", 1e-3}, {"minutes", 60}, {"hours", 3600}, {"weeks", 604800}};
  double total = 0;
  for (size_t i = 0; i < std::size(kUnits); ++i) {
    const Expr* a = e.argument(i, kUnits[i].first);
    if (!a) continue;
    const auto v = python::constant_number(*a);
    if (!v) return std::nullopt;
    total += *v * kUnits[i].second;
  }
  return total;
}

void python_file(const python::Module& m, Report& out) {
  for (const Expr* c : m.calls()) {
    if (c->full_name != "torch.distributed.init_process_group") continue;
    const Expr* timeout = c->keyword("timeout");
    if (!timeout) continue;
    const Expr* delta = python::flows_from(*timeout, [](const Expr& e) { return e.is(ExprKind::kCall) && e.last_name() == "timedelta"; });
    if (!delta) continue;
    if (auto s = seconds_of(*delta)) out.note("group", std::to_string(static_cast<int64_t>(*s)), timeout->span);
  }
}

template <class T>
struct Limit {
  int64_t seconds = 0;
  const Located<T>* said = nullptr;  // null: the default
};

std::optional<int64_t> number(const std::string& s) {
  int64_t v = 0;
  const auto [end, error] = std::from_chars(s.data(), s.data() + s.size(), v);
  if (error != std::errc() || end != s.data() + s.size() || v < 0) return std::nullopt;
  return v;
}

// The one value of a variable in the tree (or in `path`), else the default.
Limit<config::Environment> limit(const Tree& tree, std::string_view name, int64_t default_seconds, std::string_view path) {
  Limit<config::Environment> l{default_seconds, nullptr};
  for (const auto& e : tree.environment) {
    if (e.value.name != name || e.value.is_unset || (!path.empty() && e.location.path != path)) continue;
    if (auto v = number(e.value.value)) l = {*v, &e};  // the last one holds
  }
  return l;
}

constexpr int64_t kConnect = 120, kExec = 1836, kEvent = 1868;

void check(const Tree& tree, std::string_view path, Report& out) {
  const auto connect = limit(tree, "HCCL_CONNECT_TIMEOUT", kConnect, path);
  const auto exec = limit(tree, "HCCL_EXEC_TIMEOUT", kExec, path);
  const auto event = limit(tree, "HCCL_EVENT_TIMEOUT", kEvent, path);
  const auto said = [](const auto& l) { return l.said ? "" : " (the default)"; };
  const auto text = [&](std::string_view name, const auto& l) { return std::string(name) + " = " + std::to_string(l.seconds) + " s" + said(l); };
  if (exec.said && exec.seconds == 0 && event.seconds != 0) {
    out.add(*exec.said, Confidence::kCertain, "HCCL_EXEC_TIMEOUT = 0 waits for ever, but " + text("HCCL_EVENT_TIMEOUT", event) + " ends the wait all the same, without naming the rank at fault");
  } else if ((exec.said || event.said) && event.seconds != 0 && event.seconds <= exec.seconds) {
    Finding& f = out.add(event.said ? *event.said : *exec.said, Confidence::kCertain,
                         text("HCCL_EVENT_TIMEOUT", event) + " is not above " + text("HCCL_EXEC_TIMEOUT", exec) + ": the event wait ends first, and HCCL's own report of the cause is lost");
    if (event.said && exec.said) f.related.push_back({exec.said->location, "the execution timeout"});
  }
  if ((connect.said || exec.said) && exec.seconds != 0 && exec.seconds <= connect.seconds) {
    out.add(exec.said ? *exec.said : *connect.said, Confidence::kCertain, text("HCCL_EXEC_TIMEOUT", exec) + " is not above " + text("HCCL_CONNECT_TIMEOUT", connect));
  }
  if (connect.said && (connect.seconds < 120 || connect.seconds > 7200)) {
    out.add(*connect.said, Confidence::kCertain, text("HCCL_CONNECT_TIMEOUT", connect) + " is outside of 120 to 7200").severity = Severity::kWrongNumbers;
  }
  for (const Located<Note>* n : tree.notes_of("X3", "group")) {
    if (!path.empty() && n->location.path != path && (exec.said || event.said)) continue;
    const int64_t group = *number(n->value.value);
    const int64_t last = std::max(exec.seconds, event.seconds);
    if (group > last || last == 0) continue;
    // Where nothing of HCCL is set, this is CUDA code that will be moved.
    const bool hccl = exec.said || event.said;
    Finding& f = out.add(*n, hccl ? Confidence::kCertain : Confidence::kHint,
                         "the group's timeout of " + std::to_string(group) + " s is not above HCCL's waits (" + text("HCCL_EXEC_TIMEOUT", exec) + ", " + text("HCCL_EVENT_TIMEOUT", event) +
                             "): the watchdog ends the process before HCCL names the cause");
    if (!hccl) f.severity = Severity::kInfo;
  }
}

void whole_tree(const Tree& tree, Report& out) {
  // A script that sets several of them is a launch of its own; else all files are one launch.
  std::vector<std::string> launches;
  for (const auto& e : tree.environment) {
    if (!is_one_of(e.value.name, {"HCCL_CONNECT_TIMEOUT", "HCCL_EXEC_TIMEOUT", "HCCL_EVENT_TIMEOUT"})) continue;
    if (launches.empty() || launches.back() != e.location.path) launches.push_back(e.location.path);
  }
  if (launches.size() <= 1) return check(tree, "", out);
  for (const std::string& path : launches) check(tree, path, out);
}

}  // namespace

const Rule& x03_timeout_order() {
  static constexpr Rule kRule = {
      .id = "X3",
      .name = "timeout-order",
      .title = "Timeouts in the wrong order",
      .severity = Severity::kBlocks,
      .why = "Connection, execution, event and group timeouts are nested waits. When an outer one is shorter, the job dies at the wrong place: the ranks that report are victims, and the "
             "log has no cause.",
      .fix = "HCCL_CONNECT_TIMEOUT < HCCL_EXEC_TIMEOUT < HCCL_EVENT_TIMEOUT < timeout of init_process_group, each with some tens of seconds between them.",
      .versions = "defaults: 120, 1836 and 1868 s; group 1800 s in older torch",
      .source = "HCCL environment reference; torch_npu's warning on HCCL_EVENT_TIMEOUT; pitfall table, row 16",
      .python = python_file,
      .tree = whole_tree,
  };
  return kRule;
}

}  // namespace pointsman::audit::rules
