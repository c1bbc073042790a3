// SPDX-License-Identifier: Apache-2.0
//
// Attention is computed again from the queries, keys and values in the judged trace, with one change at a time to what a row sees.
#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

#include "base/log.h"
#include "verify/evidence.h"

namespace pointsman::evidence {
namespace {

struct Shape {
  int64_t d = 0, heads = 0, kv_heads = 0;
};

// Which key positions row t sees, and whose value goes with key s.
struct Variant {
  std::string name;
  std::function<bool(int64_t t, int64_t s)> sees;
  int64_t value_shift = 0;
  double scale = 1;  // times 1 / sqrt(d)
};

std::vector<double> attend(const Rows& q, const Rows& k, const Rows& v, const Shape& shape, const Variant& variant, int64_t t) {
  std::vector<double> out(static_cast<size_t>(q.cols), 0);
  std::vector<double> score(static_cast<size_t>(k.rows));
  const double scale = variant.scale / std::sqrt(static_cast<double>(shape.d));
  for (int64_t h = 0; h < shape.heads; ++h) {
    const int64_t group = h / (shape.heads / shape.kv_heads);
    const auto head = q.row(t).subspan(static_cast<size_t>(h * shape.d), static_cast<size_t>(shape.d));
    double top = -1e300;
    for (int64_t s = 0; s < k.rows; ++s) {
      if (!variant.sees(t, s)) continue;
      const auto key = k.row(s).subspan(static_cast<size_t>(group * shape.d), static_cast<size_t>(shape.d));
      double dot = 0;
      for (size_t i = 0; i < head.size(); ++i) dot += head[i] * key[i];
      score[static_cast<size_t>(s)] = dot * scale;
      top = std::max(top, score[static_cast<size_t>(s)]);
    }
    double sum = 0;
    for (int64_t s = 0; s < k.rows; ++s) {
      if (!variant.sees(t, s)) continue;
      const double p = std::exp(score[static_cast<size_t>(s)] - top);
      sum += p;
      const int64_t from = std::clamp<int64_t>(s + variant.value_shift, 0, v.rows - 1);
      const auto value = v.row(from).subspan(static_cast<size_t>(group * shape.d), static_cast<size_t>(shape.d));
      for (size_t i = 0; i < value.size(); ++i) out[static_cast<size_t>(h * shape.d) + i] += p * value[i];
    }
    for (int64_t i = 0; i < shape.d && sum > 0; ++i) out[static_cast<size_t>(h * shape.d + i)] /= sum;
  }
  return out;
}

}  // namespace

Status try_attention(const Case& c) {
  PM_ASSIGN_OR_RETURN(const Rows q, load(c.in.a, c.at(TracePoint::kQRotated)));
  PM_ASSIGN_OR_RETURN(const Rows k, load(c.in.a, c.at(TracePoint::kKRotated)));
  PM_ASSIGN_OR_RETURN(const Rows v, load(c.in.a, c.at(TracePoint::kV)));
  PM_ASSIGN_OR_RETURN(const Rows a, load(c.in.a, c.place));
  PM_ASSIGN_OR_RETURN(const Rows b, load(c.in.b, c.place));
  c.name(FaultKind::kAttention, "");
  if (!same_shape(a, b) || !same_shape(q, a) || !same_shape(k, v) || k.rows != q.rows) return ok_status();
  const Variant plain{.name = "all keys up to its own", .sees = [](int64_t t, int64_t s) { return s <= t; }};
  // The head size that explains the reference's own rows.
  std::vector<int64_t> sizes = {16, 32, 64, 80, 96, 128, 192, 256, 512, 8, 24, 48};
  if (c.in.model != nullptr) sizes = {c.in.model->config().head_dim};
  Shape shape;
  std::vector<Variant> all = {plain};
  for (const int64_t w : {int64_t{8}, int64_t{128}, int64_t{512}, int64_t{1024}, int64_t{4096}})
    all.push_back({.name = format("a window of {} keys", w), .sees = [w](int64_t t, int64_t s) { return s <= t && s > t - w; }});
  double calibration = 1e9;
  const Variant* reference = nullptr;
  for (const int64_t d : sizes) {
    if (d <= 0 || q.cols % d != 0 || k.cols % d != 0 || (q.cols / d) % (k.cols / d) != 0) continue;
    const Shape s{.d = d, .heads = q.cols / d, .kv_heads = k.cols / d};
    for (const Variant& variant : all) {
      double worst = 0;
      for (int64_t t = 0; t < q.rows && worst < calibration; ++t) worst = std::max(worst, row_error(attend(q, k, v, s, variant, t), b.row(t)));
      if (worst < calibration) {
        calibration = worst;
        shape = s;
        reference = &variant;
      }
    }
  }
  constexpr double kExplains = 1e-4;
  if (reference == nullptr || calibration > kExplains) {
    c.say(format("the reference's rows are no plain softmax attention over the recorded keys (best: {:.2g})", calibration));
    return ok_status();
  }
  c.say(format("computed from this run's own queries, keys and values, rows that see {} give the reference to {:.1g}", reference->name, calibration));
  const auto base = reference->sees;
  std::vector<Variant> variants = {
      *reference,
      {.name = "every key up to its own but the one before it", .sees = [base](int64_t t, int64_t s) { return base(t, s) && s != t - 1; }},
      {.name = "the keys before its own only", .sees = [base](int64_t t, int64_t s) { return base(t, s) && (s != t || t == 0); }},
      {.name = "every key up to its own but the first", .sees = [base](int64_t t, int64_t s) { return base(t, s) && (s != 0 || t == 0); }},
      {.name = "the next key too", .sees = [base](int64_t t, int64_t s) { return base(t, s) || s == t + 1; }},
      {.name = "all keys, later ones too", .sees = [](int64_t, int64_t) { return true; }},
      {.name = "each key with the value before its own", .sees = base, .value_shift = -1},
      {.name = "each key with the value after its own", .sees = base, .value_shift = 1},
      {.name = "the right keys, with scores not divided by sqrt(d)", .sees = base, .scale = std::sqrt(static_cast<double>(shape.d))},
      {.name = "the right keys, with scores divided by d", .sees = base, .scale = 1 / std::sqrt(static_cast<double>(shape.d))},
  };
  for (const Variant& w : all) variants.push_back(w);
  // Each row of the judged run by the variant that reproduces it.
  std::map<std::string, std::vector<int64_t>> explained;
  int64_t wrong = 0, unexplained = 0;
  double worst = 0;
  for (int64_t t = 0; t < a.rows; ++t) {
    if (row_error(a.row(t), b.row(t)) < kExplains) continue;
    ++wrong;
    double best = 1e9;
    const Variant* by = nullptr;
    for (const Variant& variant : variants) {
      const double e = row_error(attend(q, k, v, shape, variant, t), a.row(t));
      if (e < best) best = e, by = &variant;
    }
    if (best > kExplains) {
      ++unexplained;
    } else {
      explained[by->name].push_back(t);
      worst = std::max(worst, best);
    }
  }
  if (explained.empty()) {
    c.say(format("{} of {} rows differ, and no change to what a row sees reproduces them", wrong, a.rows));
    return ok_status();
  }
  const auto most = std::max_element(explained.begin(), explained.end(), [](const auto& x, const auto& y) { return x.second.size() < y.second.size(); });
  for (const auto& [name, rows] : explained)
    c.say(format("{} of {} wrong rows ({} to {}) are reproduced to {:.1g} by: the row sees {}", rows.size(), wrong, rows.front(), rows.back(), worst, name));
  if (unexplained > 0) c.say(format("{} wrong rows are not explained", unexplained));
  const bool cache = most->first == "every key up to its own but the one before it" || most->first == "the keys before its own only" || most->first == "every key up to its own but the first";
  c.name(FaultKind::kAttention, format("{}: from row {} on a row sees {}", cache ? "the KV cache is off by one" : "attention sees other keys or scores",
                                       most->second.front(), most->first));
  return ok_status();
}

Status try_projection(const Case& c) {
  PM_ASSIGN_OR_RETURN(const Rows a, load(c.in.a, c.place));
  PM_ASSIGN_OR_RETURN(const Rows b, load(c.in.b, c.place));
  c.name(FaultKind::kAttention, "");
  if (!same_shape(a, b)) return ok_status();
  // The same vector in every row is a bias.
  double spread = 0, size = 0;
  for (int64_t j = 0; j < a.cols; ++j) {
    const double first = a.row(0)[static_cast<size_t>(j)] - b.row(0)[static_cast<size_t>(j)];
    size = std::max(size, std::fabs(first));
    for (int64_t r = 1; r < a.rows; ++r)
      spread = std::max(spread, std::fabs(a.row(r)[static_cast<size_t>(j)] - b.row(r)[static_cast<size_t>(j)] - first));
  }
  if (a.rows > 2 && spread < 1e-3 * size) {
    c.say(format("every row differs by the same vector (largest element {:.3g}, to {:.1g})", size, spread));
    c.name(FaultKind::kAttention, format("the bias of the {} is missing or another one", trace_operator(c.place.point)));
    return ok_status();
  }
  // Which output channels are wrong: a head, or all of them.
  int64_t wrong = 0;
  for (int64_t j = 0; j < a.cols; ++j) {
    double column = 0, scale = 0;
    for (int64_t r = 0; r < a.rows; ++r) {
      column = std::max(column, std::fabs(a.row(r)[static_cast<size_t>(j)] - b.row(r)[static_cast<size_t>(j)]));
      scale = std::max(scale, std::fabs(b.row(r)[static_cast<size_t>(j)]));
    }
    wrong += column > 1e-4 * scale;
  }
  c.say(format("{} of {} channels differ, in all by up to {:.2g} of the row", wrong, a.cols, error_of(a, b)));
  return ok_status();
}

}  // namespace pointsman::evidence
