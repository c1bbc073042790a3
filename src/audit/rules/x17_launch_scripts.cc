// SPDX-License-Identifier: Apache-2.0
//
// X17. Style: commands and environment of scripts; commands in prose.
#include "audit/rule.h"
#include "audit/rules/words.h"

namespace pointsman::audit::rules {
namespace {

bool names_npu(std::string_view word) { return contains_any(word, {"npu", "ascend", "hccl", "davinci", "cann"}); }

void check_command(const config::Command& c, Report& out) {
  const std::string_view program = c.program();
  const auto any = [&](auto&& holds) {
    for (size_t i = c.program_index + 1; i < c.words.size(); ++i) {
      if (holds(c.words[i].text)) return true;
    }
    return false;
  };
  if ((program == "pkill" && c.has_argument("-f")) || program == "killall" || program.ends_with("/killall")) {
    if (any([](std::string_view w) { return names_npu(w); })) {
      out.add(c.span, Confidence::kCertain, "processes are killed by a pattern of their command line: it also hits other users' jobs, monitors and this very script")
          .fix = "Keep the process ids that you started and end those; `npu-smi info` lists the processes on a device.";
    } else if (any([](std::string_view w) { return w == "python" || w == "python3" || contains_any(w, {"torchrun"}); })) {
      out.add(c.span, Confidence::kLikely, "every process whose command line matches is killed, whoever started it");
    }
  }
  if (program == "systemctl" || program == "service") {
    const bool ends = any([](std::string_view w) { return w == "stop" || w == "disable" || w == "mask" || w == "restart"; });
    if (ends && any([](std::string_view w) { return names_npu(w); })) {
      out.add(c.span, Confidence::kCertain, "a service of the driver is stopped by name; npu-smi is a tool and no service, and stopping the driver's daemons takes health reports and fault recovery away")
          .fix = "To free a device end its processes; `npu-smi set -t reset` resets an idle one.";
    }
  }
}

// LD_LIBRARY_PATH=/somewhere without $LD_LIBRARY_PATH, or with the driver's folder in it.
void check_path(const std::string& name, const std::string& value, bool& drops, bool& driver) {
  drops = driver = false;
  if (name != "LD_LIBRARY_PATH" || value.empty()) return;
  drops = value.find("LD_LIBRARY_PATH") == std::string::npos;
  driver = contains_any(value, {"ascend/driver", "libcuda.so", "stubs"});
}

void config_file(const config::Document& d, Report& out) {
  for (const config::Command& c : d.commands) check_command(c, out);
  for (const config::Environment& e : d.environment) {
    if (e.is_unset) continue;
    bool drops, driver;
    check_path(e.name, e.value, drops, driver);
    if (driver) {
      out.add(e.span, Confidence::kLikely, "LD_LIBRARY_PATH puts a driver's (or a stub) library folder in front: with another toolkit version it loads a mismatched pair")
          .fix = "source the toolkit's set_env.sh, which sets paths in the right order.";
    } else if (drops && d.unit->kind == FileKind::kShell && names_npu(d.unit->text)) {
      out.add(e.span, Confidence::kLikely, "LD_LIBRARY_PATH is replaced, not extended: what the toolkit's set_env.sh put there is lost").fix = "LD_LIBRARY_PATH=...:${LD_LIBRARY_PATH}";
    }
  }
}

// `sudo pkill -f npu` in a sentence; code blocks are units of their own.
void prose(const Unit& unit, Report& out) {
  const std::string_view text = unit.text;
  for (std::string_view command : {"pkill -f npu", "systemctl stop npu", "killall npu"}) {
    for (size_t at = text.find(command); at != std::string_view::npos; at = text.find(command, at + 1)) {
      out.add(Span{static_cast<uint32_t>(at), static_cast<uint32_t>(at + command.size())}, Confidence::kLikely, "advice to end processes or services by a pattern of their name: it hits more than was meant, and npu-smi is no service")
          .fix = "End the processes that `npu-smi info` lists for the device, by id.";
    }
  }
}

}  // namespace

const Rule& x17_launch_scripts() {
  static constexpr Rule kRule = {
      .id = "X17",
      .name = "launch-scripts",
      .title = "Launch scripts that reach beyond their job",
      .severity = Severity::kInfo,
      .why = "Scripts that kill by pattern, stop driver services or replace library paths work on the machine where they were written. On a shared NPU server they end other jobs, or load "
             "a driver library of another version.",
      .fix = "End only processes that the script started; leave services alone; extend paths through the toolkit's set_env.sh.",
      .versions = "all",
      .source = "practitioner's guide §3.1, corrected; CANN installation guide (set_env.sh)",
      .config = config_file,
      .prose = prose,
  };
  return kRule;
}

}  // namespace pointsman::audit::rules
