// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "base/log.h"
#include "base/markup.h"
#include "verify/compare_report.h"

namespace pointsman {
namespace {

std::string join(const std::vector<int>& list) {
  std::string text;
  for (const int v : list) text += (text.empty() ? "" : " ") + std::to_string(v);
  return text;
}
std::string join(const std::vector<int32_t>& list, size_t most) {
  std::string text;
  for (size_t i = 0; i < std::min(most, list.size()); ++i) text += (i > 0 ? " " : "") + std::to_string(list[i]);
  return text + (list.size() > most ? " ..." : "");
}

// Values of other signs are billions of steps apart: then the count says nothing more.
std::string ulp_text(const UlpHistogram& u) {
  if (!u.counted) return "-";
  const uint64_t p99 = u.quantile(0.99);
  return p99 < 1'000'000 ? std::to_string(p99) : ">1e6";
}

void tensors_text(const CompareReport& r, std::string& out) {
  const Comparison& c = r.comparison;
  const bool has_local = std::any_of(c.tensors.begin(), c.tensors.end(), [](const TensorDistance& t) { return t.local_row_relative >= 0; });
  out += format("\n  {:<30} {:<14} {:>9} {:>9} {:>9} {:>8} {:>10} {:>9}\n", "tensor", "shape", "max abs", "of row", has_local ? "local" : "MERE",
                "SQNR dB", "cosine", "ulp p99");
  size_t identical = 0, shown = 0, hidden = 0;
  constexpr size_t kMaxShown = 60;
  for (const TensorDistance& t : c.tensors) {
    identical += t.bit_identical;
    if (t.bit_identical && !r.all && t.failure.empty()) continue;
    if (!r.all && shown >= kMaxShown) {
      ++hidden;
      continue;
    }
    ++shown;
    out += format("{} {:<30} {:<14} {:>9.3g} {:>9.3g} {:>9.3g} {:>8.1f} {:>10.7f} {:>9}", t.failure.empty() ? ' ' : '!', t.name, shape_text(t.shape),
                  t.max_abs, t.row_relative, has_local ? t.local_row_relative : t.mean_rel, std::min(999.0, t.sqnr_db()), t.cosine,
                  ulp_text(t.ulp));
    if (t.nonfinite_a + t.nonfinite_b > 0) out += format("  non-finite {} / {}", t.nonfinite_a, t.nonfinite_b);
    if (t.rows_left_out > 0) out += format("  {} rows left out", t.rows_left_out);
    if (!t.failure.empty()) out += "  " + t.failure;
    out += "\n";
  }
  if (hidden > 0) out += format("  ... {} more tensors (--all lists them)\n", hidden);
  if (identical > 0)
    out += format("  {} of {} tensors are bit-identical{}\n", identical, c.tensors.size(), r.all ? "" : " (--all lists them)");
}

void logits_text(const LogitsDistance& l, std::string& out) {
  out += format("{} logits: KL mean {:.3g} median {:.3g} p90 {:.3g} p99 {:.3g} max {:.3g} nats (row {})\n", l.failure.empty() ? ' ' : '!', l.kl_mean,
                l.kl_median, l.kl_p90, l.kl_p99, l.kl_max, l.kl_max_row);
  out += format("  same most likely token in {} of {} rows, {} near ties; the reference's is among the best five in {}; {:.1f} % of the best five shared\n",
                l.top1_same, l.compared, l.near_ties, l.top5_holds, 100 * l.top5_overlap);
  if (l.scored > 0)
    out += format("  perplexity {:.5g} against {:.5g}: ratio {:.5f} +- {:.5f} over {} tokens\n", l.perplexity_a, l.perplexity_b, l.ratio, l.ratio_error, l.scored);
  if (!l.failure.empty()) out += "  " + l.failure + "\n";
}

void routers_text(const CompareReport& report, std::string& out) {
  int64_t rows = 0, different = 0;
  for (const RouterDistance& r : report.comparison.routers) {
    rows += r.rows;
    different += r.different;
    if (r.different > 0) {
      out += format("{} router of layer {}: {} of {} rows chose other experts ({:.1f} %), {} excused; gate margin of the flips: median {:.3g}, largest {:.3g}\n",
                    r.failure.empty() ? ' ' : '!', r.layer, r.different, r.rows, 100 * r.flip_rate(), r.excused, r.median_margin, r.max_margin);
      size_t shown = 0;
      for (const RouterFlip& f : r.flips) {
        if (++shown > 3 && !report.all) {
          out += format("    ... {} more (--all lists them)\n", r.flips.size() - 3);
          break;
        }
        out += format("    row {}: {} instead of {}, margin {:.3g}{}\n", f.row, join(f.ids, 8), join(f.reference_ids, 8), f.margin, f.excused ? ", excused" : "");
      }
    }
    if (r.order_different > 0) out += format("  router of layer {}: the same experts in another order in {} rows\n", r.layer, r.order_different);
    if (r.has_weights && r.weight_sum_deviation > 1e-4) {
      out += format("  router of layer {}: weights of a row sum to {:.4g} to {:.4g}, in the reference {:.4g} to {:.4g}\n", r.layer, r.weight_sum_min_a,
                    r.weight_sum_max_a, r.weight_sum_min_b, r.weight_sum_max_b);
    }
    // A range this wide leaves few bits between neighbours in a short type.
    if (r.has_logits && std::max(-r.logit_min_a, r.logit_max_a) > 50)
      out += format("  router of layer {}: logits from {:.4g} to {:.4g} (reference {:.4g} to {:.4g})\n", r.layer, r.logit_min_a, r.logit_max_a, r.logit_min_b, r.logit_max_b);
    if (!r.starved.empty()) out += format("  router of layer {}: experts that only the reference uses: {}\n", r.layer, join(r.starved));
    if (!r.overloaded.empty()) out += format("  router of layer {}: experts with more than twice the reference's load: {}\n", r.layer, join(r.overloaded));
  }
  if (rows > 0) out += format("  router: the same experts in {} of {} rows\n", rows - different, rows);
}

void diagnosis_text(const Diagnosis& d, std::string& out) {
  out += format("\nfirst bad: {}{}, made by the {}\n", d.tensor, d.layer >= 0 && d.layer < kAfterLayers ? format(" (layer {})", d.layer) : "", d.op);
  out += format("  kind: {}\n", fault_kind_name(d.kind));
  out += format("  cause: {}\n", d.cause.empty() ? "no explanation that is known here reproduces the values" : d.cause);
  for (const std::string& line : d.evidence) out += "    - " + line + "\n";
  if (!d.advice.empty()) out += "  to learn more: " + d.advice + "\n";
}

}  // namespace

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (const int64_t d : shape) text += (text.size() == 1 ? "" : ", ") + std::to_string(d);
  return text + "]";
}

