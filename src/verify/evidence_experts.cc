// SPDX-License-Identifier: Apache-2.0
//
// Experts: which of them are wrong shows in the traces; how, by computing them again with other weights than they should have.
#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "base/log.h"
#include "verify/evidence.h"

namespace pointsman::evidence {
namespace {

struct Slots {
  Rows x, act;        // input of the experts [tokens, hidden]; their SwiGLU [tokens * top_k, intermediate], or empty
  Rows a, b;          // the tensor in both runs
  Rows ids_a, ids_b;
  int64_t top_k = 1;
  // Rows of `a` by expert, with the row of `b` that has the same token and expert, or -1.
  std::map<int, std::vector<std::pair<int64_t, int64_t>>> by_expert;
};

Result<Slots> load_slots(const Case& c) {
  Slots s;
  PM_ASSIGN_OR_RETURN(s.x, load(c.in.a, c.at(TracePoint::kMlpInput)));
  PM_ASSIGN_OR_RETURN(s.act, load(c.in.a, c.at(TracePoint::kExpertsAct)));
  PM_ASSIGN_OR_RETURN(s.a, load(c.in.a, c.place));
  PM_ASSIGN_OR_RETURN(s.b, load(c.in.b, c.place));
  PM_ASSIGN_OR_RETURN(s.ids_a, load(c.in.a, c.at(TracePoint::kRouterIds)));
  PM_ASSIGN_OR_RETURN(s.ids_b, load(c.in.b, c.at(TracePoint::kRouterIds)));
  if (!same_shape(s.a, s.b) || !same_shape(s.ids_a, s.ids_b)) return s;
  s.top_k = s.ids_a.cols;
  const int64_t tokens = std::min(s.ids_a.rows, s.a.rows / s.top_k);
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t j = 0; j < s.top_k; ++j) {
      const double id = s.ids_a.row(t)[static_cast<size_t>(j)];
      if (!(id >= 0) || id > 1e6) continue;
      int64_t other = -1;
      for (int64_t i = 0; i < s.top_k && other < 0; ++i) {
        if (s.ids_b.row(t)[static_cast<size_t>(i)] == id) other = t * s.top_k + i;
      }
      s.by_expert[static_cast<int>(id)].push_back({t * s.top_k + j, other});
    }
  }
  return s;
}

double silu(double v) { return v / (1 + std::exp(-v)); }

// What the expert with these weights gives at the point, for a row of the judged run. Each point from the nearest recorded input.
std::vector<double> predict(TracePoint point, const ExpertMatrices& m, const Slots& s, int64_t row) {
  const auto x = s.x.row(row / s.top_k);
  if (point == TracePoint::kExpertsGate) return linear(m.gate, x);
  if (point == TracePoint::kExpertsUp) return linear(m.up, x);
  if (point == TracePoint::kExpertsOutput && !s.act.empty()) return linear(m.down, s.act.row(row));
  std::vector<double> g = linear(m.gate, x);
  const std::vector<double> u = linear(m.up, x);
  for (size_t i = 0; i < g.size(); ++i) g[i] = silu(g[i]) * u[i];
  return point == TracePoint::kExpertsAct ? g : linear(m.down, g);
}

bool fits(TracePoint point, const ExpertMatrices& m, const Slots& s) {
  const int64_t width = point == TracePoint::kExpertsOutput ? m.down.rows : m.gate.rows;
  return !s.x.empty() && s.x.cols == m.gate.cols && s.x.cols == m.up.cols && m.gate.rows == m.up.rows && m.down.cols == m.gate.rows &&
         s.a.cols == width && (s.act.empty() || s.act.cols == m.down.cols);
}

