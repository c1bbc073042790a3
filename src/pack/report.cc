// SPDX-License-Identifier: Apache-2.0
#include "pack/report.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <tuple>

#include "base/log.h"

namespace pointsman {
namespace {

constexpr double kFarFromMedian = 8;
// What trained weights lie between, as magnitude_problem() has it.
constexpr double kSmallestRms = 0x1p-24, kLargestRms = 0x1p6;
constexpr size_t kMaxListed = 20;

// "gate_proj" of "model.layers.0.mlp.experts.3.gate_proj.weight".
std::string part_of(std::string name) {
  if (name.ends_with(".weight")) name.resize(name.size() - 7);
  return name.substr(name.rfind('.') + 1);
}
std::string kind_of(const std::string& unit) { return unit.substr(unit.rfind('.') + 1); }
bool is_expert(const MatrixReport& m) { return kind_of(m.unit) == "experts"; }

}  // namespace

std::string_view layout_name(WeightLayout layout) {
  return layout == WeightLayout::kPanel32 ? "panel32" : layout == WeightLayout::kInOut ? "transposed" : "rows";
}

std::string stored_format_name(const Weight& w) {
  if (!w.format) return std::string(dtype_name(w.dtype));
  for (const BlockCode code : kBlockCodes) {
    BlockFormat f = w.format;
    f.transposed = false;
    if (w.dtype != code_dtype(code) || f != code_format(code)) continue;
    return code == BlockCode::kInt8 ? "INT8" : code == BlockCode::kInt8Wide ? "INT8-128" : code == BlockCode::kMxfp8 ? "MXFP8" : "MXFP4";
  }
  return format("{} {}x{}", w.dtype == DType::kF8E4M3 ? "FP8" : std::string(dtype_name(w.dtype)), w.format.block_rows, w.format.block_cols);
}

void find_abnormal_experts(PackReport& report) {
  std::map<std::pair<std::string, std::string>, std::vector<const MatrixReport*>> groups;
  for (const MatrixReport& m : report.matrices) {
    if (is_expert(m)) groups[{m.unit, part_of(m.name)}].push_back(&m);
  }
  for (auto& [key, group] : groups) {
    std::vector<double> all;
    for (const MatrixReport* m : group) {
      const double rms = m->error.value_rms();
      all.push_back(std::isfinite(rms) ? rms : std::numeric_limits<double>::max());
    }
    std::nth_element(all.begin(), all.begin() + static_cast<long>(all.size() / 2), all.end());
    const double median = all[all.size() / 2];
    for (const MatrixReport* m : group) {
      const double rms = m->error.value_rms();
      if (rms < kSmallestRms || !(rms <= kLargestRms)) {
        report.abnormal.push_back(format("{}: root mean square {:.3g}; weights are usually between 1e-4 and 1", m->name, rms));
        continue;
      }
      if (rms <= median * kFarFromMedian && rms * kFarFromMedian >= median) continue;
      report.abnormal.push_back(format("{}: root mean square {:.3g}, the median of its layer is {:.3g}", m->name, rms, median));
    }
  }
}

std::string report_text(const PackReport& report) {
  struct Group {
    uint64_t count = 0;
    QuantisationError error;
    double worst_relative = 0, worst_max = 0;
    std::string worst;
    bool exact = true;
  };
  std::map<std::tuple<std::string, std::string, std::string, std::string>, Group> groups;
  for (const MatrixReport& m : report.matrices) {
    Group& g = groups[{kind_of(m.unit), m.from, m.to, m.layout}];
    ++g.count;
    g.exact = g.exact && m.is_exact;
    g.error.add(m.error);
    g.worst_max = std::max(g.worst_max, m.error.max_abs);
    if (g.worst.empty() || m.error.relative_rms() > g.worst_relative) {
      g.worst_relative = m.error.relative_rms();
      g.worst = m.name;
    }
  }
  std::string text;
  for (const auto& [key, g] : groups) {
    const auto& [kind, from, to, layout] = key;
    text += format("{:<16} {:>6}  {} -> {}, {}", kind, g.count, from, to, layout);
    text += g.exact ? std::string(", bit for bit\n")
                    : format(", error {:.4f} % of the rms (largest {:.4f} %: {}), at most {:.3g}\n", 100 * g.error.relative_rms(), 100 * g.worst_relative, g.worst,
                             g.worst_max);
  }
  for (size_t i = 0; i < report.abnormal.size() && i < kMaxListed; ++i) text += "abnormal: " + report.abnormal[i] + "\n";
  if (report.abnormal.size() > kMaxListed) text += format("abnormal: {} more (--json has all)\n", report.abnormal.size() - kMaxListed);
  return text;
}

Json report_json(const PackReport& report) {
  Json matrices = Json::array();
  for (const MatrixReport& m : report.matrices) {
    Json j = Json::object();
    j.set("name", m.name);
    j.set("unit", m.unit);
    j.set("from", m.from);
    j.set("to", m.to);
    j.set("layout", m.layout);
    j.set("exact", m.is_exact);
    j.set("max_error", m.error.max_abs);
    j.set("relative_rms_error", m.error.relative_rms());
    j.set("rms", m.error.value_rms());
    matrices.push_back(std::move(j));
  }
  Json abnormal = Json::array(), formats = Json::object();
  for (const std::string& a : report.abnormal) abnormal.push_back(a);
  for (const auto& [unit, f] : report.formats) formats.set(unit, f);
  Json j = Json::object();
  j.set("schema_version", 1);
  j.set("formats", std::move(formats));
  j.set("files", report.files);
  j.set("tensors", report.tensors);
  j.set("experts", report.experts);
  j.set("source_bytes", report.source_bytes);
  j.set("output_bytes", report.output_bytes);
  j.set("resumed_bytes", report.resumed_bytes);
  j.set("seconds", report.seconds);
  j.set("model_digest", report.model_digest);
  j.set("abnormal", std::move(abnormal));
  j.set("matrices", std::move(matrices));
  return j;
}

}  // namespace pointsman
