// SPDX-License-Identifier: Apache-2.0
//
// pointsman lock: writes pointsman.lock.json, or holds a model against it.
#include <cstdio>
#include <ctime>

#include "base/log.h"
#include "base/thread.h"
#include "cli/args.h"
#include "cli/command.h"
#include "cli/engine_flags.h"
#include "cli/interrupt.h"
#include "cli/progress.h"
#include "cli/utc_now.h"
#include "verify/model_lock.h"

namespace pointsman::cli {
namespace {

constexpr const char* kName = "lock";

bool show(Progress& bar, uint64_t done, uint64_t total) {
  bar.update(done, total);
  return !was_interrupted();
}

// What an existing lock says otherwise: writing over it must not go unnoticed.
void report_changes(const LockFile& before, const LockFile& now) {
  if (before.model_digest() == now.model_digest()) return;
  uint64_t changed = 0;
  std::string first;
  const auto count = [&](const auto& old_entries, const auto& new_entries) {
    for (const auto& [name, entry] : old_entries) {
      const auto it = new_entries.find(name);
      if (it != new_entries.end() && it->second == entry) continue;
      if (changed++ == 0) first = name;
    }
  };
  count(before.files, now.files);
  count(before.tensors, now.tensors);
  count(before.experts, now.experts);
  if (changed > 0) {
    log_warning("{} entries of the previous {} (of {}) are different or gone; the first is {}", changed, kLockFileName,
                before.created, first);
  }
}

int write_lock(const std::string& model, int threads, bool json, Progress& bar) {
  FileSystem& fs = FileSystem::real();
  Result<LockFile> lock =
      make_lock(fs, model, threads, [&bar](uint64_t done, uint64_t total) { return show(bar, done, total); });
  bar.finish();
  if (!lock.ok()) return report(kName, lock.status());
  lock->tool_version = PM_VERSION;
  lock->created = utc_now();
  if (const Result<LockFile> before = read_lock_file(fs, model); before.ok()) report_changes(*before, *lock);
  if (const Status s = write_lock_file(fs, model, *lock); !s.ok()) return report(kName, s);
  uint64_t bytes = 0;
  for (const auto* entries : {&lock->tensors, &lock->experts}) {
    for (const auto& [name, entry] : *entries) bytes += entry.size_bytes;
  }
  const std::string path = join_path(model, kLockFileName), digest = to_hex(lock->model_digest());
  if (json) {
    Json j = Json::object();
    j.set("schema_version", 1);
    j.set("path", path);
    j.set("model_digest", digest);
    j.set("files", static_cast<uint64_t>(lock->files.size()));
    j.set("tensors", static_cast<uint64_t>(lock->tensors.size()));
    j.set("experts", static_cast<uint64_t>(lock->experts.size()));
    j.set("bytes", bytes);
    print_json(j);
  } else {
    std::printf("%s: %zu files, %zu dense tensors, %zu experts, %s\nmodel digest %s\n", path.c_str(), lock->files.size(),
                lock->tensors.size(), lock->experts.size(), human_bytes(static_cast<double>(bytes)).c_str(), digest.c_str());
  }
  return kExitOk;
}

int check(const std::string& model, int threads, bool json, Progress& bar) {
  FileSystem& fs = FileSystem::real();
  const Result<LockFile> lock = read_lock_file(fs, model);
  if (!lock.ok()) return report(kName, lock.status());
  const Result<LockCheck> result =
      check_lock(fs, model, *lock, threads, [&bar](uint64_t done, uint64_t total) { return show(bar, done, total); });
  bar.finish();
  if (!result.ok()) return report(kName, result.status());
  const bool ok = result->mismatches.empty();
  if (json) {
    Json j = Json::object();
    j.set("schema_version", 1);
    j.set("ok", ok);
    j.set("model_digest", to_hex(lock->model_digest()));
    j.set("files", result->files);
    j.set("tensors", result->tensors);
    j.set("experts", result->experts);
    j.set("bytes", result->bytes);
    Json list = Json::array();
    for (const LockMismatch& m : result->mismatches) {
      Json e = Json::object();
      e.set("kind", m.kind);
      e.set("name", m.name);
      e.set("what", m.what);
      list.push_back(std::move(e));
    }
    j.set("mismatches", std::move(list));
    print_json(j);
  } else {
    for (const LockMismatch& m : result->mismatches) std::printf("%s %s: %s\n", m.kind.c_str(), m.name.c_str(), m.what.c_str());
    std::printf("%s: %llu files, %llu dense tensors, %llu experts, %s checked: ", ok ? "ok" : "MISMATCH",
                static_cast<unsigned long long>(result->files), static_cast<unsigned long long>(result->tensors),
                static_cast<unsigned long long>(result->experts), human_bytes(static_cast<double>(result->bytes)).c_str());
    std::printf("%zu mismatches\n", result->mismatches.size());
  }
  return ok ? kExitOk : kExitFindings;
}

}  // namespace

int run_lock(int argc, char** argv) {
  ArgParser args(kName,
                 "Write pointsman.lock.json, the SHA-256 of everything that is used of a model; or check a model against it.",
                 "  pointsman lock MODEL\n"
                 "  pointsman lock MODEL --check\n"
                 "Exit code 1 when --check finds a difference; every one is listed.\n");
  std::string model;
  int64_t threads = 0;
  bool check_only = false, json = false;
  LogFlags log;
  args.positional("MODEL,-m,--model", model, "Hugging Face model folder");
  args.option("-t,--threads", threads, "threads that read and hash (default: all CPUs)");
  args.flag("--check", check_only, "read everything and compare; writes nothing");
  args.flag("--json", json, "one JSON object");
  log.declare(args);
  if (auto code = args.parse(argc, argv)) return *code;
  if (auto code = log.apply(kName)) return *code;
  if (threads < 0 || threads > 1024) return usage_error(kName, format("--threads {}: expected 1 to 1024", threads));
  const int num_threads = threads == 0 ? usable_cpus() : static_cast<int>(threads);
  catch_interrupts();
  Progress bar(check_only ? "checking" : "hashing", Progress::Unit::kBytes, !log.no_progress);
  return check_only ? check(model, num_threads, json, bar) : write_lock(model, num_threads, json, bar);
}

}  // namespace pointsman::cli
