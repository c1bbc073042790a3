// SPDX-License-Identifier: Apache-2.0
//
// Which rank failed first, and in which phase, from a folder of logs.
#include "base/log.h"
#include "doctor/check.h"
#include "doctor/logs/log_diagnosis.h"
#include "doctor/text.h"

namespace pointsman::doctor {

CheckResult check_logs(const Context& context) {
  const std::string& directory = context.options.logs;
  if (directory.empty()) return CheckResult::not_applicable("no --logs");
  const Result<LogCollection> logs = read_logs(FileSystem::real(), directory);
  if (!logs.ok()) {
    CheckResult r = CheckResult::ok(printable(directory));
    r.fail("logs.unreadable", logs.status().message(), "give the folder that holds the logs of all ranks");
    return r;
  }
  const Diagnosis d = diagnose(*logs);
  const std::string read =
      format("{}, {}, {} seen", counted(static_cast<int64_t>(logs->files_seen), "file"),
             human_bytes(static_cast<double>(logs->bytes)), counted(static_cast<int64_t>(logs->ranks.size()), "rank"));
  CheckResult r = CheckResult::ok(format("{}; no errors of HCCL, NCCL or the processes", read));
  for (const std::string& note : logs->notes) {
    if (r.evidence.size() < 8) r.evidence.push_back("note: " + printable(note, 300));
  }
  r.data = Json::object();
  r.data.set("files", logs->files_seen);
  r.data.set("bytes", logs->bytes);
  r.data.set("world_size", logs->world_size);
  r.data.set("found_root", d.found_root);
  if (!d.found_errors) return r;
  r.summary = format("{}; {} waited for another", read, counted(static_cast<int64_t>(d.num_victims), "rank"));
  Json::Array ranks(d.ranks.begin(), d.ranks.end());
  r.data.set("root_ranks", std::move(ranks));
  r.data.set("root_place", d.place);
  r.data.set("phase", phase_name(d.phase));
  r.data.set("kind", d.kind);
  r.data.set("certainty", d.certainty);
  for (const std::string& line : d.evidence) r.evidence.push_back(line);
  if (d.found_root) {
    std::string who;
    for (const int64_t rank : d.ranks) {
      if (who.size() < 80) who += format("{}{}", who.empty() ? (d.ranks.size() == 1 ? "rank " : "ranks ") : ", ", rank);
    }
    if (who.empty()) who = d.place;
    r.fail("logs.root_cause",
           format("root cause: {}, phase {}, {} ({}): {}", who, phase_name(d.phase), d.kind, d.certainty, d.why), d.advice);
  } else {
    r.fail("logs.no_root_cause", format("phase {}: {}", phase_name(d.phase), d.why), d.advice);
  }
  return r;
}

}  // namespace pointsman::doctor