double misfit(TracePoint point, const ExpertMatrices& m, const Slots& s, const std::vector<std::pair<int64_t, int64_t>>& rows, bool of_b = false) {
  double worst = 0;
  for (const auto& [ra, rb] : rows) {
    if (of_b && rb < 0) continue;
    worst = std::max(worst, row_error(predict(point, m, s, ra), of_b ? s.b.row(rb) : s.a.row(ra)));
    if (worst > 1e3) break;
  }
  return worst;
}

// One factor for every block of `edge` x `edge` weights, least squares from inputs and results of a projection.
struct BlockFit {
  int64_t edge = 0, rows = 0, cols = 0;
  std::vector<double> factor;  // [rows, cols] of blocks
  double misfit = 1e9;
};

bool solve(std::vector<double>& m, std::vector<double>& y, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    size_t pivot = i;
    for (size_t r = i + 1; r < n; ++r) {
      if (std::fabs(m[r * n + i]) > std::fabs(m[pivot * n + i])) pivot = r;
    }
    if (std::fabs(m[pivot * n + i]) < 1e-12) return false;
    for (size_t k = 0; k < n; ++k) std::swap(m[i * n + k], m[pivot * n + k]);
    std::swap(y[i], y[pivot]);
    for (size_t r = 0; r < n; ++r) {
      if (r == i) continue;
      const double f = m[r * n + i] / m[i * n + i];
      for (size_t k = i; k < n; ++k) m[r * n + k] -= f * m[i * n + k];
      y[r] -= f * y[i];
    }
  }
  for (size_t i = 0; i < n; ++i) y[i] /= m[i * n + i];
  return true;
}

BlockFit fit_blocks(const Matrix& w, int64_t edge, const std::vector<std::span<const double>>& x, const std::vector<std::span<const double>>& y) {
  BlockFit fit{.edge = edge, .rows = (w.rows + edge - 1) / edge, .cols = (w.cols + edge - 1) / edge};
  const size_t n = static_cast<size_t>(fit.cols);
  fit.factor.assign(static_cast<size_t>(fit.rows) * n, 1);
  std::vector<std::vector<double>> predicted(x.size(), std::vector<double>(static_cast<size_t>(w.rows)));
  for (int64_t block = 0; block < fit.rows; ++block) {
    std::vector<double> normal(n * n, 0), right(n, 0), part(n);
    const auto parts = [&](size_t i, int64_t r) {
      std::fill(part.begin(), part.end(), 0);
      for (int64_t k = 0; k < w.cols; ++k) part[static_cast<size_t>(k / edge)] += double{w.row(r)[k]} * x[i][static_cast<size_t>(k)];
    };
    const int64_t end = std::min(w.rows, (block + 1) * edge);
    for (int64_t r = block * edge; r < end; ++r) {
      for (size_t i = 0; i < x.size(); ++i) {
        parts(i, r);
        for (size_t p = 0; p < n; ++p) {
          for (size_t q = 0; q < n; ++q) normal[p * n + q] += part[p] * part[q];
          right[p] += part[p] * y[i][static_cast<size_t>(r)];
        }
      }
    }
    if (!solve(normal, right, n)) return fit;
    std::copy(right.begin(), right.end(), fit.factor.begin() + static_cast<ptrdiff_t>(block * fit.cols));
    for (int64_t r = block * edge; r < end; ++r) {
      for (size_t i = 0; i < x.size(); ++i) {
        parts(i, r);
        predicted[i][static_cast<size_t>(r)] = std::inner_product(part.begin(), part.end(), right.begin(), 0.0);
      }
    }
  }
  fit.misfit = 0;
  for (size_t i = 0; i < x.size(); ++i) fit.misfit = std::max(fit.misfit, row_error(predicted[i], y[i]));
  return fit;
}

