// SPDX-License-Identifier: Apache-2.0
//
// pointsman audit: what of a source tree will not survive the move to Ascend.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "audit/audit.h"
#include "audit/baseline.h"
#include "audit/fix_preview.h"
#include "audit/report/report.h"
#include "base/log.h"
#include "cli/args.h"
#include "cli/command.h"
#include "cli/log_flags.h"

namespace pointsman::cli {
namespace {

constexpr const char* kName = "audit";

struct Flags {
  std::string path, format = "text", soc, data, confidence = "hint", fail_on = "performance", explain, baseline, write_baseline;
  std::vector<std::string> rules, disabled, excludes;
  int64_t threads = 0, max_file_bytes = 4 << 20;
  bool all = false, list_rules = false, show_suppressed = false, fix_preview = false;
};

bool wants_colour() {
  const char* no = std::getenv("NO_COLOR");
  return isatty(STDOUT_FILENO) != 0 && (no == nullptr || *no == '\0');
}

// Flags to options; a usage error otherwise.
Result<audit::AuditOptions> options_of(const Flags& f) {
  audit::AuditOptions o;
  if (!f.soc.empty()) {
    const auto soc = audit::parse_soc(f.soc);
    if (!soc) return error(StatusCode::kInvalidArgument, "--soc {}: expected a2, a3, 950pr or 950dt", f.soc);
    o.soc = *soc;
  }
  const auto confidence = audit::parse_confidence(f.confidence);
  if (!confidence) return error(StatusCode::kInvalidArgument, "--min-confidence {}: expected certain, likely or hint", f.confidence);
  o.min_confidence = *confidence;
  if (f.threads < 0 || f.threads > 64) return error(StatusCode::kInvalidArgument, "--threads {}: expected 0 to 64", f.threads);
  if (f.max_file_bytes < 1 || f.max_file_bytes > (int64_t{1} << 28)) return error(StatusCode::kInvalidArgument, "--max-file-bytes {}: expected 1 to {}", f.max_file_bytes, int64_t{1} << 28);
  o.num_threads = static_cast<int>(f.threads);
  o.walk.max_file_bytes = static_cast<uint64_t>(f.max_file_bytes);
  o.walk.include_vendored = f.all;
  o.walk.excludes = f.excludes;
  o.rules = f.rules;
  o.disabled = f.disabled;
  o.data_directory = f.data;
  return o;
}

bool is_format(std::string_view s) { return s == "text" || s == "json" || s == "sarif" || s == "html" || s == "junit"; }

void print_result(const Flags& f, const audit::AuditResult& result, audit::Severity threshold) {
  if (f.format == "json") {
    print_json(audit::json_report(result));
  } else if (f.format == "sarif") {
    print_json(audit::sarif_report(result, PM_VERSION));
  } else if (f.format == "html") {
    std::fputs(audit::html_report(result, PM_VERSION).c_str(), stdout);
  } else if (f.format == "junit") {
    std::fputs(audit::junit_report(result, threshold).c_str(), stdout);
  } else {
    std::fputs(audit::text_report(result, {.colour = wants_colour(), .show_suppressed = f.show_suppressed}).c_str(), stdout);
  }
}

// The patch to stdout, what it leaves out to stderr.
Status print_fixes(const audit::AuditResult& result) {
  PM_ASSIGN_OR_RETURN(const audit::FixPreview preview, audit::fix_preview(FileSystem::real(), result));
  std::fputs(preview.patch.c_str(), stdout);
  std::fprintf(stderr, "pointsman audit: %zu mechanical changes%s; nothing was written\n", preview.edits,
               preview.left_out > 0 ? format(", {} more are left to you (notebooks, unusual encodings, overlaps)", preview.left_out).c_str() : "");
  return ok_status();
}

// Baseline read and written as the flags ask for.
Status baselines(const Flags& f, audit::AuditResult& result) {
  if (!f.baseline.empty()) {
    PM_ASSIGN_OR_RETURN(const std::string text, read_text_file(FileSystem::real(), f.baseline, 256u << 20));
    const Result<size_t> gone = audit::apply_baseline(text, result);
    if (!gone.ok()) return gone.status().with_context(f.baseline);
    if (*gone > 0) std::fprintf(stderr, "pointsman audit: %zu entries of %s match nothing any more\n", *gone, f.baseline.c_str());
  }
  if (!f.write_baseline.empty()) return write_text_file(FileSystem::real(), f.write_baseline, audit::baseline_text(result));
  return ok_status();
}

}  // namespace

int run_audit(int argc, char** argv) {
  ArgParser args(kName,
                 "What of a source tree breaks, hangs, slows down or computes something else on Ascend (CANN). Reads Python, C++, CUDA, configuration, "
                 "Dockerfiles, shell, notebooks and code blocks of documents; never runs them.",
                 "  pointsman audit ./my_model\n"
                 "  pointsman audit ./my_model --soc 950dt --min-confidence likely --format json\n"
                 "  pointsman audit --explain R01\n"
                 "  pointsman audit ./my_model --write-baseline known.json; pointsman audit ./my_model --baseline known.json --format sarif\n"
                 "  pointsman audit ./my_model --fix-preview > devices.patch\n"
                 "Exit code: 0 nothing at or above --fail-on, 1 findings, 2 usage, 3 the path or the data cannot be read.\n");
  Flags f;
  args.positional("PATH", f.path, "folder or file", false);
  args.option("--format", f.format, "text (default), json, sarif, html or junit");
  args.option("--soc", f.soc, "target: a2, a3, 950pr or 950dt (default: any)");
  args.option("--fail-on", f.fail_on, "exit code 1 from this severity on: blocks, wrong_numbers, performance (default), version, info, never");
  args.option("--min-confidence", f.confidence, "certain, likely or hint (default)");
  args.list("--rule", f.rules, "only this rule; repeatable");
  args.list("--disable", f.disabled, "without this rule; repeatable");
  args.option("--explain", f.explain, "what a rule is about, and the fix");
  args.flag("--list-rules", f.list_rules, "all rules");
  args.option("--data", f.data, "folder whose JSON files replace the built-in lists of names and versions");
  args.list("--exclude", f.excludes, "leave out this file or folder (relative to PATH); repeatable");
  args.flag("--all", f.all, "look into build and vendored folders, too");
  args.option("--baseline", f.baseline, "findings in this file are known and do not count");
  args.option("--write-baseline", f.write_baseline, "write the findings there");
  args.flag("--fix-preview", f.fix_preview, "print a patch of the mechanical corrections instead of a report; writes nothing");
  args.flag("--show-suppressed", f.show_suppressed, "list what comments silence");
  args.option("--max-file-bytes", f.max_file_bytes, "larger files are skipped (default 4194304)");
  args.option("-t,--threads", f.threads, "threads (default: all CPUs)");
  LogFlags log;
  log.declare(args);
  if (auto code = args.parse(argc, argv)) return *code;
  if (auto code = log.apply(kName)) return *code;
  if (f.list_rules) {
    std::fputs(audit::list_rules().c_str(), stdout);
    return kExitOk;
  }
  if (!f.explain.empty()) {
    const audit::Rule* rule = audit::find_rule(f.explain);
    if (rule == nullptr) return usage_error(kName, format("--explain {}: there is no such rule; --list-rules has them all", f.explain));
    std::fputs(audit::explain(*rule).c_str(), stdout);
    return kExitOk;
  }
  if (f.path.empty()) return usage_error(kName, "PATH is required");
  const bool never = f.fail_on == "never";
  const auto threshold = audit::parse_severity(f.fail_on);
  if (!threshold && !never) return usage_error(kName, format("--fail-on {}: expected blocks, wrong_numbers, performance, version, info or never", f.fail_on));
  if (!is_format(f.format)) return usage_error(kName, format("--format {}: expected text, json, sarif, html or junit", f.format));
  const Result<audit::AuditOptions> options = options_of(f);
  if (!options.ok()) return usage_error(kName, options.status());
  Result<audit::AuditResult> result = audit::audit(FileSystem::real(), f.path, *options);
  if (!result.ok()) return result.status().code() == StatusCode::kInvalidArgument ? usage_error(kName, result.status()) : report(kName, result.status());
  if (const Status s = baselines(f, *result); !s.ok()) return report(kName, s);
  if (f.fix_preview) {
    if (const Status s = print_fixes(*result); !s.ok()) return report(kName, s);
  } else {
    print_result(f, *result, threshold.value_or(audit::Severity::kBlocks));
  }
  return !never && audit::reaches(*result, *threshold) ? kExitFindings : kExitOk;
}

}  // namespace pointsman::cli
