// SPDX-License-Identifier: Apache-2.0
#include "verify/evidence.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/log.h"

namespace pointsman::evidence {

Result<Rows> load(TraceReader& reader, const TracePlace& place) {
  Rows out;
  const TraceTensor* t = reader.find(trace_name(place));
  constexpr int64_t kMaxLoaded = 1 << 21;
  if (t == nullptr || t->cols <= 0 || t->cols > kMaxLoaded || t->rows <= 0) return out;
  const int64_t positions = t->shape.size() > 1 ? t->shape[0] : t->rows;
  const int64_t per_position = std::max<int64_t>(1, t->rows / std::max<int64_t>(1, positions));
  out.rows = std::min({t->rows, kMaxRows * per_position, std::max<int64_t>(1, kMaxLoaded / t->cols)});
  out.cols = t->cols;
  PM_RETURN_IF_ERROR(reader.read_rows(*t, 0, out.rows, out.values));
  return out;
}

bool same_shape(const Rows& a, const Rows& b) { return a.rows == b.rows && a.cols == b.cols && a.rows > 0; }

double row_error(std::span<const double> a, std::span<const double> b) {
  double worst = 0, largest = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    const double d = std::fabs(a[i] - b[i]);
    if (!std::isfinite(d)) return std::numeric_limits<double>::infinity();
    worst = std::max(worst, d);
    largest = std::max(largest, std::fabs(b[i]));
  }
  return worst == 0 ? 0 : worst / std::max(largest, 1e-30);
}

double error_of(const Rows& a, const Rows& b) {
  double worst = 0;
  for (int64_t r = 0; r < b.rows; ++r) worst = std::max(worst, row_error(a.row(r), b.row(r)));
  return worst;
}

Representable representable(std::span<const double> values) {
  Representable out;
  uint64_t in_bf16 = 0, in_f16 = 0;
  for (const double v : values) {
    if (!std::isfinite(v)) continue;
    ++out.finite;
    const float f = static_cast<float>(v);
    if (to_float(to_bf16(f)) == f) ++in_bf16;
    // 11 bits of mantissa, steps of 2^-24 at the least, 65504 at the most.
    int exponent = 0;
    std::frexp(v, &exponent);
    const double step = std::ldexp(1.0, std::max(exponent - 11, -24));
    in_f16 += std::fabs(v) <= 65504 && std::nearbyint(v / step) * step == v;
  }
  if (out.finite > 0) {
    out.bf16 = static_cast<double>(in_bf16) / static_cast<double>(out.finite);
    out.f16 = static_cast<double>(in_f16) / static_cast<double>(out.finite);
  }
  return out;
}

std::vector<double> linear(const Matrix& w, std::span<const double> x) {
  std::vector<double> y(static_cast<size_t>(w.rows));
  for (int64_t r = 0; r < w.rows; ++r) {
    double sum = 0;
    for (int64_t c = 0; c < w.cols; ++c) sum += double{w.row(r)[c]} * x[static_cast<size_t>(c)];
    y[static_cast<size_t>(r)] = sum;
  }
  return y;
}

Result<bool> try_dtype(const Case& c) {
  PM_ASSIGN_OR_RETURN(const Rows a, load(c.in.a, c.place));
  PM_ASSIGN_OR_RETURN(const Rows b, load(c.in.b, c.place));
  if (!same_shape(a, b)) return false;
  const Representable ra = representable(a.values), rb = representable(b.values);
  constexpr double kMaxF16 = 65504, kAll = 0.999, kFew = 0.2;
  uint64_t overflowed = 0;
  double smallest = std::numeric_limits<double>::infinity(), largest_kept = 0;
  for (size_t i = 0; i < a.values.size(); ++i) {
    if (std::isfinite(b.values[i]) && !std::isfinite(a.values[i])) {
      ++overflowed;
      smallest = std::min(smallest, std::fabs(b.values[i]));
    } else if (std::isfinite(a.values[i])) {
      largest_kept = std::max(largest_kept, std::fabs(a.values[i]));
    }
  }
  if (overflowed > 0) {
    c.say(format("{} values are NaN or infinite; the reference has finite ones there, {:.6g} or more in size", overflowed, smallest));
    c.say(format("the largest value that stayed finite is {:.6g}; the largest fp16 is {}", largest_kept, kMaxF16));
    c.say(format("{:.1f} % of the finite values are fp16 numbers, {:.1f} % of the reference's", 100 * ra.f16, 100 * rb.f16));
    if (smallest > kMaxF16 * 0.999 && largest_kept <= kMaxF16 && ra.f16 > kAll) {
      c.name(FaultKind::kDtype, format("{} overflowed fp16: values beyond {} became infinite", trace_operator(c.place.point), kMaxF16));
      return true;
    }
    return false;
  }
  // A type narrower than the reference's, whose own values are not of it.
  struct Candidate {
    const char* name;
    double a, b, step;
  };
  for (const Candidate& t : {Candidate{"bf16", ra.bf16, rb.bf16, 0x1p-8}, Candidate{"fp16", ra.f16, rb.f16, 0x1p-11}}) {
    if (t.a < kAll || t.b > kFew) continue;
    // Element by element within one rounding: otherwise it is narrow and wrong besides.
    double worst = 0;
    for (size_t i = 0; i < a.values.size(); ++i) {
      const double scale = std::max(std::fabs(b.values[i]), 1e-12);
      worst = std::max(worst, std::fabs(a.values[i] - b.values[i]) / scale);
    }
    c.say(format("{:.1f} % of the values are {} numbers, {:.1f} % of the reference's", 100 * t.a, t.name, 100 * t.b));
    c.say(format("every value is within {:.2g} of the reference's; one rounding to {} changes up to {:.2g}", worst, t.name, t.step));
    if (worst <= 1.05 * t.step) {
      c.name(FaultKind::kDtype, format("the result of the {} is stored in {}", trace_operator(c.place.point), t.name));
      return true;
    }
  }
  return false;
}

std::optional<Epsilons> fit_epsilons(std::span<const double> m, std::span<const double> factors) {
  // a - S b = m (S - 1), S = factor^2, weighted by 1 / m: rows of small values speak loudest.
  double s11 = 0, s12 = 0, s22 = 0, t1 = 0, t2 = 0, effect = 0;
  for (size_t i = 0; i < m.size(); ++i) {
    if (!(m[i] > 0)) continue;
    const double s = factors[i] * factors[i], w = 1 / (m[i] * m[i]), y = m[i] * (s - 1);
    s11 += w;
    s12 -= w * s;
    s22 += w * s * s;
    t1 += w * y;
    t2 -= w * s * y;
    effect = std::max(effect, std::fabs(s - 1));
  }
  const double determinant = s11 * s22 - s12 * s12;
  if (!(determinant > 1e-12 * s11 * s22) || effect < 1e-6) return std::nullopt;
  Epsilons e{.a = (t1 * s22 - t2 * s12) / determinant, .b = (s11 * t2 - s12 * t1) / determinant};
  for (size_t i = 0; i < m.size(); ++i) {
    if (m[i] > 0) e.misfit = std::max(e.misfit, std::fabs((m[i] + e.a) / (m[i] + e.b) - factors[i] * factors[i]) / effect);
  }
  return e.misfit < 0.02 ? std::optional(e) : std::nullopt;
}

}  // namespace pointsman::evidence
