// SPDX-License-Identifier: Apache-2.0
//
// exp and SiLU on sixteen lanes: one algorithm with explicit fused multiply-adds, so that every instruction set gives the same bits.
// Include a vec_*.h first.
#pragma once

namespace pointsman::ops {
namespace {

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
  const Vec half = vround(vmul(n, vset(0.5f)));
  const Vec result = vmul(vmul(p, vpow2(half)), vpow2(vsub(n, half)));
  return vselect_nan(x, x, result);
}

// x / (1 + e^-x)
inline Vec vsilu(Vec x) { return vdiv(x, vadd(vset(1.0f), vexp(vsub(vzero(), x)))); }

}  // namespace
}  // namespace pointsman::ops
