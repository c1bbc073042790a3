// SPDX-License-Identifier: Apache-2.0
//
// pointsman compare: two traces, tensor by tensor.
#include <cmath>
#include <cstdio>

#include "base/log.h"
#include "cli/args.h"
#include "cli/command.h"
#include "cli/log_flags.h"
#include "verify/compare.h"

namespace pointsman::cli {
namespace {

constexpr const char* kName = "compare";

// JSON knows no infinity: a limit that is off, or a distance that is infinite, is null.
Json number(double v) {
  return std::isfinite(v) ? Json(v) : Json();
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (const int64_t d : shape) text += (text.size() == 1 ? "" : ", ") + std::to_string(d);
  return text + "]";
}

void print_text(const TraceReader& a, const TraceReader& b, const Comparison& c, bool all) {
  std::printf("%s against %s (reference), profile %s\n", a.path().c_str(), b.path().c_str(), c.limits.profile.c_str());
  for (const std::string& n : c.notes) std::printf("note: %s\n", n.c_str());
  std::printf("\n  %-30s %-16s %11s %11s %11s %10s\n", "tensor", "shape", "max abs", "max rel", "of row", "cosine");
  size_t identical = 0;
  for (const TensorDistance& t : c.tensors) {
    identical += t.bit_identical;
    if (t.bit_identical && !all && t.failure.empty()) continue;
    std::printf("%c %-30s %-16s %11.3g %11.3g %11.3g %10.7f%s%s%s\n", t.failure.empty() ? ' ' : '!', t.name.c_str(),
                shape_text(t.shape).c_str(), t.max_abs, t.max_rel, t.row_relative, t.cosine,
                t.nonfinite_a + t.nonfinite_b > 0 ? format("  non-finite {} / {}", t.nonfinite_a, t.nonfinite_b).c_str() : "",
                t.rows_left_out > 0 ? format("  {} rows left out", t.rows_left_out).c_str() : "",
                t.failure.empty() ? "" : ("  " + t.failure).c_str());
  }
  if (identical > 0)
    std::printf("  %zu of %zu tensors are bit-identical%s\n", identical, c.tensors.size(), all ? "" : " (--all lists them)");
  if (c.logits) {
    const LogitsDistance& l = *c.logits;
    std::printf("%c logits: KL mean %.3g max %.3g nats; same most likely token in %lld of %lld rows, %lld near ties%s%s\n",
                l.failure.empty() ? ' ' : '!', l.kl_mean, l.kl_max, static_cast<long long>(l.top1_same),
                static_cast<long long>(l.compared), static_cast<long long>(l.near_ties), l.failure.empty() ? "" : ": ",
                l.failure.c_str());
  }
  int64_t rows = 0, different = 0;
  for (const RouterDistance& r : c.routers) {
    rows += r.rows;
    different += r.different;
    if (r.different > 0) {
      std::printf("%c router of layer %d: %lld of %lld rows chose other experts, %lld excused, largest margin %.3g\n",
                  r.failure.empty() ? ' ' : '!', r.layer, static_cast<long long>(r.different), static_cast<long long>(r.rows),
                  static_cast<long long>(r.excused), r.max_margin);
    }
  }
  if (rows > 0)
    std::printf("  router: the same experts in %lld of %lld rows\n", static_cast<long long>(rows - different),
                static_cast<long long>(rows));
  for (const auto* list : {&c.only_a, &c.only_b}) {
    if (!list->empty()) {
      std::printf("  only in %s: %zu tensors, %s%s\n", (list == &c.only_a ? a : b).path().c_str(), list->size(),
                  list->front().c_str(), list->size() > 1 ? ", ..." : "");
    }
  }
  if (c.ok) {
    std::printf("ok\n");
  } else {
    std::printf("MISMATCH%s%s\n", c.first_divergence.empty() ? ": not the same tensors" : ", first at ",
                c.first_divergence.c_str());
  }
}

Json tensor_json(const TensorDistance& t) {
  Json j = Json::object();
  j.set("name", t.name);
  j.set("dtype", t.dtype);
  Json::Array shape;
  for (const int64_t d : t.shape) shape.emplace_back(d);
  j.set("shape", std::move(shape));
  j.set("ok", t.failure.empty());
  j.set("failure", t.failure);
  j.set("bit_identical", t.bit_identical);
  j.set("max_abs", t.max_abs);
  j.set("max_rel", t.max_rel);
  j.set("mean_rel", t.mean_rel);
  j.set("row_relative", t.row_relative);
  j.set("rmse", t.rmse);
  j.set("cosine", t.cosine);
  j.set("nonfinite_a", t.nonfinite_a);
  j.set("nonfinite_b", t.nonfinite_b);
  j.set("nonfinite_mismatch", t.nonfinite_mismatch);
  j.set("different", t.different);
  j.set("compared", t.compared);
  j.set("rows_left_out", t.rows_left_out);
  Json worst = Json::object();
  worst.set("row", t.worst_row);
  worst.set("col", t.worst_col);
  worst.set("a", t.worst_a);
  worst.set("b", t.worst_b);
  j.set("worst", std::move(worst));
  return j;
}

Json limits_json(const CompareLimits& l) {
  Json j = Json::object();
  j.set("bit_identical", l.bit_identical);
  j.set("logits_abs", number(l.logits_abs));
  j.set("row_relative", number(l.row_relative));
  j.set("atol", l.rtol >= 0 ? Json(l.atol) : Json());
  j.set("rtol", l.rtol >= 0 ? Json(l.rtol) : Json());
  j.set("mere", number(l.mere));
  j.set("min_cosine", l.min_cosine);
  j.set("kl_mean", number(l.kl_mean));
  j.set("kl_max", number(l.kl_max));
  j.set("min_top1", l.min_top1);
  j.set("tie_margin", l.tie_margin);
  j.set("router_margin", number(l.router_margin));
  return j;
}

Json strings(const std::vector<std::string>& list) {
  Json::Array array;
  for (const std::string& s : list) array.emplace_back(s);
  return array;
}

Json to_json(const TraceReader& a, const TraceReader& b, const Comparison& c) {
  Json j = Json::object();
  j.set("schema_version", 1);
  j.set("a", a.path());
  j.set("b", b.path());
  j.set("profile", c.limits.profile);
  j.set("ok", c.ok);
  j.set("first_divergence", c.first_divergence);
  j.set("limits", limits_json(c.limits));
  Json tensors = Json::array();
  for (const TensorDistance& t : c.tensors) tensors.push_back(tensor_json(t));
  j.set("tensors", std::move(tensors));
  Json logits;
  if (c.logits) {
    logits = Json::object();
    logits.set("rows", c.logits->rows);
    logits.set("compared", c.logits->compared);
    logits.set("kl_mean", number(c.logits->kl_mean));
    logits.set("kl_max", number(c.logits->kl_max));
    logits.set("kl_max_row", c.logits->kl_max_row);
    logits.set("top1_same", c.logits->top1_same);
    logits.set("near_ties", c.logits->near_ties);
    logits.set("top1_agreement", c.logits->top1());
    logits.set("failure", c.logits->failure);
  }
  j.set("logits", std::move(logits));
  Json routers = Json::array();
  for (const RouterDistance& r : c.routers) {
    Json x = Json::object();
    x.set("layer", r.layer);
    x.set("rows", r.rows);
    x.set("different", r.different);
    x.set("excused", r.excused);
    x.set("max_margin", r.max_margin);
    x.set("first_row", r.first_row);
    x.set("failure", r.failure);
    routers.push_back(std::move(x));
  }
  j.set("routers", std::move(routers));
  j.set("only_in_a", strings(c.only_a));
  j.set("only_in_b", strings(c.only_b));
  j.set("notes", strings(c.notes));
  return j;
}

}  // namespace

int run_compare(int argc, char** argv) {
  ArgParser args(
      kName,
      "Compare a trace with a reference, tensor by tensor: distances, KL divergence, routing. Exit code 1 when beyond the "
      "limits.",
      "  pointsman compare ours.safetensors transformers.safetensors\n"
      "  pointsman compare bf16.safetensors fp32.safetensors --profile bf16 --json\n"
      "Profiles: fp32 (default), bf16, strict, torch, ascend-community. A limit given as a flag replaces the profile's.\n");
  std::string path_a, path_b, profile = "fp32";
  bool json = false, all = false, common = false;
  double logits_abs = 0, row_relative = 0, kl_mean = 0, kl_max = 0, min_top1 = 0, min_cosine = 0, tie_margin = 0,
         router_margin = 0;
  LogFlags log;
  args.positional("A", path_a, "trace that is judged (.safetensors)");
  args.positional("B", path_b, "reference (.safetensors)");
  args.option("--profile", profile, "fp32 (default), bf16, strict, torch or ascend-community");
  args.option("--max-abs", logits_abs, "largest difference of a logit");
  args.option("--max-row-rel", row_relative, "largest difference relative to the largest value of the row, other tensors");
  args.option("--max-kl-mean", kl_mean, "mean KL divergence, nats");
  args.option("--max-kl", kl_max, "largest KL divergence of a position, nats");
  args.option("--min-top1", min_top1, "share of positions with the same most likely token, 0 to 1");
  args.option("--min-cosine", min_cosine, "smallest cosine of a tensor");
  args.option("--tie-margin", tie_margin, "two best logits this close are a near tie");
  args.option("--router-margin", router_margin, "other experts are excused when the gate's logits are this close");
  args.flag("--common", common, "tensors that only one file has are no mismatch");
  args.flag("--all", all, "list bit-identical tensors too");
  args.flag("--json", json, "one JSON object");
  log.declare(args);
  if (auto code = args.parse(argc, argv)) return *code;
  if (auto code = log.apply(kName)) return *code;
  if (const Result<CompareLimits> probe = compare_profile(profile, ""); !probe.ok())
    return usage_error(kName, probe.status().with_context("--profile"));
  Result<std::unique_ptr<TraceReader>> a = TraceReader::open(FileSystem::real(), path_a);
  if (!a.ok()) return report(kName, a.status());
  Result<std::unique_ptr<TraceReader>> b = TraceReader::open(FileSystem::real(), path_b);
  if (!b.ok()) return report(kName, b.status());
  CompareLimits limits = *compare_profile(profile, (*a)->metadata("numerics"));
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
  const Result<Comparison> c = compare_traces(**a, **b, {.limits = limits, .common_only = common});
  if (!c.ok()) return report(kName, c.status());
  if (json) {
    print_json(to_json(**a, **b, *c));
  } else {
    print_text(**a, **b, *c, all);
  }
  return c->ok ? kExitOk : kExitFindings;
}

}  // namespace pointsman::cli
