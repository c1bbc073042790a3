// SPDX-License-Identifier: Apache-2.0
//
// exp, log(1 + x), SiLU and the scores of routers on sixteen lanes: one algorithm with explicit fused multiply-adds, so that every instruction set gives the same bits.
// Include a vec_*.h first.
#pragma once

namespace pointsman::ops {
namespace {

inline Vec lane_numbers() {
  static constexpr float kLanes[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return vload(kLanes);
}
// Lanes below n of v, the others `rest`.
inline Vec lanes_below(Vec v, int64_t n, float rest) { return vselect_less(lane_numbers(), vset(static_cast<float>(n)), v, vset(rest)); }

// e^x with an error below 2 ulp; 0 at and below -104, infinity from 88.73 on, NaN for NaN. Range reduction by ln 2 in two parts
// (Cody & Waite), the series of e^r to r^7 on |r| <= ln(2)/2; 2^n is applied in two halves so that results may be denormal.
inline Vec vexp(Vec x) {
  const Vec clamped = vmin(vmax(x, vset(-104.0f)), vset(89.0f));
  const Vec n = vround(vmul(clamped, vset(1.44269504f)));
  Vec r = vfma(n, vset(-0.693359375f), clamped);
  r = vfma(n, vset(2.12194440e-4f), r);
  Vec p = vset(1.98412698e-4f);
  p = vfma(p, r, vset(1.38888889e-3f));
  p = vfma(p, r, vset(8.33333333e-3f));
  p = vfma(p, r, vset(4.16666667e-2f));
  p = vfma(p, r, vset(1.66666667e-1f));
  p = vfma(p, r, vset(0.5f));
  p = vfma(p, r, vset(1.0f));
  p = vfma(p, r, vset(1.0f));
  return vselect_nan(x, x, vscale2(p, n));
}

// x / (1 + e^-x)
inline Vec vsilu(Vec x) { return vdiv(x, vadd(vset(1.0f), vexp(vsub(vzero(), x)))); }

// log(1 + x) for x from 0 to 1e9, within 2 ulp: log of the rounded 1 + x by a polynomial on [1/sqrt 2, sqrt 2], and what the rounding lost.
inline Vec vlog1p(Vec x) {
  const Vec u = vadd(vset(1), x);
  Vec m, e;
  vsplit(u, &m, &e);
  const Vec f = vsub(m, vset(1)), square = vmul(f, f);
  Vec p = vset(7.0376836292e-2f);
  p = vfma(p, f, vset(-1.1514610310e-1f));
  p = vfma(p, f, vset(1.1676998740e-1f));
  p = vfma(p, f, vset(-1.2420140846e-1f));
  p = vfma(p, f, vset(1.4249322787e-1f));
  p = vfma(p, f, vset(-1.6668057665e-1f));
  p = vfma(p, f, vset(2.0000714765e-1f));
  p = vfma(p, f, vset(-2.4999993993e-1f));
  p = vfma(p, f, vset(3.3333331174e-1f));
  Vec low = vmul(vmul(p, f), square);
  low = vfma(e, vset(-2.12194440e-4f), low);
  low = vfma(square, vset(-0.5f), low);
  // (x - (u - 1)) / u, with 1 - x in place of 1 / u: where that is too coarse, the term is far below an ulp.
  low = vfma(vsub(x, vsub(u, vset(1))), vmax(vsub(vset(1), x), vzero()), low);
  return vfma(e, vset(0.693359375f), vadd(f, low));
}

// 1 / (1 + e^-x)
inline Vec vsigmoid(Vec x) { return vdiv(vset(1.0f), vadd(vset(1.0f), vexp(vsub(vzero(), x)))); }

}  // namespace
}  // namespace pointsman::ops
