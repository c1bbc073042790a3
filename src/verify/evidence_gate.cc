// SPDX-License-Identifier: Apache-2.0
//
// The router: logits, choice, weights. Everything a gate does after its logits is a function of them, and is computed again here.
#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "base/log.h"
#include "ops/moe/router.h"
#include "verify/evidence.h"

namespace pointsman::evidence {
namespace {

std::vector<size_t> top_of(std::span<const double> z, size_t k) {
  std::vector<size_t> order(z.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t x, size_t y) { return z[x] > z[y]; });
  order.resize(k);
  std::sort(order.begin(), order.end());
  return order;
}

std::vector<size_t> chosen(std::span<const double> ids, size_t experts) {
  std::vector<size_t> out;
  for (const double id : ids) {
    if (id >= 0 && id < static_cast<double>(experts)) out.push_back(static_cast<size_t>(id));
  }
  std::sort(out.begin(), out.end());
  return out;
}

struct ChoiceRows {
  int64_t not_top = 0, rows = 0;
};
ChoiceRows rows_not_top(const Rows& z, const Rows& ids) {
  ChoiceRows n{.rows = z.rows};
  for (int64_t r = 0; r < z.rows; ++r)
    n.not_top += top_of(z.row(r), static_cast<size_t>(ids.cols)) != chosen(ids.row(r), static_cast<size_t>(z.cols));
  return n;
}

// Is there one constant per expert that, added to the logits, makes every choice a top-k? Perceptron on (chosen, not chosen) pairs: it
// ends when there is one, and the number of rounds says that none was found.
bool bias_explains(const Rows& z, const Rows& ids, std::vector<double>& bias) {
  const size_t n = static_cast<size_t>(z.cols);
  bias.assign(n, 0);
  for (int round = 0; round < 2000; ++round) {
    bool clean = true;
    for (int64_t r = 0; r < z.rows; ++r) {
      const std::vector<size_t> in = chosen(ids.row(r), n);
      std::vector<bool> is_in(n);
      for (const size_t e : in) is_in[e] = true;
      size_t low = in.empty() ? 0 : in[0], high = n;
      for (const size_t e : in) {
        if (z.row(r)[e] + bias[e] < z.row(r)[low] + bias[low]) low = e;
      }
      for (size_t e = 0; e < n; ++e) {
        if (!is_in[e] && (high == n || z.row(r)[e] + bias[e] > z.row(r)[high] + bias[high])) high = e;
      }
      if (high == n) continue;
      const double short_by = z.row(r)[high] + bias[high] - z.row(r)[low] - bias[low];
      if (short_by < 0) continue;
      clean = false;
      const double step = std::max(short_by / 2 * 1.01, 1e-6);
      bias[low] += step;
      bias[high] -= step;
    }
    if (clean) return true;
  }
  return false;
}

// Rows whose choice Gumbel noise on the logits changes, over many draws.
struct Expectation {
  double mean = 0, deviation = 0;
};
Expectation gumbel_flips(const Rows& z, size_t k) {
  constexpr int kDraws = 64;
  std::array<double, kDraws> flips{};
  std::vector<double> noisy(static_cast<size_t>(z.cols));
  for (int draw = 0; draw < kDraws; ++draw) {
    const ops::RouterNoise noise{.enabled = true, .seed = 1, .step = static_cast<uint64_t>(draw)};
    for (int64_t r = 0; r < z.rows; ++r) {
      for (size_t e = 0; e < noisy.size(); ++e) noisy[e] = z.row(r)[e] + ops::gumbel_noise(noise, r, static_cast<int32_t>(e));
      flips[static_cast<size_t>(draw)] += top_of(noisy, k) != top_of(z.row(r), k);
    }
  }
  Expectation out;
  for (const double f : flips) out.mean += f / kDraws;
  for (const double f : flips) out.deviation += (f - out.mean) * (f - out.mean) / (kDraws - 1);
  out.deviation = std::sqrt(out.deviation);
  return out;
}

struct Formula {
  const char* name;
  double (*score)(double z, double top, double sum);
  bool renormalized;
};
double softmax_score(double z, double top, double sum) { return std::exp(z - top) / sum; }
double sigmoid_score(double z, double, double) { return 1 / (1 + std::exp(-z)); }
double sqrt_softplus_score(double z, double, double) { return std::sqrt(std::log1p(std::exp(-std::fabs(z))) + std::max(z, 0.0)); }
double raw_score(double z, double, double) { return z; }
constexpr Formula kFormulas[] = {
    {"softmax over all experts, as it is", softmax_score, false},
    {"softmax over the chosen experts only (or over all, divided by the sum of the chosen)", softmax_score, true},
    {"sigmoid, as it is", sigmoid_score, false},
    {"sigmoid, divided by the sum", sigmoid_score, true},
    {"sqrt(softplus), as it is", sqrt_softplus_score, false},
    {"sqrt(softplus), divided by the sum", sqrt_softplus_score, true},
    {"the raw logits", raw_score, false},
};

struct Match {
  const Formula* formula = nullptr;
  double scale = 1, error = 1e9;
};
Match match_formula(const Rows& z, const Rows& ids, const Rows& weights) {
  Match best;
  for (const Formula& f : kFormulas) {
    std::vector<double> expected, found;
    for (int64_t r = 0; r < z.rows; ++r) {
      const auto row = z.row(r);
      const double top = *std::max_element(row.begin(), row.end());
      double sum = 0, total = 0;
      for (const double v : row) sum += std::exp(v - top);
      std::vector<double> w;
      for (const double id : ids.row(r)) {
        if (!(id >= 0 && id < static_cast<double>(z.cols))) return best;
        w.push_back(f.score(row[static_cast<size_t>(id)], top, sum));
        total += w.back();
      }
      for (double& v : w) v = f.renormalized && total != 0 ? v / total : v;
      expected.insert(expected.end(), w.begin(), w.end());
      found.insert(found.end(), weights.row(r).begin(), weights.row(r).end());
    }
    double ef = 0, ee = 0;
    for (size_t i = 0; i < expected.size(); ++i) ef += expected[i] * found[i], ee += expected[i] * expected[i];
    const double scale = ee > 0 ? ef / ee : 1;
    for (double& v : expected) v *= scale;
    const double error = row_error(expected, found);
    if (error < best.error) best = {&f, scale, error};
  }
  return best;
}

std::string describe(const Match& m) {
  return m.formula == nullptr ? "nothing known" : format("{}{}", m.formula->name, std::fabs(m.scale - 1) > 1e-4 ? format(", times {:.5g}", m.scale) : "");
}

}  // namespace

