// SPDX-License-Identifier: Apache-2.0
//
// Norms and rotations: their results are scaled or turned inputs, so that factors and angles can be read off.
#include <algorithm>
#include <cmath>
#include <complex>
#include <numbers>
#include <numeric>

#include "base/log.h"
#include "verify/evidence.h"

namespace pointsman::evidence {
namespace {

double mean_square(std::span<const double> x) {
  double sum = 0;
  for (const double v : x) sum += v * v;
  return x.empty() ? 0 : sum / static_cast<double>(x.size());
}

struct Factor {
  double value = 1;   // b = value * a, least squares
  double spread = 0;  // largest |b - value a| relative to the largest |b|
};
Factor factor_between(std::span<const double> a, std::span<const double> b) {
  double ab = 0, aa = 0;
  for (size_t i = 0; i < a.size(); ++i) ab += a[i] * b[i], aa += a[i] * a[i];
  Factor f{.value = aa > 0 ? ab / aa : 1};
  std::vector<double> scaled(a.begin(), a.end());
  for (double& v : scaled) v *= f.value;
  f.spread = row_error(scaled, b);
  return f;
}

// Tries "one factor per row, as two epsilons make it" on the rows of a norm.
bool explain_epsilon(const Case& c, const Rows& x, const Rows& a, const Rows& b, const char* what) {
  std::vector<double> squares, factors;
  double spread = 0, smallest = 1e300, largest = 0;
  for (int64_t r = 0; r < a.rows; ++r) {
    const Factor f = factor_between(a.row(r), b.row(r));
    spread = std::max(spread, f.spread);
    squares.push_back(mean_square(x.row(r)));
    factors.push_back(f.value);
    smallest = std::min(smallest, squares.back());
    largest = std::max(largest, squares.back());
  }
  if (spread > kReproduces) return false;
  c.say(format("every row is the reference's times one factor, to {:.1g}", spread));
  const std::optional<Epsilons> e = fit_epsilons(squares, factors);
  if (!e || e->a < -1e-9 || e->b < -1e-9) {
    c.name(FaultKind::kNorm, format("the {} scales whole rows wrongly: another mean or another epsilon", what));
    return true;
  }
  c.say(format("the factors follow (mean square + epsilon) with epsilon {:.2g} here and {:.2g} in the reference, misfit {:.1g} of the effect",
               std::max(0.0, e->a), std::max(0.0, e->b), e->misfit));
  c.say(format("mean squares of the rows: {:.3g} to {:.3g}", smallest, largest));
  c.name(FaultKind::kNorm, format("epsilon of the {} is {:.1g} instead of {:.1g}", what, std::max(0.0, e->a), std::max(0.0, e->b)));
  return true;
}

// Per-head norm's result before rotation, from the projections and from row 0, which position 0 leaves unturned.
// Empty when the trace does not begin at position 0 or its first row is of no use.
Rows unrotated(const Rows& projected, const Rows& rotated, int64_t d) {
  Rows n = projected;
  const int64_t heads = projected.cols / d;
  std::vector<double> gamma(static_cast<size_t>(d), 1), weight(static_cast<size_t>(d), 0);
  bool plain = true;
  for (int64_t i = 0; i < projected.cols && plain; ++i)
    plain = std::fabs(projected.row(0)[static_cast<size_t>(i)] - rotated.row(0)[static_cast<size_t>(i)]) <= 1e-5 * (1 + std::fabs(rotated.row(0)[static_cast<size_t>(i)]));
  if (plain) return n;
  for (int64_t h = 0; h < heads; ++h) {
    const auto q = projected.row(0).subspan(static_cast<size_t>(h * d), static_cast<size_t>(d));
    const auto y = rotated.row(0).subspan(static_cast<size_t>(h * d), static_cast<size_t>(d));
    const double rms = std::sqrt(mean_square(q));
    for (size_t i = 0; i < static_cast<size_t>(d); ++i) {
      if (std::fabs(q[i]) <= weight[i]) continue;
      weight[i] = std::fabs(q[i]);
      gamma[i] = y[i] * rms / q[i];
    }
  }
  for (int64_t r = 0; r < n.rows; ++r) {
    for (int64_t h = 0; h < heads; ++h) {
      const auto row = n.row(r).subspan(static_cast<size_t>(h * d), static_cast<size_t>(d));
      const double rms = std::sqrt(mean_square(row));
      for (size_t i = 0; i < row.size(); ++i) row[i] = rms > 0 ? row[i] / rms * gamma[i] : 0;
    }
  }
  return n;
}

enum class Pairing { kHalves, kInterleaved };
const char* pairing_name(Pairing p) { return p == Pairing::kHalves ? "(i, i + d/2)" : "(2i, 2i + 1)"; }

std::complex<double> pair_of(std::span<const double> head, int64_t i, Pairing p) {
  const size_t half = head.size() / 2, k = static_cast<size_t>(i);
  return p == Pairing::kHalves ? std::complex(head[k], head[k + half]) : std::complex(head[2 * k], head[2 * k + 1]);
}

// How well the lengths of pairs are kept: a rotation of these pairs keeps them.
double length_error(const Rows& n, const Rows& y, int64_t d, Pairing p) {
  double worst = 0, largest = 0;
  for (int64_t r = 0; r < n.rows; ++r) {
    for (int64_t h = 0; h < n.cols / d; ++h) {
      const auto before = n.row(r).subspan(static_cast<size_t>(h * d), static_cast<size_t>(d));
      const auto after = y.row(r).subspan(static_cast<size_t>(h * d), static_cast<size_t>(d));
      for (int64_t i = 0; i < d / 2; ++i) {
        worst = std::max(worst, std::fabs(std::abs(pair_of(before, i, p)) - std::abs(pair_of(after, i, p))));
        largest = std::max(largest, std::abs(pair_of(before, i, p)));
      }
    }
  }
  return largest > 0 ? worst / largest : 0;
}

// Angle by which pair `i` of row `r` was turned from `before` to `after`, from all heads together.
double turn(const Rows& before, const Rows& after, int64_t r, int64_t i, int64_t d, Pairing p) {
  std::complex<double> sum = 0;
  for (int64_t h = 0; h < before.cols / d; ++h) {
    const auto x = before.row(r).subspan(static_cast<size_t>(h * d), static_cast<size_t>(d));
    const auto y = after.row(r).subspan(static_cast<size_t>(h * d), static_cast<size_t>(d));
    sum += pair_of(y, i, p) * std::conj(pair_of(x, i, p));
  }
  return std::arg(sum);
}

// Both turn the same pairs: by which angles?
void explain_angles(const Case& c, const Rows& a, const Rows& b, int64_t d, Pairing p) {
  // A shift of positions turns every row by the same angle; pair 0 turns by one radian per position.
  double least = 1e9, most = -1e9;
  for (int64_t r = 0; r < a.rows; ++r) {
    const double angle = turn(b, a, r, 0, d, p);
    least = std::min(least, angle);
    most = std::max(most, angle);
  }
  c.say(format("pairs {} keep their lengths in both runs; pair 0 of a row is turned by {:.4f} to {:.4f} against the reference", pairing_name(p), least, most));
  const double mean = (least + most) / 2;
  if (most - least < 1e-3 && std::fabs(mean - std::round(mean)) < 1e-3 && std::round(mean) != 0) {
    c.name(FaultKind::kRope, format("RoPE positions are shifted by {}", static_cast<int>(std::round(mean))));
    return;
  }
  if (a.rows > 1 && d >= 4) {
    // Row 1 of position 1: pair 1 turns by theta^(-2/d).
    const double own = turn(b, a, 1, 1, d, p);
    c.say(format("pair 1 of position 1 is turned by {:.5f} more than in the reference", own));
  }
  c.name(FaultKind::kRope, "RoPE turns by other angles: another theta, scaling or direction");
}

}  // namespace

Status try_norm(const Case& c) {
  const std::vector<std::string> parents = trace_parents(c.place);
  Rows x;
  if (!parents.empty()) {
    PM_ASSIGN_OR_RETURN(x, load(c.in.a, trace_place(parents[0])));
  }
  PM_ASSIGN_OR_RETURN(const Rows a, load(c.in.a, c.place));
  PM_ASSIGN_OR_RETURN(const Rows b, load(c.in.b, c.place));
  if (!same_shape(a, b)) return ok_status();
  c.name(FaultKind::kNorm, "");
  if (same_shape(x, a) && explain_epsilon(c, x, a, b, std::string(trace_operator(c.place.point)).c_str())) return ok_status();
  // One factor per column: another weight.
  double spread = 0;
  std::vector<double> column_a(static_cast<size_t>(a.rows)), column_b(column_a.size());
  for (int64_t j = 0; j < a.cols; ++j) {
    for (int64_t r = 0; r < a.rows; ++r) {
      column_a[static_cast<size_t>(r)] = a.row(r)[static_cast<size_t>(j)];
      column_b[static_cast<size_t>(r)] = b.row(r)[static_cast<size_t>(j)];
    }
    spread = std::max(spread, factor_between(column_a, column_b).spread);
  }
  if (spread < kReproduces) {
    c.say(format("every column is the reference's times one factor, to {:.1g}: the rows were normed alike", spread));
    c.name(FaultKind::kNorm, format("the weight of the {} is another one", trace_operator(c.place.point)));
  }
  return ok_status();
}

Status try_rope(const Case& c) {
  const bool is_q = c.place.point == TracePoint::kQRotated;
  PM_ASSIGN_OR_RETURN(const Rows projected, load(c.in.a, c.at(is_q ? TracePoint::kQ : TracePoint::kK)));
  PM_ASSIGN_OR_RETURN(const Rows a, load(c.in.a, c.place));
  PM_ASSIGN_OR_RETURN(const Rows b, load(c.in.b, c.place));
  if (!same_shape(a, b) || !same_shape(projected, a)) return ok_status();
  std::vector<int64_t> sizes = {16, 32, 64, 80, 96, 128, 192, 256};
  if (c.in.model != nullptr) sizes = {c.in.model->config().head_dim};
  c.name(FaultKind::kRope, "");
  for (const int64_t d : sizes) {
    if (d < 2 || d % 2 != 0 || a.cols % d != 0) continue;
    // A rotation, whatever its pairs, keeps the length of a head.
    double head_error = 0;
    for (int64_t r = 0; r < a.rows; ++r) {
      for (int64_t h = 0; h < a.cols / d; ++h) {
        const double la = std::sqrt(mean_square(a.row(r).subspan(static_cast<size_t>(h * d), static_cast<size_t>(d))));
        const double lb = std::sqrt(mean_square(b.row(r).subspan(static_cast<size_t>(h * d), static_cast<size_t>(d))));
        head_error = std::max(head_error, std::fabs(la - lb) / std::max(lb, 1e-30));
      }
    }
    if (head_error > kReproduces) {
      // Not turned but scaled: the per-head norm. Rows of heads are rows of a norm.
      Rows x = projected, ya = a, yb = b;
      for (Rows* rows : {&x, &ya, &yb}) rows->rows *= rows->cols / d, rows->cols = d;
      if (explain_epsilon(c, x, ya, yb, "per-head norm")) return ok_status();
      continue;
    }
    c.say(format("every head of {} channels has the reference's length, to {:.1g}: it is turned otherwise, not normed otherwise", d, head_error));
    c.say(format("row 0 differs by {:.1g} of its largest value", row_error(a.row(0), b.row(0))));
    const Rows n = unrotated(projected, b, d);
    const double ah = length_error(n, a, d, Pairing::kHalves), ai = length_error(n, a, d, Pairing::kInterleaved);
    const double bh = length_error(n, b, d, Pairing::kHalves), bi = length_error(n, b, d, Pairing::kInterleaved);
    c.say(format("lengths of pairs {}: kept to {:.1g} here, to {:.1g} in the reference", pairing_name(Pairing::kHalves), ah, bh));
    c.say(format("lengths of pairs {}: kept to {:.1g} here, to {:.1g} in the reference", pairing_name(Pairing::kInterleaved), ai, bi));
    // Epsilon of the per-head norm is not in the inferred input: 1e-3 is far below what a wrong pairing does.
    constexpr double kKept = 1e-3;
    const bool a_halves = ah < kKept, a_interleaved = ai < kKept, b_halves = bh < kKept, b_interleaved = bi < kKept;
    if (a_interleaved && b_halves && !a_halves) {
      c.name(FaultKind::kRope, format("RoPE turns pairs {} (interleaved); the reference turns pairs {} (halves)",
                                      pairing_name(Pairing::kInterleaved), pairing_name(Pairing::kHalves)));
    } else if (a_halves && b_interleaved && !b_halves) {
      c.name(FaultKind::kRope, format("RoPE turns pairs {} (halves); the reference turns pairs {} (interleaved)",
                                      pairing_name(Pairing::kHalves), pairing_name(Pairing::kInterleaved)));
    } else if (a_halves && b_halves) {
      explain_angles(c, a, b, d, Pairing::kHalves);
    } else if (a_interleaved && b_interleaved) {
      explain_angles(c, a, b, d, Pairing::kInterleaved);
    }
    return ok_status();
  }
  c.name(FaultKind::kNorm, "");
  c.say("heads do not have the reference's length: the per-head norm, or a projection, is wrong");
  return ok_status();
}

}  // namespace pointsman::evidence