// Scales stored [columns, rows] and read as [rows, columns]: the factor of a block is another block's scale over its own, so that the
// factors along each cycle of the permutation multiply to one.
bool is_transposition(const BlockFit& f, double& worst) {
  const size_t n = f.factor.size();
  std::vector<bool> seen(n);
  worst = 0;
  double effect = 0;
  for (size_t start = 0; start < n; ++start) {
    double sum = 0;
    for (size_t k = start; !seen[k];) {
      seen[k] = true;
      if (!(f.factor[k] > 0)) return false;
      sum += std::log(f.factor[k]);
      effect = std::max(effect, std::fabs(std::log(f.factor[k])));
      // Block k reads what the file has at place k of the transposed grid.
      k = k % static_cast<size_t>(f.rows) * static_cast<size_t>(f.cols) + k / static_cast<size_t>(f.rows);
    }
    worst = std::max(worst, std::fabs(sum));
  }
  return f.rows > 1 && f.cols > 1 && effect > 1e-3 && worst < 0.02 * effect;
}

// `point`: whose rows `s.a` holds.
bool try_blocks(const Case& c, TracePoint p, const Slots& s, const ExpertMatrices& m, int expert, const std::vector<std::pair<int64_t, int64_t>>& rows) {
  struct Linear {
    const char* name;
    const Matrix* w;
    bool usable;
  };
  for (const Linear& l : {Linear{"gate", &m.gate, p == TracePoint::kExpertsGate}, Linear{"up", &m.up, p == TracePoint::kExpertsUp},
                          Linear{"down", &m.down, p == TracePoint::kExpertsOutput && !s.act.empty()}}) {
    if (!l.usable) continue;
    std::vector<std::span<const double>> x, y;
    for (const auto& [ra, rb] : rows) {
      x.push_back(l.w == &m.down ? s.act.row(ra) : s.x.row(ra / s.top_k));
      y.push_back(s.a.row(ra));
    }
    // The largest blocks that explain it: smaller ones always do.
    for (const int64_t edge : {int64_t{128}, int64_t{64}, int64_t{32}, int64_t{16}, int64_t{8}}) {
      const int64_t columns = (l.w->cols + edge - 1) / edge;
      if (columns > 64 || static_cast<int64_t>(x.size()) * std::min(edge, l.w->rows) < 2 * columns) continue;
      const BlockFit fit = fit_blocks(*l.w, edge, x, y);
      if (fit.misfit > 1e-3) continue;
      const auto [low, high] = std::minmax_element(fit.factor.begin(), fit.factor.end());
      if (*high - *low < 1e-3 && std::fabs(*high - 1) < 1e-3) return false;
      c.say(format("expert {}: its {} projection is the reference's with one factor per {} x {} block, to {:.1g}; factors {:.4g} to {:.4g}", expert,
                   l.name, edge, edge, fit.misfit, *low, *high));
      double cycles = 0;
      if (is_transposition(fit, cycles)) {
        c.say(format("factors multiply to one along every cycle of a transposition of the {} x {} grid (log error {:.1g})", fit.rows, fit.cols, cycles));
        c.name(FaultKind::kScale, format("expert {}: the grid of block scales of the {} projection is transposed ({} x {} blocks of {})", expert,
                                         l.name, fit.rows, fit.cols, edge));
      } else {
        c.name(FaultKind::kScale, format("expert {}: the block scales of the {} projection are wrong ({} x {} blocks of {})", expert, l.name,
                                         fit.rows, fit.cols, edge));
      }
      return true;
    }
  }
  return false;
}

