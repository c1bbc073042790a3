// SPDX-License-Identifier: Apache-2.0
#include "audit/verdict.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/log.h"

namespace pointsman::audit {
namespace {

bool one_of(std::string_view s, std::initializer_list<std::string_view> list) { return std::find(list.begin(), list.end(), s) != list.end(); }

bool counts(const Finding& f) { return !f.suppressed && f.confidence >= Confidence::kLikely && !f.rule.starts_with("T"); }

bool is_about_experts(const Finding& f) { return one_of(f.rule, {"R01", "R02", "R03", "R04", "R05", "R06", "X10", "X15"}); }
bool is_about_attention(const Finding& f) { return one_of(f.rule, {"R08", "R09", "R10", "R11", "R14"}); }

// The order of doing: nothing can be measured before it runs, nothing tuned before the numbers are right.
int order(Work w) {
  switch (w) {
    case Work::kRename: return 0;
    case Work::kBlocks: return 1;
    case Work::kKernel: return 2;
    case Work::kCheck: return 3;
    case Work::kNote: return 4;
    case Work::kFuse: return 5;
  }
  return 6;
}

std::string sentence(ModelClass c, const Verdict& v, size_t about) {
  const auto n = [&](Work w) { return v.places[static_cast<size_t>(w)]; };
  std::string s = format("{:.1f} % of {} uses map one to one; {} to rename, {} with a fused operator to use instead, {} with own kernels, {} that block otherwise, {} whose numbers need a check", direct_percent(v), v.uses,
                         n(Work::kRename), n(Work::kFuse), n(Work::kKernel), n(Work::kBlocks), n(Work::kCheck));
  if (c == ModelClass::kDense && about > 0) s += format("; {} about attention, norms and the loss", about);
  if (c == ModelClass::kMoe) s += format("; {} about routing, exchange and multiplication of experts", about);
  if (c == ModelClass::kVision) s += format("; {} about operators of detection", about);
  if (c == ModelClass::kReinforcement) s += "; generation needs vllm-ascend and a way to hand over weights";
  return s + ".";
}

}  // namespace

const char* work_words(Work work) {
  constexpr const char* kWords[] = {"rename", "fused operator", "check numbers", "own kernels", "blocks", "note"};
  return kWords[static_cast<size_t>(work)];
}

const char* model_class_words(ModelClass c) {
  constexpr const char* kWords[] = {"dense language model", "mixture of experts", "vision", "reinforcement learning"};
  return kWords[static_cast<size_t>(c)];
}

Work work_of(const Finding& f) {
  if (!f.edits.empty() || (f.rule == "X4" && f.severity == Severity::kBlocks)) return Work::kRename;
  if (f.rule == "R20" || f.rule == "X16") return Work::kKernel;
  switch (f.severity) {
    case Severity::kBlocks: return Work::kBlocks;
    case Severity::kWrongNumbers: return Work::kCheck;
    case Severity::kPerformance: return Work::kFuse;
    default: return Work::kNote;
  }
}

Verdict make_verdict(std::span<const Finding> findings, const ApiUse& api, const ModelSigns& signs) {
  Verdict v;
  v.uses = api.torch + api.torch_cuda + api.torch_distributed + api.torch_npu + api.extensions + api.cuda_runtime + api.cuda_libraries + api.kernels + api.launches;
  std::map<std::pair<std::string_view, int>, Work> places;
  std::map<std::pair<std::string_view, Work>, WorkItem> items;
  std::map<std::pair<std::string_view, Work>, std::set<std::string_view>> files;
  size_t experts = 0, attention = 0, vision = 0;
  for (const Finding& f : findings) {
    if (!counts(f)) continue;
    const Work w = work_of(f);
    const auto [place, fresh] = places.try_emplace({f.location.path, f.location.line}, w);
    if (!fresh && order(w) < order(place->second)) place->second = w;
    experts += is_about_experts(f);
    attention += is_about_attention(f);
    vision += f.rule == "T3";
    const std::pair<std::string_view, Work> key{f.rule, w};
    WorkItem& item = items[key];
    if (item.findings++ == 0) {
      const Rule* rule = find_rule(f.rule);
      item = {w, f.rule, f.severity, 1, 0, f.location, rule ? std::string(rule->fix) : f.fix};
    }
    item.severity = std::max(item.severity, f.severity);
    files[key].insert(f.location.path);
  }
  for (const auto& [place, w] : places) ++v.places[static_cast<size_t>(w)];
  const size_t to_do = places.size() - v.places[static_cast<size_t>(Work::kNote)];
  // Settings and texts are places, too, but no calls.
  v.uses = std::max(v.uses, to_do);
  v.direct = v.uses - to_do;
  for (auto& [key, item] : items) {
    item.files = files[key].size();
    v.work.push_back(std::move(item));
  }
  std::stable_sort(v.work.begin(), v.work.end(), [](const WorkItem& a, const WorkItem& b) {
    return std::tuple(order(a.work), -static_cast<int>(a.severity), -static_cast<long>(a.findings)) < std::tuple(order(b.work), -static_cast<int>(b.severity), -static_cast<long>(b.findings));
  });
  const bool moe = signs.experts + experts > 0;
  if (!moe && signs.attention + attention > 0) v.classes.push_back({ModelClass::kDense, signs.attention, attention, ""});
  if (moe) v.classes.push_back({ModelClass::kMoe, signs.experts, experts, ""});
  if (signs.vision + vision > 0) v.classes.push_back({ModelClass::kVision, signs.vision, vision, ""});
  if (signs.reinforcement > 0) v.classes.push_back({ModelClass::kReinforcement, signs.reinforcement, 0, ""});
  for (ClassVerdict& c : v.classes) c.text = sentence(c.model_class, v, c.findings);
  return v;
}

double direct_percent(const Verdict& v) { return v.uses == 0 ? 100.0 : 100.0 * static_cast<double>(v.direct) / static_cast<double>(v.uses); }

}  // namespace pointsman::audit