Status try_gate(const Case& c) {
  c.name(FaultKind::kGate, "");
  PM_ASSIGN_OR_RETURN(const Rows a, load(c.in.a, c.place));
  PM_ASSIGN_OR_RETURN(const Rows b, load(c.in.b, c.place));
  if (!same_shape(a, b)) return ok_status();
  double spread = 0, size = 0;
  int64_t wrong = 0;
  for (int64_t e = 0; e < a.cols; ++e) {
    const size_t at = static_cast<size_t>(e);
    const double first = a.row(0)[at] - b.row(0)[at];
    double column = 0;
    for (int64_t r = 0; r < a.rows; ++r) {
      const double d = a.row(r)[at] - b.row(r)[at];
      spread = std::max(spread, std::fabs(d - first));
      column = std::max(column, std::fabs(d));
    }
    wrong += column > 1e-4;
    size = std::max(size, column);
  }
  c.say(format("logits of {} of {} experts differ, by up to {:.3g}", wrong, a.cols, size));
  if (a.rows > 2 && spread < 1e-3 * size) {
    c.say(format("the difference of an expert is the same in every row, to {:.1g}", spread));
    c.name(FaultKind::kGate, "a bias of the gate is missing, added, or another one");
    return ok_status();
  }
  // Are they the reference's logits under other numbers?
  int64_t moved = 0, found = 0;
  for (int64_t e = 0; e < a.cols; ++e) {
    for (int64_t f = 0; f < b.cols; ++f) {
      double d = 0;
      for (int64_t r = 0; r < a.rows; ++r) d = std::max(d, std::fabs(a.row(r)[static_cast<size_t>(e)] - b.row(r)[static_cast<size_t>(f)]));
      if (d > 1e-4) continue;
      ++found;
      moved += e != f;
      break;
    }
  }
  if (moved > 0 && found == a.cols) {
    c.say(format("every column is one of the reference's; {} of {} have another number", moved, a.cols));
    c.name(FaultKind::kGate, "the rows of the gate are in another order of experts");
  }
  return ok_status();
}