Status explain_expert(const Case& c, const Slots& s, int expert, const std::vector<std::pair<int64_t, int64_t>>& rows) {
  const TracePoint point = c.place.point;
  ModelTensors& model = *c.in.model;
  const Result<ExpertMatrices> own = model.expert(c.place.layer, expert);
  if (!own.ok()) {
    c.say(own.status().to_string());
    return ok_status();
  }
  if (!fits(point, *own, s)) {
    c.say("the model folder's expert has other sizes than the trace");
    return ok_status();
  }
  c.say(format("expert {} with its own weights: the reference to {:.1g}, this run to {:.2g}", expert, misfit(point, *own, s, rows, true),
               misfit(point, *own, s, rows)));
  ExpertMatrices swapped = *own;
  std::swap(swapped.gate, swapped.up);
  if (const double e = misfit(point, swapped, s, rows); e < kReproduces) {
    c.say(format("expert {} with gate and up exchanged: this run to {:.1g}", expert, e));
    c.name(FaultKind::kExpert, format("expert {}: its gate and up projections are exchanged", expert));
    return ok_status();
  }
  // Another expert's weights: of this layer, of the same number elsewhere, then of anywhere in a small model.
  const ModelConfig& config = model.config();
  const int64_t layers = config.num_hidden_layers, experts = config.num_experts;
  constexpr int64_t kSearchAll = 1024;
  for (int64_t layer = 0; layer < layers; ++layer) {
    for (int64_t e = 0; e < experts; ++e) {
      const bool near = layer == c.place.layer || e == expert;
      if ((layer == c.place.layer && e == expert) || (!near && layers * experts > kSearchAll)) continue;
      const Result<ExpertMatrices> other = model.expert(static_cast<int>(layer), static_cast<int>(e));
      if (!other.ok() || !fits(point, *other, s)) continue;
      // One row tells most of them apart.
      if (row_error(predict(point, *other, s, rows[0].first), s.a.row(rows[0].first)) > kReproduces) continue;
      const double fit = misfit(point, *other, s, rows);
      if (fit > kReproduces) continue;
      c.say(format("expert {} with the weights of layer {} expert {}: this run to {:.1g}", expert, layer, e, fit));
      c.name(FaultKind::kExpert, layer == c.place.layer ? format("expert {} has the weights of expert {}", expert, e)
                                                        : format("expert {} has the weights of layer {} expert {}", expert, layer, e));
      return ok_status();
    }
  }
  if (try_blocks(c, point, s, *own, expert, rows) || point != TracePoint::kExpertsAct) return ok_status();
  // SwiGLU of two wrong projections is no linear function of them. What the same expert makes of it next is.
  Slots next = s;
  PM_ASSIGN_OR_RETURN(next.a, load(c.in.a, c.at(TracePoint::kExpertsOutput)));
  if (next.a.rows == s.a.rows && fits(TracePoint::kExpertsOutput, *own, next)) try_blocks(c, TracePoint::kExpertsOutput, next, *own, expert, rows);
  return ok_status();
}

}  // namespace

Status try_experts(const Case& c) {
  c.name(FaultKind::kExpert, "");
  PM_ASSIGN_OR_RETURN(const Slots s, load_slots(c));
  if (s.by_expert.empty()) {
    c.say("the rows cannot be told apart by expert: router.ids are not in both traces");
    return ok_status();
  }
  int good = 0;
  double best = 1e300, worst = 0;
  for (const auto& [expert, rows] : s.by_expert) {
    double error = 0;
    for (const auto& [ra, rb] : rows) {
      if (rb >= 0) error = std::max(error, row_error(s.a.row(ra), s.b.row(rb)));
    }
    const bool beyond = error > std::max(c.in.comparison.limits.row_relative < 1 ? c.in.comparison.limits.row_relative : 0.0, 1e-4);
    if (!beyond) {
      ++good;
      worst = std::max(worst, error);
    } else {
      best = std::min(best, error);
      c.out.experts.push_back(expert);
    }
  }
  std::string list;
  for (size_t i = 0; i < std::min<size_t>(8, c.out.experts.size()); ++i) list += (i > 0 ? ", " : "") + std::to_string(c.out.experts[i]);
  if (c.out.experts.empty()) return ok_status();
  c.say(format("{} of {} experts in use are wrong ({}), by {:.2g} of a row and more; the others agree to {:.1g}", c.out.experts.size(),
               c.out.experts.size() + static_cast<size_t>(good), list, best, worst));
  c.out.rows.clear();
  for (const auto& [ra, rb] : s.by_expert.at(c.out.experts[0])) c.out.rows.push_back(ra);
  if (c.in.model == nullptr) {
    c.out.advice = "give the model folder with --model: candidate weights are then tried";
    if (c.out.experts.size() <= 4) c.name(FaultKind::kExpert, format("expert {} computes something else", list));
    return ok_status();
  }
  if (s.x.empty()) {
    c.out.advice = "trace with --what all: mlp.input is needed to compute experts again";
    return ok_status();
  }
  // A few tell the story; when all are wrong it is the same one.
  for (size_t i = 0; i < std::min<size_t>(2, c.out.experts.size()); ++i) {
    PM_RETURN_IF_ERROR(explain_expert(c, s, c.out.experts[i], s.by_expert.at(c.out.experts[i])));
    if (!c.out.cause.empty()) return ok_status();
  }
  c.name(FaultKind::kExpert, format("expert {} computes something else", list));
  return ok_status();
}

