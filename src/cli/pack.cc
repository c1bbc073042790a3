// SPDX-License-Identifier: Apache-2.0
//
// pointsman pack: a model to a packed folder, back, and whether a packed folder is what it was made from.
#include "pack/pack.h"

#include <cstdio>

#include "base/log.h"
#include "base/thread.h"
#include "cli/args.h"
#include "cli/command.h"
#include "cli/engine_flags.h"
#include "cli/interrupt.h"
#include "cli/progress.h"
#include "cli/utc_now.h"
#include "memory/budget.h"
#include "pack/verify.h"
#include "verify/model_lock.h"

namespace pointsman::cli {
namespace {

constexpr const char* kName = "pack";

struct Flags {
  std::string model, out, format, layout = "panel32", scale_rule = "up", shard_size = "2GiB", source;
  std::vector<std::string> rules;
  int64_t threads = 0;
  bool resume = false, unpack = false, verify = false, json = false;
};

bool show(Progress& bar, uint64_t done, uint64_t total) {
  bar.update(done, total);
  return !was_interrupted();
}

Result<PackOptions> options_of(const Flags& f) {
  PackOptions o{.resume = f.resume, .unpack = f.unpack};
  o.threads = static_cast<int>(f.threads);
  if (f.unpack) {
    if (!f.format.empty() || !f.rules.empty()) return error(StatusCode::kInvalidArgument, "--unpack takes neither --format nor --rule");
  } else {
    if (f.format.empty()) return error(StatusCode::kInvalidArgument, "--format is missing: keep, bf16, int8, int8-128, mxfp8 or mxfp4");
    PM_ASSIGN_OR_RETURN(o.format, parse_pack_format(f.format));
  }
  for (const std::string& text : f.rules) {
    PM_ASSIGN_OR_RETURN(PackRule rule, parse_pack_rule(text));
    o.rules.push_back(std::move(rule));
  }
  if (f.layout != "panel32" && f.layout != "rows") return error(StatusCode::kInvalidArgument, "--layout {}: expected panel32 or rows", f.layout);
  o.panels = f.layout == "panel32";
  if (f.scale_rule != "up" && f.scale_rule != "down") return error(StatusCode::kInvalidArgument, "--scale-rule {}: expected up or down", f.scale_rule);
  o.scale_rule = f.scale_rule == "up" ? ScaleRule::kUp : ScaleRule::kDown;
  Result<uint64_t> bytes = parse_bytes(f.shard_size);
  if (!bytes.ok()) return bytes.status().with_context("--shard-size");
  if (*bytes < 1 << 20) return error(StatusCode::kInvalidArgument, "--shard-size {}: at least 1MiB", f.shard_size);
  o.shard_bytes = *bytes;
  return o;
}

void print_totals(const PackReport& r) {
  std::printf("%llu experts, %llu other tensors in %llu files: %s from %s", static_cast<unsigned long long>(r.experts), static_cast<unsigned long long>(r.tensors),
              static_cast<unsigned long long>(r.files), human_bytes(static_cast<double>(r.output_bytes)).c_str(),
              human_bytes(static_cast<double>(r.source_bytes)).c_str());
  const double read = static_cast<double>(r.source_bytes - r.resumed_bytes);
  std::printf(" in %.1f s (%s/s)\n", r.seconds, human_bytes(r.seconds > 0 ? read / r.seconds : 0).c_str());
}

int pack(const Flags& f, Progress& bar) {
  const Result<PackOptions> options = options_of(f);
  if (!options.ok()) return usage_error(kName, options.status());
  const Result<PackReport> report = run_pack(FileSystem::real(), f.model, f.out, *options, {.tool_version = PM_VERSION, .created = utc_now()},
                                             [&bar](uint64_t done, uint64_t total) { return show(bar, done, total); });
  bar.finish();
  if (!report.ok()) return pointsman::cli::report(kName, report.status());
  if (f.json) {
    Json j = report_json(*report);
    j.set("path", f.out);
    print_json(j);
    return kExitOk;
  }
  std::printf("%s", report_text(*report).c_str());
  print_totals(*report);
  std::printf("%s: model digest %s\n", f.out.c_str(), report->model_digest.c_str());
  return kExitOk;
}

int verify(const Flags& f, bool progress) {
  FileSystem& fs = FileSystem::real();
  const int threads = f.threads > 0 ? static_cast<int>(f.threads) : usable_cpus();
  const Result<LockFile> lock = read_lock_file(fs, f.model);
  if (!lock.ok()) return report(kName, lock.status());
  Progress hashing("checking digests", Progress::Unit::kBytes, progress);
  const Result<LockCheck> digests = check_lock(fs, f.model, *lock, threads, [&](uint64_t done, uint64_t total) { return show(hashing, done, total); });
  hashing.finish();
  if (!digests.ok()) return report(kName, digests.status());
  Json j = Json::object();
  Json wrong = Json::array();
  for (const LockMismatch& m : digests->mismatches) wrong.push_back(m.kind + " " + m.name + ": " + m.what);
  uint64_t count = digests->mismatches.size();
  std::optional<PackVerification> against;
  if (!f.source.empty()) {
    Progress comparing("comparing", Progress::Unit::kBytes, progress);
    Result<PackVerification> v = verify_packed(fs, f.model, f.source, threads, [&](uint64_t done, uint64_t total) { return show(comparing, done, total); });
    comparing.finish();
    if (!v.ok()) return report(kName, v.status());
    for (const std::string& m : v->mismatches) wrong.push_back(m);
    count += v->num_mismatches;
    against = std::move(*v);
  }
  if (f.json) {
    j = against ? report_json(against->report) : j;
    j.set("schema_version", 1);
    j.set("ok", count == 0);
    j.set("model_digest", to_hex(lock->model_digest()));
    j.set("num_mismatches", count);
    j.set("mismatches", wrong);
    print_json(j);
    return count == 0 ? kExitOk : kExitFindings;
  }
  for (const Json& m : wrong.as_array()) std::printf("%s\n", m.as_string().c_str());
  if (against) {
    std::printf("%s", report_text(against->report).c_str());
    print_totals(against->report);
  }
  std::printf("%s: %llu files, %llu dense tensors, %llu experts, %s: digests checked%s, %llu mismatches\n", count == 0 ? "ok" : "MISMATCH",
              static_cast<unsigned long long>(digests->files), static_cast<unsigned long long>(digests->tensors),
              static_cast<unsigned long long>(digests->experts), human_bytes(static_cast<double>(digests->bytes)).c_str(),
              against ? ", compared with the source" : "", static_cast<unsigned long long>(count));
  return count == 0 ? kExitOk : kExitFindings;
}

}  // namespace

int run_pack(int argc, char** argv) {
  ArgParser args(kName,
                 "Rewrite a model so that every expert is one aligned piece of a file, arranged for the kernels, and quantised when asked. The result is a "
                 "safetensors checkpoint with a lock file; it appears whole or not at all.",
                 "  pointsman pack MODEL OUT --format bf16               the same numbers (BF16 stays bit for bit)\n"
                 "  pointsman pack MODEL OUT --format keep               published FP8 or MXFP4 codes as they are\n"
                 "  pointsman pack MODEL OUT --format mxfp4              experts MXFP4, attention and shared experts INT8\n"
                 "  pointsman pack MODEL OUT --format mxfp4 --rule attention=bf16 --rule 'layers.0.experts=int8'\n"
                 "  pointsman pack MODEL OUT --format int8 --resume      go on after an interruption\n"
                 "  pointsman pack OUT --verify --source MODEL           digests, and every element against the source\n"
                 "  pointsman pack OUT PLAIN --unpack                    back to rows\n"
                 "Units for rules: experts, attention, mlp, shared_expert, lm_head, embed_tokens; of one layer: layers.3.experts; * and ? stand for any\n"
                 "text and character; the last rule that matches decides. Exit code 1 when --verify finds a difference.\n");
  Flags f;
  LogFlags log;
  args.positional("MODEL,-m,--model", f.model, "Hugging Face model folder; with --verify and --unpack a packed one");
  args.positional("OUT,-o,--out", f.out, "folder to make; must not exist", false);
  args.option("--format", f.format, "keep, bf16, int8, int8-128, mxfp8 or mxfp4");
  args.list("--rule", f.rules, "UNIT=FORMAT, may be repeated");
  args.option("--layout", f.layout, "panel32 (default): for the kernels; rows: for other programs");
  args.option("--scale-rule", f.scale_rule, "of E8M0 scales: up (default), nothing saturates; down, as the OCP specification");
  args.option("--shard-size", f.shard_size, "largest file (default: 2GiB)");
  args.option("-t,--threads", f.threads, "default: two for every CPU");
  args.flag("--resume", f.resume, "go on behind the last complete file of an interrupted run");
  args.flag("--unpack", f.unpack, "undo: rows, and BF16 for what pack had quantised");
  args.flag("--verify", f.verify, "check the digests of the packed folder MODEL; writes nothing");
  args.option("--source", f.source, "with --verify: the model it was made from, to compare every element with");
  args.flag("--json", f.json, "one JSON object with every matrix");
  log.declare(args);
  if (auto code = args.parse(argc, argv)) return *code;
  if (auto code = log.apply(kName)) return *code;
  if (f.threads < 0 || f.threads > 1024) return usage_error(kName, format("--threads {}: expected 1 to 1024", f.threads));
  catch_interrupts();
  if (f.verify) {
    if (!f.out.empty() || f.unpack || f.resume || !f.format.empty()) return usage_error(kName, "--verify takes one folder, and --source");
    return verify(f, !log.no_progress);
  }
  if (!f.source.empty()) return usage_error(kName, "--source goes with --verify");
  if (f.out.empty()) return usage_error(kName, "OUT is missing: the folder to make");
  Progress bar("packing", Progress::Unit::kBytes, !log.no_progress);
  return pack(f, bar);
}

}  // namespace pointsman::cli