Status try_choice(const Case& c) {
  c.name(FaultKind::kGate, "");
  PM_ASSIGN_OR_RETURN(const Rows za, load(c.in.a, c.at(TracePoint::kRouterLogits)));
  PM_ASSIGN_OR_RETURN(const Rows zb, load(c.in.b, c.at(TracePoint::kRouterLogits)));
  PM_ASSIGN_OR_RETURN(const Rows ia, load(c.in.a, c.place));
  PM_ASSIGN_OR_RETURN(const Rows ib, load(c.in.b, c.place));
  if (!same_shape(za, zb) || !same_shape(ia, ib) || za.rows != ia.rows || za.cols <= ia.cols) return ok_status();
  c.say(format("the gate's logits agree to {:.1g} of the row", error_of(za, zb)));
  const ChoiceRows na = rows_not_top(za, ia), nb = rows_not_top(zb, ib);
  c.say(format("{} of {} rows did not choose the {} largest of their own logits; in the reference {}", na.not_top, na.rows, ia.cols, nb.not_top));
  if (na.not_top == 0) {
    c.say("each run follows its own logits: the flips come from the small differences of the logits");
    c.name(FaultKind::kRounding, "near ties fell the other way");
    return ok_status();
  }
  std::vector<double> bias;
  if (bias_explains(za, ia, bias)) {
    const auto [low, high] = std::minmax_element(bias.begin(), bias.end());
    c.say(format("one constant per expert, between {:.3g} and {:.3g}, added to the logits explains every row", *low, *high));
    c.name(FaultKind::kGate, "the choice of experts uses a bias per expert that the reference does not have (or the other way round)");
    return ok_status();
  }
  const Expectation expected = gumbel_flips(za, static_cast<size_t>(ia.cols));
  c.say("no constant per expert explains the choice");
  c.say(format("Gumbel noise on these logits would change {:.1f} +- {:.1f} rows; {} are changed", expected.mean, expected.deviation, na.not_top));
  if (nb.not_top == 0 && std::fabs(static_cast<double>(na.not_top) - expected.mean) <= 3 * expected.deviation + 1) {
    c.name(FaultKind::kGate, "the choice of experts is random: noise (Gumbel) is on the router");
  } else {
    c.name(FaultKind::kGate, "the choice of experts does not follow the logits");
  }
  return ok_status();
}

Status try_weights(const Case& c) {
  c.name(FaultKind::kGate, "");
  PM_ASSIGN_OR_RETURN(const Rows za, load(c.in.a, c.at(TracePoint::kRouterLogits)));
  PM_ASSIGN_OR_RETURN(const Rows zb, load(c.in.b, c.at(TracePoint::kRouterLogits)));
  PM_ASSIGN_OR_RETURN(const Rows ia, load(c.in.a, c.at(TracePoint::kRouterIds)));
  PM_ASSIGN_OR_RETURN(const Rows ib, load(c.in.b, c.at(TracePoint::kRouterIds)));
  PM_ASSIGN_OR_RETURN(const Rows wa, load(c.in.a, c.place));
  PM_ASSIGN_OR_RETURN(const Rows wb, load(c.in.b, c.place));
  if (!same_shape(za, zb) || !same_shape(wa, wb) || !same_shape(ia, wa) || !same_shape(ib, wb) || za.rows != wa.rows) return ok_status();
  c.say(format("the gate's logits agree to {:.1g} of the row; the same experts were chosen", error_of(za, zb)));
  const Match a = match_formula(za, ia, wa), b = match_formula(zb, ib, wb);
  c.say(format("weights here: {} (to {:.1g})", describe(a), a.error));
  c.say(format("weights of the reference: {} (to {:.1g})", describe(b), b.error));
  if (a.error > 1e-4) return ok_status();
  if (a.formula != b.formula) {
    c.name(FaultKind::kGate, format("routing weights are {}; the reference's are {}", describe(a), b.error < 1e-4 ? describe(b) : "another function"));
  } else if (std::fabs(a.scale - b.scale) > 1e-4 * std::fabs(b.scale)) {
    c.name(FaultKind::kGate, format("the routed scaling factor is {:.5g} instead of {:.5g}", a.scale, b.scale));
  }
  return ok_status();
}

}  // namespace pointsman::evidence
