// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "verify/compare_report.h"

namespace pointsman {
namespace {

// JSON knows no infinity: a limit that is off, or a distance that is infinite, is null.
Json number(double v) { return std::isfinite(v) ? Json(v) : Json(); }

template <class T>
Json list(const std::vector<T>& values) {
  Json::Array array;
  for (const T& v : values) array.emplace_back(v);
  return array;
}
Json counts(const std::vector<uint64_t>& values) { return list(values); }

Json tensor_json(const TensorDistance& t) {
  Json j = Json::object();
  j.set("name", t.name);
  j.set("dtype", t.dtype);
  j.set("shape", list(t.shape));
  j.set("ok", t.failure.empty());
  j.set("failure", t.failure);
  j.set("bit_identical", t.bit_identical);
  j.set("max_abs", t.max_abs);
  j.set("max_rel", t.max_rel);
  j.set("mean_rel", t.mean_rel);
  j.set("row_relative", t.row_relative);
  j.set("local_row_relative", t.local_row_relative >= 0 ? Json(t.local_row_relative) : Json());
  j.set("rmse", t.rmse);
  j.set("nmse", number(t.nmse));
  j.set("sqnr_db", number(t.sqnr_db()));
  j.set("cosine", t.cosine);
  j.set("share_above_1e-3", t.share_above_1e3);
  j.set("share_above_5e-3", t.share_above_5e3);
  Json ulp;
  if (t.ulp.counted) {
    ulp = Json::object();
    ulp.set("max", t.ulp.max);
    ulp.set("p99", t.ulp.quantile(0.99));
    // Bucket 0: equal; bucket i: 2^(i-1) to 2^i - 1. Without empty ones at the end.
    size_t used = UlpHistogram::kBuckets;
    while (used > 1 && t.ulp.buckets[used - 1] == 0) --used;
    ulp.set("histogram", counts(std::vector<uint64_t>(t.ulp.buckets, t.ulp.buckets + used)));
  }
  j.set("ulp", std::move(ulp));
  j.set("nonfinite_a", t.nonfinite_a);
  j.set("nonfinite_b", t.nonfinite_b);
  j.set("nonfinite_mismatch", t.nonfinite_mismatch);
  j.set("different", t.different);
  j.set("compared", t.compared);
  j.set("rows_left_out", t.rows_left_out);
  if (t.mere_ratio >= 0) {
    Json ratios = Json::object();
    ratios.set("mare", number(t.mare_ratio));
    ratios.set("mere", number(t.mere_ratio));
    ratios.set("rmse", number(t.rmse_ratio));
    j.set("baseline_ratios", std::move(ratios));
  }
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
  j.set("mare_ratio", number(l.mare_ratio));
  j.set("mere_ratio", number(l.mere_ratio));
  j.set("rmse_ratio", number(l.rmse_ratio));
  j.set("min_cosine", l.min_cosine);
  j.set("kl_mean", number(l.kl_mean));
  j.set("kl_max", number(l.kl_max));
  j.set("min_top1", l.min_top1);
  j.set("tie_margin", l.tie_margin);
  j.set("router_margin", number(l.router_margin));
  return j;
}

Json logits_json(const LogitsDistance& l) {
  Json j = Json::object();
  j.set("rows", l.rows);
  j.set("compared", l.compared);
  j.set("kl_mean", number(l.kl_mean));
  j.set("kl_median", number(l.kl_median));
  j.set("kl_p90", number(l.kl_p90));
  j.set("kl_p99", number(l.kl_p99));
  j.set("kl_p999", number(l.kl_p999));
  j.set("kl_max", number(l.kl_max));
  j.set("kl_max_row", l.kl_max_row);
  j.set("top1_same", l.top1_same);
  j.set("near_ties", l.near_ties);
  j.set("top1_agreement", l.top1());
  j.set("top5_holds", l.top5_holds);
  j.set("top5_overlap", l.top5_overlap);
  Json perplexity;
  if (l.scored > 0) {
    perplexity = Json::object();
    perplexity.set("tokens", l.scored);
    perplexity.set("a", number(l.perplexity_a));
    perplexity.set("b", number(l.perplexity_b));
    perplexity.set("ratio", number(l.ratio));
    perplexity.set("ratio_standard_error", number(l.ratio_error));
  }
  j.set("perplexity", std::move(perplexity));
  j.set("failure", l.failure);
  return j;
}

Json router_json(const RouterDistance& r) {
  Json x = Json::object();
  x.set("layer", r.layer);
  x.set("rows", r.rows);
  x.set("different", r.different);
  x.set("flip_rate", r.flip_rate());
  x.set("order_different", r.order_different);
  x.set("excused", r.excused);
  x.set("max_margin", r.max_margin);
  x.set("median_margin", r.median_margin);
  x.set("first_row", r.first_row);
  Json flips = Json::array();
  for (const RouterFlip& f : r.flips) {
    Json j = Json::object();
    j.set("row", f.row);
    j.set("margin", number(f.margin));
    j.set("margin_a", number(f.margin_a));
    j.set("ids", list(f.ids));
    j.set("reference_ids", list(f.reference_ids));
    j.set("excused", f.excused);
    flips.push_back(std::move(j));
  }
  x.set("flips", std::move(flips));
  if (r.has_weights) {
    Json sums = Json::object();
    sums.set("min_a", number(r.weight_sum_min_a));
    sums.set("max_a", number(r.weight_sum_max_a));
    sums.set("min_b", number(r.weight_sum_min_b));
    sums.set("max_b", number(r.weight_sum_max_b));
    sums.set("deviation", number(r.weight_sum_deviation));
    x.set("weight_sums", std::move(sums));
  }
  if (r.has_logits) {
    Json range = Json::object();
    range.set("min_a", r.logit_min_a);
    range.set("max_a", r.logit_max_a);
    range.set("min_b", r.logit_min_b);
    range.set("max_b", r.logit_max_b);
    x.set("logits_range", std::move(range));
  }
  Json load = Json::object();
  load.set("a", counts(r.load_a));
  load.set("b", counts(r.load_b));
  load.set("max_violation_a", r.max_violation_a);
  load.set("max_violation_b", r.max_violation_b);
  load.set("starved", list(r.starved));
  load.set("overloaded", list(r.overloaded));
  x.set("load", std::move(load));
  x.set("failure", r.failure);
  return x;
}

Json diagnosis_json(const Diagnosis& d) {
  Json j = Json::object();
  j.set("kind", fault_kind_name(d.kind));
  j.set("layer", d.layer >= 0 && d.layer < kAfterLayers ? Json(d.layer) : Json());
  j.set("tensor", d.tensor);
  j.set("operator", d.op);
  j.set("cause", d.cause);
  j.set("evidence", list(d.evidence));
  j.set("experts", list(d.experts));
  j.set("rows", list(d.rows));
  j.set("advice", d.advice);
  return j;
}

}  // namespace

Json compare_json(const CompareReport& report) {
  const Comparison& c = report.comparison;
  Json j = Json::object();
  j.set("schema_version", 1);
  j.set("a", report.a);
  j.set("b", report.b);
  j.set("profile", c.limits.profile);
  j.set("ok", c.ok);
  j.set("first_divergence", c.first_divergence);
  j.set("first_local", c.first_local);
  j.set("diagnosis", report.diagnosis ? diagnosis_json(*report.diagnosis) : Json());
  j.set("limits", limits_json(c.limits));
  Json tensors = Json::array();
  for (const TensorDistance& t : c.tensors) tensors.push_back(tensor_json(t));
  j.set("tensors", std::move(tensors));
  j.set("logits", c.logits ? logits_json(*c.logits) : Json());
  Json routers = Json::array();
  for (const RouterDistance& r : c.routers) routers.push_back(router_json(r));
  j.set("routers", std::move(routers));
  j.set("only_in_a", list(c.only_a));
  j.set("only_in_b", list(c.only_b));
  j.set("notes", list(c.notes));
  return j;
}

}  // namespace pointsman
