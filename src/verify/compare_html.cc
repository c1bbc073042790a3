// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <map>

#include "base/log.h"
#include "base/markup.h"
#include "verify/compare_report.h"

namespace pointsman {
namespace {

constexpr double kWidth = 920, kHeight = 380, kLeft = 62, kRight = 214, kTop = 20, kBottom = 46;
// Differences below this are drawn at the bottom: nothing in fp32 is smaller.
constexpr double kFloor = 1e-9;
constexpr size_t kMaxRows = 3000;

struct Kind {
  TracePoint point;
  const char* name;
  const char* colour;
};
// Colours that differ for the colour-blind too (Okabe and Ito), then dashes.
constexpr Kind kKinds[] = {
    {TracePoint::kAttentionInput, "attention input", "#999999"}, {TracePoint::kQ, "q", "#56b4e9"},
    {TracePoint::kK, "k", "#56b4e9"},                            {TracePoint::kV, "v", "#56b4e9"},
    {TracePoint::kQRotated, "q rotated", "#0072b2"},             {TracePoint::kKRotated, "k rotated", "#0072b2"},
    {TracePoint::kContext, "attention context", "#e69f00"},      {TracePoint::kResidual, "attention residual", "#f0b040"},
    {TracePoint::kMlpInput, "MLP input", "#777777"},             {TracePoint::kRouterLogits, "router logits", "#cc79a7"},
    {TracePoint::kRouterWeights, "routing weights", "#aa4499"},  {TracePoint::kExpertsGate, "experts gate", "#117733"},
    {TracePoint::kExpertsUp, "experts up", "#117733"},           {TracePoint::kExpertsAct, "experts SwiGLU", "#009e73"},
    {TracePoint::kExpertsOutput, "experts output", "#44bb99"},   {TracePoint::kHidden, "hidden", "#000000"},
    {TracePoint::kOther, "other", "#bbbb00"},
};

struct Axes {
  int first = 0, last = 1;
  double low = -9, high = 0;  // decades
  double x(double layer) const { return kLeft + (layer - first + 0.5) / (last - first + 1) * (kWidth - kLeft - kRight); }
  double y(double value) const {
    const double decade = std::clamp(std::log10(std::max(value, kFloor)), low, high);
    return kTop + (high - decade) / (high - low) * (kHeight - kTop - kBottom);
  }
};

double drawn(const TensorDistance& t) { return t.nonfinite_mismatch > 0 ? HUGE_VAL : t.row_relative; }

Axes axes_of(const Comparison& c) {
  Axes a{.first = 1 << 30, .last = -1};
  double most = 1e-6;
  for (const TensorDistance& t : c.tensors) {
    const int layer = trace_place(t.name).layer;
    if (layer < 0 || layer >= kAfterLayers) continue;
    a.first = std::min(a.first, layer);
    a.last = std::max(a.last, layer);
    if (std::isfinite(drawn(t))) most = std::max(most, drawn(t));
  }
  if (a.last < 0) a.first = a.last = 0;
  a.high = std::ceil(std::log10(most)) + 1;
  return a;
}

std::string picture(const CompareReport& r) {
  const Comparison& c = r.comparison;
  const Axes a = axes_of(c);
  std::string svg = format("<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"difference by layer\" font-family=\"sans-serif\" font-size=\"11\">\n", kWidth, kHeight);
  svg += format("<rect x=\"0\" y=\"0\" width=\"{}\" height=\"{}\" fill=\"#ffffff\"/>\n", kWidth, kHeight);
  for (int decade = static_cast<int>(a.low); decade <= static_cast<int>(a.high); ++decade) {
    const double y = a.y(std::pow(10.0, decade));
    svg += format("<line x1=\"{}\" y1=\"{:.1f}\" x2=\"{}\" y2=\"{:.1f}\" stroke=\"#e4e4e4\"/><text x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">1e{}</text>\n", kLeft, y,
                  kWidth - kRight, y, kLeft - 6, y + 4, decade);
  }
  const int step = std::max(1, (a.last - a.first + 1) / 16);
  for (int layer = a.first; layer <= a.last; layer += step)
    svg += format("<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n", a.x(layer), kHeight - kBottom + 16, layer);
  svg += format("<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">layer</text>\n", (kLeft + kWidth - kRight) / 2, kHeight - 8);
  svg += format("<text x=\"14\" y=\"{}\" transform=\"rotate(-90 14 {})\" text-anchor=\"middle\">largest difference of the row</text>\n", kHeight / 2 - 10, kHeight / 2 - 10);
  if (c.limits.row_relative < 1e300) {
    const double y = a.y(c.limits.row_relative);
    svg += format("<line x1=\"{}\" y1=\"{:.1f}\" x2=\"{}\" y2=\"{:.1f}\" stroke=\"#d55e00\" stroke-dasharray=\"6 4\"/><text x=\"{}\" y=\"{:.1f}\" fill=\"#d55e00\">limit {:.3g}</text>\n",
                  kLeft, y, kWidth - kRight, y, kLeft + 4, y - 4, c.limits.row_relative);
  }
  // One line per kind of tensor. Points of one layer stand side by side in the order of the data flow.
  double legend = kTop + 6;
  size_t index = 0;
  const double count = static_cast<double>(std::size(kKinds));
  for (const Kind& k : kKinds) {
    std::string points, marks;
    const double shift = (static_cast<double>(index++) / count - 0.5) * 0.7;
    for (const TensorDistance& t : c.tensors) {
      const TracePlace p = trace_place(t.name);
      if (p.point != k.point || p.layer >= kAfterLayers || p.layer < 0) continue;
      const double x = a.x(p.layer + shift), y = a.y(drawn(t));
      points += format("{:.1f},{:.1f} ", x, y);
      const bool first = r.diagnosis && r.diagnosis->tensor == t.name;
      marks += format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{}\" fill=\"{}\"><title>{}: {:.4g}{}</title></circle>", x, y, t.failure.empty() ? 2.2 : 3.6, k.colour,
                      escape_markup(t.name), t.row_relative, t.nonfinite_mismatch > 0 ? ", NaN or infinity" : "");
      if (first) {
        marks += format("<line x1=\"{0:.1f}\" y1=\"{1}\" x2=\"{0:.1f}\" y2=\"{2}\" stroke=\"#d55e00\" stroke-width=\"1.2\"/><circle cx=\"{0:.1f}\" cy=\"{3:.1f}\" r=\"7\" fill=\"none\" "
                        "stroke=\"#d55e00\" stroke-width=\"2\"/>", x, kTop, kHeight - kBottom, y);
        const bool left = x < (kLeft + kWidth - kRight) / 2;
        marks += format("<text x=\"{:.1f}\" y=\"{}\" fill=\"#d55e00\" font-weight=\"bold\" text-anchor=\"{}\">first bad: {} ({})</text>", x + (left ? 6 : -6), kTop + 12,
                        left ? "start" : "end", escape_markup(t.name), fault_kind_name(r.diagnosis->kind));
      }
    }
    if (points.empty()) continue;
    svg += format("<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-opacity=\"0.55\"/>{}\n", points, k.colour, marks);
    svg += format("<circle cx=\"{}\" cy=\"{}\" r=\"4\" fill=\"{}\"/><text x=\"{}\" y=\"{}\">{}</text>\n", kWidth - kRight + 18, legend, k.colour, kWidth - kRight + 28, legend + 4, k.name);
    legend += 17;
  }
  // Flips: a triangle under the layer, as large as their share.
  bool any = false;
  for (const RouterDistance& x : c.routers) {
    if (x.different == 0) continue;
    any = true;
    const double size = 4 + 8 * x.flip_rate(), at = a.x(x.layer), base = kHeight - kBottom - 1;
    const bool first = r.diagnosis && r.diagnosis->tensor == trace_name({x.layer, TracePoint::kRouterIds});
    svg += format("<path d=\"M {:.1f} {:.1f} l {:.1f} {:.1f} l {:.1f} 0 z\" fill=\"#d55e00\"><title>layer {}: {} of {} rows chose other experts</title></path>\n", at, base - 2 * size,
                  size, 2 * size, -2 * size, x.layer, x.different, x.rows);
    if (first) {
      svg += format("<text x=\"{:.1f}\" y=\"{}\" fill=\"#d55e00\" font-weight=\"bold\" text-anchor=\"middle\">first bad: {} ({})</text>\n", at, kTop + 12,
                    escape_markup(r.diagnosis->tensor), fault_kind_name(r.diagnosis->kind));
    }
  }
  if (any) svg += format("<path d=\"M {} {} l 5 9 l -10 0 z\" fill=\"#d55e00\"/><text x=\"{}\" y=\"{}\">routing flips</text>\n", kWidth - kRight + 18, legend - 5, kWidth - kRight + 28, legend + 4);
  return svg + "</svg>\n";
}

std::string cell(const std::string& text, const char* style = "") { return format("<td{}>{}</td>", style, escape_markup(text)); }

}  // namespace

std::string compare_html(const CompareReport& r) {
  const Comparison& c = r.comparison;
  std::string h =
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>pointsman compare</title>\n<style>body{font:14px/1.45 sans-serif;margin:24px;max-width:1080px;color:#222}"
      "table{border-collapse:collapse;font-size:12px}td,th{padding:2px 8px;border-bottom:1px solid #e4e4e4;text-align:right}td:first-child,th:first-child,.l{text-align:left}"
      "tr.bad{background:#fdeee4}.verdict{font-weight:bold;padding:6px 10px;display:inline-block}.no{background:#d55e00;color:#fff}.yes{background:#009e73;color:#fff}"
      "svg{width:100%;height:auto;border:1px solid #e4e4e4}</style></head><body>\n<h1>pointsman compare</h1>\n";
  h += format("<p>{} against {} (reference), profile {}</p>\n", escape_markup(r.a), escape_markup(r.b), escape_markup(c.limits.profile));
  h += c.ok ? "<p class=\"verdict yes\">ok</p>\n"
            : format("<p class=\"verdict no\">mismatch{}</p>\n", c.first_divergence.empty() ? ": not the same tensors" : ", first at " + escape_markup(c.first_divergence));
  if (r.diagnosis) {
    const Diagnosis& d = *r.diagnosis;
    h += format("<h2>First bad: {}</h2>\n<p>Made by the {}. Kind: <b>{}</b>. {}</p>\n<ul>\n", escape_markup(d.tensor), escape_markup(d.op), fault_kind_name(d.kind),
                d.cause.empty() ? "No explanation that is known reproduces the values." : escape_markup(d.cause) + ".");
    for (const std::string& line : d.evidence) h += "<li>" + escape_markup(line) + "</li>\n";
    h += "</ul>\n";
    if (!d.advice.empty()) h += "<p>To learn more: " + escape_markup(d.advice) + "</p>\n";
  }
  h += "<h2>By layer</h2>\n" + picture(r);
  if (!c.notes.empty()) {
    h += "<h2>Notes</h2><ul>\n";
    for (const std::string& n : c.notes) h += "<li>" + escape_markup(n) + "</li>\n";
    h += "</ul>\n";
  }
  if (c.logits) {
    const LogitsDistance& l = *c.logits;
    h += format("<h2>Next token</h2>\n<table><tr><th>KL, nats</th><th>mean</th><th>median</th><th>p90</th><th>p99</th><th>p99.9</th><th>largest</th></tr>"
                "<tr><td></td><td>{:.3g}</td><td>{:.3g}</td><td>{:.3g}</td><td>{:.3g}</td><td>{:.3g}</td><td>{:.3g} (row {})</td></tr></table>\n",
                l.kl_mean, l.kl_median, l.kl_p90, l.kl_p99, l.kl_p999, l.kl_max, l.kl_max_row);
    h += format("<p>The same most likely token in {} of {} rows, {} near ties; among the best five in {}.", l.top1_same, l.compared, l.near_ties, l.top5_holds);
    if (l.scored > 0) h += format(" Perplexity {:.5g} against {:.5g}: ratio {:.5f} &plusmn; {:.5f} over {} tokens.", l.perplexity_a, l.perplexity_b, l.ratio, l.ratio_error, l.scored);
    h += "</p>\n";
  }
  if (!c.routers.empty()) {
    h += "<h2>Routing</h2>\n<table><tr><th>layer</th><th>rows</th><th>other experts</th><th>excused</th><th>other order</th><th>margin of flips, median / largest</th><th>weight sums</th>"
         "<th>reference</th><th>gate logits</th><th>starved</th><th>overloaded</th></tr>\n";
    for (const RouterDistance& x : c.routers) {
      h += format("<tr{}><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{:.3g} / {:.3g}</td><td>{:.4g} to {:.4g}</td><td>{:.4g} to {:.4g}</td><td>{:.3g} to {:.3g}</td><td>{}</td><td>{}</td></tr>\n",
                  x.failure.empty() ? "" : " class=\"bad\"", x.layer, x.rows, x.different, x.excused, x.order_different, x.median_margin, x.max_margin, x.weight_sum_min_a,
                  x.weight_sum_max_a, x.weight_sum_min_b, x.weight_sum_max_b, x.logit_min_a, x.logit_max_a, x.starved.size(), x.overloaded.size());
    }
    h += "</table>\n";
  }
  h += "<h2>Tensors</h2>\n<table><tr><th>tensor</th><th>shape</th><th>max abs</th><th>of row</th><th>MERE</th><th>MARE</th><th>SQNR dB</th><th>cosine</th><th>ulp p99</th><th>ulp max</th>"
       "<th>&gt; 1&permil;</th><th>&gt; 5&permil;</th><th>worst</th><th class=\"l\">verdict</th></tr>\n";
  size_t rows = 0;
  for (const TensorDistance& t : c.tensors) {
    if (++rows > kMaxRows) {
      h += format("<tr><td colspan=\"14\">{} more tensors: the JSON has them</td></tr>\n", c.tensors.size() - kMaxRows);
      break;
    }
    h += format("<tr{}>{}{}<td>{:.3g}</td><td>{:.3g}</td><td>{:.3g}</td><td>{:.3g}</td><td>{:.1f}</td><td>{:.7f}</td><td>{}</td><td>{}</td><td>{:.2f} %</td><td>{:.2f} %</td>",
                t.failure.empty() ? "" : " class=\"bad\"", cell(t.name), cell(shape_text(t.shape)), t.max_abs, t.row_relative, t.mean_rel, t.max_rel, std::min(999.0, t.sqnr_db()), t.cosine,
                t.ulp.counted ? std::to_string(t.ulp.quantile(0.99)) : "", t.ulp.counted ? std::to_string(t.ulp.max) : "", 100 * t.share_above_1e3, 100 * t.share_above_5e3);
    h += format("<td>[{}, {}] {:.6g} / {:.6g}</td>{}</tr>\n", t.worst_row, t.worst_col, t.worst_a, t.worst_b,
                cell(t.bit_identical ? "bit-identical" : t.failure.empty() ? "within" : t.failure, " class=\"l\""));
  }
  return h + "</table>\n</body></html>\n";
}

}  // namespace pointsman