Status try_combine(const Case& c) {
  c.name(FaultKind::kCombine, "");
  PM_ASSIGN_OR_RETURN(const Rows hidden, load(c.in.a, c.place));
  PM_ASSIGN_OR_RETURN(const Rows reference, load(c.in.b, c.place));
  PM_ASSIGN_OR_RETURN(const Rows residual, load(c.in.a, c.at(TracePoint::kResidual)));
  PM_ASSIGN_OR_RETURN(const Rows output, load(c.in.a, c.at(TracePoint::kExpertsOutput)));
  PM_ASSIGN_OR_RETURN(const Rows weights, load(c.in.a, c.at(TracePoint::kRouterWeights)));
  if (!same_shape(hidden, residual) || !same_shape(hidden, reference) || weights.rows < hidden.rows || output.rows < hidden.rows * weights.cols) {
    c.name(FaultKind::kUnknown, "");
    c.out.advice = "the traces have no points inside this layer: trace both with --what all, or run this layer alone with pointsman trace --replay";
    return ok_status();
  }
  struct Variant {
    const char* cause;
    double residual;
    bool weighted, normalized;
    int64_t missing;
  };
  const int64_t k = weights.cols;
  const Variant variants[] = {
      {"", 1, true, false, -1},
      {"the residual is not added", 0, true, false, -1},
      {"experts are added without their weights", 1, false, false, -1},
      {"weights are divided by their sum when experts are combined", 1, true, true, -1},
      {"the last chosen expert is left out", 1, true, false, k - 1},
      {"the first chosen expert is left out", 1, true, false, 0},
  };
  for (const Variant& v : variants) {
    double mine = 0, theirs = 0;
    for (int64_t t = 0; t < hidden.rows; ++t) {
      std::vector<double> sum(residual.row(t).begin(), residual.row(t).end());
      for (double& x : sum) x *= v.residual;
      double total = 0;
      for (const double w : weights.row(t)) total += w;
      for (int64_t j = 0; j < k; ++j) {
        if (j == v.missing) continue;
        const double w = (v.weighted ? weights.row(t)[static_cast<size_t>(j)] : 1) / (v.normalized ? total : 1);
        const auto o = output.row(t * k + j);
        for (size_t i = 0; i < sum.size(); ++i) sum[i] += w * o[i];
      }
      mine = std::max(mine, row_error(sum, hidden.row(t)));
      theirs = std::max(theirs, row_error(sum, reference.row(t)));
    }
    if (v.cause[0] == '\0') {
      c.say(format("residual + sum of weight x output, from this run's own values: the reference to {:.1g}, this run to {:.2g}", theirs, mine));
    } else if (mine < kReproduces) {
      c.say(format("this run to {:.1g} when {}", mine, v.cause));
      c.name(FaultKind::kCombine, v.cause);
      return ok_status();
    }
  }
  return ok_status();
}

}  // namespace pointsman::evidence
