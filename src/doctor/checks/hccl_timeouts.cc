// SPDX-License-Identifier: Apache-2.0
//
// The order of HCCL's time limits: CONNECT < EXEC < EVENT < the process group's. In any other order the outer wait gives up
// first and the message names the wrong cause. Defaults and rules: data/audit/cann_versions.json, env_order_rules.
#include <optional>

#include "base/log.h"
#include "doctor/check.h"
#include "doctor/text.h"

namespace pointsman::doctor {
namespace {

constexpr int64_t kConnectDefault = 120, kExecDefault = 1836, kEventDefault = 1868;
constexpr int64_t kConnectMin = 120, kConnectMax = 7200;
constexpr int64_t kAivLimit = 1091;      // HCCL_OP_EXPANSION_MODE=AIV waits no longer than this
constexpr int64_t kTorchDefault = 1800;  // of init_process_group

struct Limit {
  const char* name;
  int64_t value;
  bool is_set = false;
};

// False: it is set and no number; the result has the problem.
bool read_limit(const Machine& machine, Limit& limit, CheckResult& r) {
  const auto text = machine.env(limit.name);
  if (!text) return true;
  const auto value = parse_int(trim(*text));
  if (!value || *value < 0) {
    r.fail("hccl_timeouts.not_a_number", format("{}={}: expected seconds, a whole number", limit.name, printable(*text, 60)),
           format("export {}={}", limit.name, limit.value));
    return false;
  }
  limit.value = *value;
  limit.is_set = true;
  return true;
}

}  // namespace

CheckResult check_hccl_timeouts(const Context& context) {
  const Machine& machine = context.machine;
  Limit connect{"HCCL_CONNECT_TIMEOUT", kConnectDefault}, exec{"HCCL_EXEC_TIMEOUT", kExecDefault},
      event{"HCCL_EVENT_TIMEOUT", kEventDefault};
  CheckResult r = CheckResult::ok("");
  bool readable = true;
  for (Limit* limit : {&connect, &exec, &event}) readable = read_limit(machine, *limit, r) && readable;
  const bool any = connect.is_set || exec.is_set || event.is_set || !readable;
  if (!any && !context.ascend.present() && !context.options.group_timeout_s)
    return CheckResult::not_applicable("no Ascend, and no HCCL_*_TIMEOUT");
  const auto group = context.options.group_timeout_s;
  r.summary = format("CONNECT {} s, EXEC {} s, EVENT {} s, process group {}", connect.value, exec.value, event.value,
                     group ? format("{} s", *group) : "not given");
  r.data = Json::object();
  r.data.set("connect_s", connect.value);
  r.data.set("exec_s", exec.value);
  r.data.set("event_s", event.value);
  r.data.set("group_s", group ? Json(*group) : Json());
  if (!readable) return r;
  if (connect.value < kConnectMin || connect.value > kConnectMax) {
    r.fail("hccl_timeouts.connect_range",
           format("HCCL_CONNECT_TIMEOUT={}: the range is {} to {} s", connect.value, kConnectMin, kConnectMax),
           format("export HCCL_CONNECT_TIMEOUT={}", kConnectDefault));
  }
  int64_t longest = event.value;
  if (exec.value == 0) {
    // 0 is "never": the event must then wait for ever as well.
    if (event.value != 0) {
      r.fail("hccl_timeouts.exec_zero",
             format("HCCL_EXEC_TIMEOUT=0 waits for ever, HCCL_EVENT_TIMEOUT={} gives up first", event.value),
             "export HCCL_EVENT_TIMEOUT=0 too, or set HCCL_EXEC_TIMEOUT to a number of seconds");
    }
    r.evidence.push_back("0: never; a hang is then found by the process group's watchdog alone");
  } else {
    int64_t effective = exec.value;
    if (machine.env("HCCL_OP_EXPANSION_MODE").value_or("") == "AIV" && exec.value > kAivLimit) {
      effective = kAivLimit;
      r.evidence.push_back(format("HCCL_OP_EXPANSION_MODE=AIV waits {} s at most, whatever HCCL_EXEC_TIMEOUT says", kAivLimit));
    }
    if (connect.value >= effective) {
      r.fail("hccl_timeouts.connect_not_below_exec",
             format("HCCL_CONNECT_TIMEOUT={} is not below HCCL_EXEC_TIMEOUT={}", connect.value, effective),
             format("export HCCL_EXEC_TIMEOUT={}, or a shorter HCCL_CONNECT_TIMEOUT", connect.value + 60));
    }
    if (event.value != 0 && exec.value >= event.value) {
      r.fail("hccl_timeouts.exec_not_below_event",
             format("HCCL_EXEC_TIMEOUT={} is not below HCCL_EVENT_TIMEOUT={}: the event wait gives up before HCCL can say "
                    "which rank is missing",
                    exec.value, event.value),
             format("export HCCL_EVENT_TIMEOUT={}", exec.value + 32));
      longest = exec.value + 32;
    }
  }
  if (group && longest != 0 && *group <= longest) {
    r.fail("hccl_timeouts.group_not_largest",
           format("the process group's timeout of {} s is not above HCCL_EVENT_TIMEOUT ({} s): the watchdog kills the job "
                  "before HCCL reports",
                  *group, longest),
           format("init_process_group(timeout=timedelta(seconds={}))", longest + 60));
  } else if (!group && (exec.is_set || event.is_set) && longest >= kTorchDefault) {
    r.warn("hccl_timeouts.group_unknown",
           format("the process group must wait longer than {} s; torch's default is {} s", longest, kTorchDefault),
           format("init_process_group(timeout=timedelta(seconds={})); tell the doctor with --group-timeout", longest + 60));
  } else if (!group) {
    r.evidence.push_back(format(
        "torch's default for the process group, {} s, is below EVENT {} s: pass timeout={} s or more to init_process_group",
        kTorchDefault, longest, longest + 60));
  }
  return r;
}

}  // namespace pointsman::doctor