std::string compare_text(const CompareReport& r) {
  const Comparison& c = r.comparison;
  std::string out = format("{} against {} (reference), profile {}\n", r.a, r.b, c.limits.profile);
  for (const std::string& n : c.notes) out += "note: " + n + "\n";
  tensors_text(r, out);
  if (c.logits) logits_text(*c.logits, out);
  routers_text(r, out);
  for (const auto* list : {&c.only_a, &c.only_b}) {
    if (!list->empty()) {
      out += format("  only in {}: {} tensors, {}{}\n", list == &c.only_a ? r.a : r.b, list->size(), list->front(), list->size() > 1 ? ", ..." : "");
    }
  }
  if (r.diagnosis) diagnosis_text(*r.diagnosis, out);
  if (c.ok) {
    out += "ok\n";
  } else {
    out += format("MISMATCH{}{}\n", c.first_divergence.empty() ? ": not the same tensors" : ", first at ", c.first_divergence);
  }
  return out;
}

std::string compare_junit(const CompareReport& r) {
  std::vector<JunitCase> cases;
  for (const TensorDistance& t : r.comparison.tensors) {
    cases.push_back({.name = t.name, .class_name = "compare.tensors", .failure = t.failure,
                     .output = format("max abs {:.4g}, of row {:.4g}, cosine {:.7f}", t.max_abs, t.row_relative, t.cosine)});
  }
  for (const RouterDistance& x : r.comparison.routers)
    cases.push_back({.name = format("layers.{}.router", x.layer), .class_name = "compare.routing", .failure = x.failure, .output = ""});
  if (r.comparison.logits) {
    cases.push_back({.name = "logits", .class_name = "compare.distribution", .failure = r.comparison.logits->failure,
                     .output = format("KL mean {:.4g}, max {:.4g}", r.comparison.logits->kl_mean, r.comparison.logits->kl_max)});
  }
  for (const auto& [list, where] : {std::pair(&r.comparison.only_a, &r.a), std::pair(&r.comparison.only_b, &r.b)}) {
    const bool matters = !r.comparison.ok && r.comparison.first_divergence.empty();
    if (matters && !list->empty()) {
      cases.push_back({.name = "only in " + *where, .class_name = "compare.names",
                       .failure = format("{} tensors, {} first", list->size(), list->front()), .output = ""});
    }
  }
  // The diagnosis goes with the tensor that it speaks of.
  if (r.diagnosis) {
    std::string text;
    for (const std::string& line : r.diagnosis->evidence) text += "\n" + line;
    for (JunitCase& c : cases) {
      if ((c.name != r.diagnosis->tensor && !r.diagnosis->tensor.starts_with(c.name + ".")) || c.failure.empty()) continue;
      c.failure = format("{}: {}{}\n{}", fault_kind_name(r.diagnosis->kind), r.diagnosis->cause.empty() ? "no known cause" : r.diagnosis->cause, text, c.failure);
      break;
    }
  }
  return junit_xml(format("compare {} {}", r.a, r.b), cases);
}

}  // namespace pointsman
