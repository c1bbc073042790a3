// SPDX-License-Identifier: Apache-2.0
//
// The model's folder: can it be opened, is there a lock file, does the model match it (--deep), is its path one that every tool
// takes.
#include "checkpoint/model_config.h"

#include <climits>
#include <cstdlib>

#include "base/log.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/lockfile.h"
#include "doctor/check.h"
#include "doctor/lock_check.h"
#include "doctor/text.h"

namespace pointsman::doctor {
namespace {

constexpr size_t kLongPath = 255;

void check_path(const std::string& path, CheckResult& r) {
  const auto unusual = [](char c) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '/' || c == '.' ||
                       c == '_' || c == '-' || c == '+' || c == '=' || c == '@';
    return !plain;
  };
  std::string found;
  bool non_ascii = false;
  for (const char c : path) {
    if (!unusual(c)) continue;
    if (static_cast<unsigned char>(c) >= 0x80) {
      non_ascii = true;
    } else if (found.find(c) == std::string::npos && found.size() < 16) {
      found += c;
    }
  }
  if (non_ascii || !found.empty()) {
    std::string what = non_ascii ? "characters outside of ASCII" : "";
    if (!found.empty()) what += format("{}{}", what.empty() ? "" : " and ", printable("'" + found + "'"));
    r.warn("model.path_characters",
           format("the path has {}. A practitioner's guide to the Ascend 950 (section 4.3) reports device memory that is not "
                  "released after loading from such paths; no other source says so, and "
                  "Pointsman itself does not mind",
                  what),
           "nothing for Pointsman; for other tools a link with a plain name is enough");
  }
  if (path.size() > kLongPath) {
    r.warn("model.path_long", format("the path has {} bytes: tools with buffers of 256 cut it off", path.size()),
           "a link with a short name");
  }
}

Result<LockReport> verify(const Options& o) {
  return o.verify_lock ? o.verify_lock(o.model) : check_lock_without_engine(FileSystem::real(), o.model);
}

}  // namespace

CheckResult check_model(const Context& context) {
  const Options& o = context.options;
  if (o.model.empty()) {
    const Json* recorded = context.machine.notes().find("model");
    const Json* path = recorded != nullptr ? recorded->find("path") : nullptr;
    if (path == nullptr || !path->is_string()) return CheckResult::not_applicable("no MODEL");
    CheckResult r = CheckResult::ok(printable(path->as_string(), 300) + " (recorded)");
    check_path(path->as_string(), r);
    return r;
  }
  FileSystem& fs = FileSystem::real();
  CheckResult r = CheckResult::ok(printable(o.model, 300));
  char resolved[PATH_MAX];
  check_path(::realpath(o.model.c_str(), resolved) != nullptr ? resolved : o.model, r);
  const auto checkpoint = Checkpoint::open(fs, o.model);
  if (!checkpoint.ok()) {
    r.fail("model.unreadable", checkpoint.status().message(),
           "fetch the checkpoint again, or give the folder that holds config.json and *.safetensors");
    return r;
  }
  uint64_t bytes = 0;
  for (const CheckpointFile& f : (*checkpoint)->files()) bytes += f.info.size_bytes;
  const auto config = read_model_config(fs, o.model);
  r.summary =
      format("{}: {}{} in {}", printable(o.model, 200), config.ok() ? config->model_type + ", " : "",
             human_bytes(static_cast<double>(bytes)), counted(static_cast<int64_t>((*checkpoint)->files().size()), "file"));
  r.data = Json::object();
  r.data.set("bytes", bytes);
  r.data.set("files", static_cast<int64_t>((*checkpoint)->files().size()));
  if (!config.ok())
    r.fail("model.config_refused", config.status().message(), "'pointsman inspect MODEL' shows every value with its origin");

  const auto names = fs.list(o.model);
  if (names.ok()) {
    std::string leftovers;
    for (const std::string& name : *names) {
      if ((name.ends_with(".incomplete") || name.ends_with(".part") || name.ends_with(".aria2")) && leftovers.size() < 160)
        leftovers += (leftovers.empty() ? "" : ", ") + printable(name, 60);
    }
    if (!leftovers.empty())
      r.warn("model.unfinished_download", "unfinished downloads: " + leftovers,
             "finish the download, then 'pointsman lock MODEL --check'");
  }
  const auto lock = read_lock_file(fs, o.model);
  if (!lock.ok() && lock.status().code() == StatusCode::kNotFound) {
    r.warn("model.no_lock", "no pointsman.lock.json: bytes are remembered at first use, not verified",
           "pointsman lock MODEL, after checking the files against where they came from");
    r.data.set("lock", "absent");
    return r;
  }
  if (!lock.ok()) {
    r.fail("model.lock_refused", lock.status().message(), "pointsman lock MODEL writes a new one");
    r.data.set("lock", "refused");
    return r;
  }
  r.data.set("lock", "present");
  r.evidence.push_back(format("lock file of {}: {} files, {} dense tensors, {} experts, model digest {}",
                              printable(lock->created, 40), lock->files.size(), lock->tensors.size(), lock->experts.size(),
                              to_hex(lock->model_digest()).substr(0, 16)));
  if (!o.deep) {
    r.evidence.push_back("hashes not checked: --deep does");
    return r;
  }
  const Result<LockReport> report = verify(o);
  if (!report.ok()) {
    r.fail("model.lock_check_failed", report.status().message(), "pointsman lock MODEL --check");
    return r;
  }
  r.evidence.push_back(format("{} entries checked, {}, {} mismatches", report->checked,
                              human_bytes(static_cast<double>(report->bytes)), report->problems.size()));
  if (!report->note.empty()) r.evidence.push_back(report->note);
  r.data.set("checked", report->checked);
  r.data.set("mismatches", static_cast<int64_t>(report->problems.size()));
  if (!report->problems.empty()) {
    const LockProblem& first = report->problems.front();
    r.fail("model.lock_mismatch",
           format("{} entries differ from the lock file; the first is {}: {}", report->problems.size(), printable(first.name),
                  printable(first.what, 300)),
           "fetch the files again; 'pointsman lock MODEL --check' lists them all");
  }
  return r;
}

}  // namespace pointsman::doctor
