// SPDX-License-Identifier: Apache-2.0
//
// What panels of packed weights need beyond vec_scalar.h: sixteen lanes of 32-bit sums, four 8-bit codes to a lane. The reference that the wider
// versions equal bit for bit.
#pragma once

#include "ops/isa/vec_scalar.h"

namespace pointsman::ops {
namespace {

// Sixteen lanes of four codes; whether a constant is added to them is a matter of the instruction set (sum_begin takes it out again).
struct Lanes {
  int8_t code[16][4];
};
struct Sums {
  int32_t lane[16];
};

inline Lanes lanes_load(const uint8_t* p) {
  Lanes r;
  __builtin_memcpy(&r, p, 64);
  return r;
}
inline void lanes_store(uint8_t* p, const Lanes& a) { __builtin_memcpy(p, &a, 64); }
inline Lanes lanes_i8(const uint8_t* p) { return lanes_load(p); }
// E2M1 codes as twice their values.
inline void lanes_e2m1(const uint8_t* p, Lanes& low, Lanes& high) {
  for (int i = 0; i < 64; ++i) {
    low.code[i / 4][i % 4] = static_cast<int8_t>(2 * e2m1_to_float(p[i]));
    high.code[i / 4][i % 4] = static_cast<int8_t>(2 * e2m1_to_float(static_cast<uint8_t>(p[i] >> 4)));
  }
}
// `offset` is -128 times the sum of a block's codes of x.
inline Sums sum_begin(const int32_t*) { return {}; }
// + four codes of x against four of every lane.
inline Sums sum_add(const Sums& s, const Lanes& w, const int8_t* x) {
  Sums r;
  for (int i = 0; i < 16; ++i) r.lane[i] = s.lane[i] + w.code[i][0] * x[0] + w.code[i][1] * x[1] + w.code[i][2] * x[2] + w.code[i][3] * x[3];
  return r;
}
inline Vec to_vec(const Sums& s) {
  return each([&](int i) { return static_cast<float>(s.lane[i]); });
}

inline Vec vload_e8m0(const uint8_t* p) {
  return each([&](int i) { return e8m0_to_float(p[i]); });
}

// One pair of x in every lane.
inline Pairs pairs_of(const bf16* p) {
  Pairs r;
  for (int i = 0; i < 16; ++i) r.even[i] = to_float(p[0]), r.odd[i] = to_float(p[1]);
  return r;
}
// Sixteen lanes of four E4M3 codes as two pairs each, exact.
inline void pairs_e4m3(const uint8_t* p, Pairs& first, Pairs& second) {
  static constexpr E4m3Table kTable;
  for (int i = 0; i < 16; ++i) {
    first.even[i] = kTable.value[p[4 * i]], first.odd[i] = kTable.value[p[4 * i + 1]];
    second.even[i] = kTable.value[p[4 * i + 2]], second.odd[i] = kTable.value[p[4 * i + 3]];
  }
}
inline void pstore(bf16* p, const Pairs& a) {
  for (int i = 0; i < 16; ++i) p[2 * i] = to_bf16(a.even[i]), p[2 * i + 1] = to_bf16(a.odd[i]);
}

// out[j * 16 + i] = byte j of lane i, of 64 bytes.
inline void turn_lanes(const uint8_t* p, uint8_t* out) {
  for (int i = 0; i < 64; ++i) out[i % 4 * 16 + i / 4] = p[i];
}
// out[i] = the low nibbles of 16 bytes as signed bytes of twice the E2M1 value; out[16 + i] = the high ones.
inline void e2m1_bytes(const uint8_t* p, uint8_t* out) {
  for (int i = 0; i < 16; ++i) {
    out[i] = static_cast<uint8_t>(static_cast<int8_t>(2 * e2m1_to_float(p[i])));
    out[16 + i] = static_cast<uint8_t>(static_cast<int8_t>(2 * e2m1_to_float(static_cast<uint8_t>(p[i] >> 4))));
  }
}

// The largest magnitude among 32 values, as bits: NaN above infinity above all numbers.
inline uint32_t magnitude_bits(const Vec& a, const Vec& b) {
  uint32_t most = 0;
  for (int i = 0; i < 16; ++i) {
    for (const float f : {a.f[i], b.f[i]}) {
      uint32_t u;
      __builtin_memcpy(&u, &f, 4);
      u &= 0x7fffffffu;
      most = u > most ? u : most;
    }
  }
  return most;
}
// Rounds to integers, ties to even, and returns their sum. REQUIRES: |a| <= 127.
inline int32_t store_codes(int8_t* p, const Vec& a) {
  int32_t sum = 0;
  for (int i = 0; i < 16; ++i) p[i] = static_cast<int8_t>(std::nearbyint(a.f[i])), sum += p[i];
  return sum;
}

}  // namespace
}  // namespace pointsman::ops
