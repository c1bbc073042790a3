// SPDX-License-Identifier: Apache-2.0
//
// pointsman compare: two traces, tensor by tensor, and why they part.
#include <cstdio>

#include "base/log.h"
#include "cli/args.h"
#include "cli/command.h"
#include "cli/engine_flags.h"
#include "verify/compare_report.h"
#include "verify/reproduction.h"

namespace pointsman::cli {
namespace {

constexpr const char* kName = "compare";

struct Outputs {
  std::string html, junit, reproduction;
  bool json = false, all = false;
};

Result<std::unique_ptr<TraceReader>> open_optional(const std::string& path) {
  if (path.empty()) return std::unique_ptr<TraceReader>();
  return TraceReader::open(FileSystem::real(), path);
}

// What is judged for a cause: the whole run, or each layer alone where a shadow run says what it should have given.
Result<std::optional<Diagnosis>> find_cause(TraceReader& a, TraceReader& b, TraceReader* shadow, const Comparison& c, const CompareOptions& options,
                                            ModelTensors* model, const std::string& reproduction) {
  if (c.first_divergence.empty()) return std::optional<Diagnosis>();
  std::optional<Comparison> local;
  TraceReader* reference = &b;
  if (shadow != nullptr && !c.first_local.empty()) {
    CompareOptions alone = options;
    alone.shadow = nullptr;
    alone.common_only = true;
    PM_ASSIGN_OR_RETURN(local, compare_traces(a, *shadow, alone));
    reference = shadow;
  }
  const DiagnoseInputs inputs{.a = a, .b = *reference, .comparison = local ? *local : c, .model = model};
  PM_ASSIGN_OR_RETURN(std::optional<Diagnosis> d, diagnose(inputs));
  if (d && shadow != nullptr && c.first_local.empty()) {
    // Forced routing parts the choice from what was chosen.
    const bool forced = shadow->metadata("replay").find("routes") != std::string::npos;
    d->evidence.insert(d->evidence.begin(),
                       forced ? "with its own inputs and its own routes forced on a trusted model, every layer is right: experts are not at fault, the choice is"
                              : "every layer alone is within the limits of the shadow run: what differs was inherited");
  }
  if (d && !reproduction.empty()) {
    PM_RETURN_IF_ERROR(write_reproduction(FileSystem::real(), reproduction, inputs, *d));
    std::fprintf(stderr, "%s: inputs, weights, expected and found of %s\n", reproduction.c_str(), d->tensor.c_str());
  }
  return d;
}

int print(const CompareReport& report, const Outputs& out) {
  for (const auto& [path, text] : {std::pair(&out.html, &compare_html), std::pair(&out.junit, &compare_junit)}) {
    if (path->empty()) continue;
    if (const Status s = write_text_file(FileSystem::real(), *path, text(report)); !s.ok()) return pointsman::cli::report(kName, s, true);
  }
  if (out.json) {
    print_json(compare_json(report));
  } else {
    std::fputs(compare_text(report).c_str(), stdout);
  }
  return report.comparison.ok ? kExitOk : kExitFindings;
}

}  // namespace

int run_compare(int argc, char** argv) {
  ArgParser args(
      kName,
      "Compare a trace with a reference, tensor by tensor: distances, KL divergence, routing; and name the first operator that is wrong, with "
      "what was measured. Exit code 1 when beyond the limits.",
      "  pointsman compare ours.safetensors transformers.safetensors --model MODEL --html report.html\n"
      "  pointsman compare bf16.safetensors fp32.safetensors --profile bf16 --json\n"
      "  pointsman compare npu_dump/ ours.safetensors --profile ascend-community --common\n"
      "A trace is a file of `pointsman trace` or python/pointsman_trace.py, a folder of .npy files, or an msprobe dump folder.\n"
      "Profiles: fp32 (default), bf16, strict, torch, ascend-community, ascend-l1. A limit given as a flag replaces the profile's.\n");
  std::string path_a, path_b, profile = "fp32", model_dir, baseline_path, shadow_path;
  bool common = false;
  Outputs out;
  double logits_abs = 0, row_relative = 0, kl_mean = 0, kl_max = 0, min_top1 = 0, min_cosine = 0, tie_margin = 0,
         router_margin = 0;
  LogFlags log;
  args.positional("A", path_a, "trace that is judged");
  args.positional("B", path_b, "reference");
  args.option("--profile", profile, "fp32 (default), bf16, strict, torch, ascend-community or ascend-l1");
  args.option("--model", model_dir, "model folder of the reference: its weights are tried as explanations");
  args.option("--shadow", shadow_path, "what a trusted model gives for A's own layer inputs (pointsman trace MODEL --replay A)");
  args.option("--baseline", baseline_path, "a third run, whose errors are the measure of profile ascend-l1; B is then the golden one");
  args.option("--max-abs", logits_abs, "largest difference of a logit");
  args.option("--max-row-rel", row_relative, "largest difference relative to the largest value of the row, other tensors");
  args.option("--max-kl-mean", kl_mean, "mean KL divergence, nats");
  args.option("--max-kl", kl_max, "largest KL divergence of a position, nats");
  args.option("--min-top1", min_top1, "share of positions with the same most likely token, 0 to 1");
  args.option("--min-cosine", min_cosine, "smallest cosine of a tensor");
  args.option("--tie-margin", tie_margin, "two best logits this close are a near tie");
  args.option("--router-margin", router_margin, "other experts are excused when the gate's logits are this close");
  args.option("--repro", out.reproduction, "write inputs, weights, expected and found of the first bad operator (.safetensors)");
  args.option("--html", out.html, "write a report with a picture");
  args.option("--junit", out.junit, "write a JUnit file");
  args.flag("--common", common, "tensors that only one file has are no mismatch");
  args.flag("--all", out.all, "list every tensor and every flip");
  args.flag("--json", out.json, "one JSON object");
  log.declare(args);
  if (auto code = args.parse(argc, argv)) return *code;
  if (auto code = log.apply(kName)) return *code;
  const Result<CompareLimits> probe = compare_profile(profile, "");
  if (!probe.ok()) return usage_error(kName, probe.status().with_context("--profile"));
  if (probe->needs_baseline() && baseline_path.empty())
    return usage_error(kName, "--profile " + profile + " judges errors as multiples of a third run's: --baseline FILE is needed");
  Result<std::unique_ptr<TraceReader>> a = TraceReader::open(FileSystem::real(), path_a);
  if (!a.ok()) return report(kName, a.status());
  Result<std::unique_ptr<TraceReader>> b = TraceReader::open(FileSystem::real(), path_b);
  if (!b.ok()) return report(kName, b.status());
  Result<std::unique_ptr<TraceReader>> baseline = open_optional(baseline_path), shadow = open_optional(shadow_path);
  if (!baseline.ok()) return report(kName, baseline.status());
  if (!shadow.ok()) return report(kName, shadow.status());
  std::unique_ptr<ModelTensors> model;
  if (!model_dir.empty()) {
    Result<std::unique_ptr<ModelTensors>> opened = ModelTensors::open(FileSystem::real(), model_dir);
    if (!opened.ok()) return report(kName, opened.status());
    model = std::move(*opened);
  }
  CompareOptions options{.limits = *compare_profile(profile, (*a)->metadata("numerics")),
                         .common_only = common,
                         .baseline = baseline->get(),
                         .shadow = shadow->get(),
                         .routed_scaling_factor = model != nullptr ? model->config().routed_scaling_factor : 1};
  CompareLimits& limits = options.limits;
  const auto replace = [&](const char* flag, double value, double& limit) {
    if (args.given(flag)) limit = value;
  };
  replace("--max-abs", logits_abs, limits.logits_abs);
  replace("--max-row-rel", row_relative, limits.row_relative);
  replace("--max-kl-mean", kl_mean, limits.kl_mean);
  replace("--max-kl", kl_max, limits.kl_max);
  replace("--min-top1", min_top1, limits.min_top1);
  replace("--min-cosine", min_cosine, limits.min_cosine);
  replace("--tie-margin", tie_margin, limits.tie_margin);
  replace("--router-margin", router_margin, limits.router_margin);
  const Result<Comparison> c = compare_traces(**a, **b, options);
  if (!c.ok()) return report(kName, c.status());
  const Result<std::optional<Diagnosis>> d = find_cause(**a, **b, shadow->get(), *c, options, model.get(), out.reproduction);
  if (!d.ok()) return report(kName, d.status());
  return print({.a = path_a, .b = path_b, .comparison = *c, .diagnosis = *d, .all = out.all}, out);
}

}  // namespace pointsman::cli
