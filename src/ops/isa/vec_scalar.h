// SPDX-License-Identifier: Apache-2.0
//
// Sixteen fp32 lanes in plain C++: the reference that the wider versions equal bit for bit. See vec_avx512.h.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#if defined(__SSE__)
#include <xmmintrin.h>
#endif

#include "tensor/block_format.h"
#include "tensor/dtype.h"

namespace pointsman::ops {
namespace {

struct Vec {
  float f[16];
};

template <class F>
inline Vec each(F&& lane) {
  Vec r;
  for (int i = 0; i < 16; ++i) r.f[i] = lane(i);
  return r;
}
inline float as_float(float v) { return v; }
inline float as_float(bf16 v) { return to_float(v); }
inline float as_float(f16 v) { return to_float(v); }
inline float as_float(int8_t v) { return v; }

inline Vec vzero() { return {}; }
inline Vec vset(float f) { return each([&](int) { return f; }); }
template <class T>
inline Vec vload(const T* p) {
  return each([&](int i) { return as_float(p[i]); });
}
template <class T>
inline Vec vload_n(const T* p, int64_t n) {
  return each([&](int i) { return i < n ? as_float(p[i]) : 0.0f; });
}
inline void vstore_n(float* p, const Vec& a, int64_t n) {
  for (int i = 0; i < 16 && i < n; ++i) p[i] = a.f[i];
}
inline void vstore_n(bf16* p, const Vec& a, int64_t n) {
  for (int i = 0; i < 16 && i < n; ++i) p[i] = to_bf16(a.f[i]);
}
template <class T>
inline void vstore(T* p, const Vec& a) {
  vstore_n(p, a, 16);
}

inline Vec vfma(const Vec& a, const Vec& b, const Vec& c) {
  return each([&](int i) { return std::fma(a.f[i], b.f[i], c.f[i]); });
}
inline Vec vadd(const Vec& a, const Vec& b) { return each([&](int i) { return a.f[i] + b.f[i]; }); }
inline Vec vsub(const Vec& a, const Vec& b) { return each([&](int i) { return a.f[i] - b.f[i]; }); }
inline Vec vmul(const Vec& a, const Vec& b) { return each([&](int i) { return a.f[i] * b.f[i]; }); }
inline Vec vdiv(const Vec& a, const Vec& b) { return each([&](int i) { return a.f[i] / b.f[i]; }); }
// The second operand when either is NaN, as the x86 instructions do.
inline Vec vmax(const Vec& a, const Vec& b) { return each([&](int i) { return a.f[i] > b.f[i] ? a.f[i] : b.f[i]; }); }
inline Vec vmin(const Vec& a, const Vec& b) { return each([&](int i) { return a.f[i] < b.f[i] ? a.f[i] : b.f[i]; }); }

inline Vec vpow2(const Vec& n) {
  return each([&](int i) { return std::bit_cast<float>(static_cast<uint32_t>(static_cast<int32_t>(n.f[i]) + 127) << 23); });
}
inline Vec vround(const Vec& a) { return each([&](int i) { return std::nearbyint(a.f[i]); }); }
inline Vec vselect_nan(const Vec& x, const Vec& a, const Vec& b) { return each([&](int i) { return x.f[i] != x.f[i] ? a.f[i] : b.f[i]; }); }
inline Vec vselect_less(const Vec& x, const Vec& y, const Vec& a, const Vec& b) {
  return each([&](int i) { return x.f[i] < y.f[i] ? a.f[i] : b.f[i]; });
}

// By halves, so that neither factor leaves the range and only the last product rounds.
inline Vec vscale2(const Vec& p, const Vec& n) {
  const Vec half = vround(vmul(n, vset(0.5f)));
  return vmul(vmul(p, vpow2(half)), vpow2(vsub(n, half)));
}

template <class F>
inline float tree(const Vec& a, F&& join) {
  float t[16];
  for (int i = 0; i < 16; ++i) t[i] = a.f[i];
  for (int width = 8; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) t[i] = join(t[i], t[i + width]);
  }
  return t[0];
}
inline float vsum(const Vec& a) { return tree(a, [](float x, float y) { return x + y; }); }
inline void vsum4(const Vec& a, const Vec& b, const Vec& c, const Vec& d, float* out) { out[0] = vsum(a), out[1] = vsum(b), out[2] = vsum(c), out[3] = vsum(d); }
inline float vhighest(const Vec& a) { return tree(a, [](float x, float y) { return x > y ? x : y; }); }

inline uint32_t vmask_less(const Vec& a, const Vec& b) {
  uint32_t mask = 0;
  for (int i = 0; i < 16; ++i) mask |= static_cast<uint32_t>(a.f[i] < b.f[i]) << i;
  return mask;
}
inline void vcompress(float* out, const Vec& a, uint32_t mask) {
  for (int i = 0; i < 16; ++i) {
    if ((mask >> i & 1) != 0) *out++ = a.f[i];
  }
}
inline Vec vappend(Vec have, int64_t count, const Vec& a, uint32_t mask) {
  for (int i = 0; i < 16; ++i) {
    if ((mask >> i & 1) != 0 && count < 16) have.f[count++] = a.f[i];
  }
  return have;
}
inline void vsort(Vec* value, Vec* place) {
  const Vec v = *value, p = *place;
  for (int i = 0; i < 16; ++i) {
    int rank = 0;
    for (int j = 0; j < 16; ++j) rank += v.f[j] > v.f[i] || (v.f[j] == v.f[i] && j < i) ? 1 : 0;
    value->f[rank] = v.f[i];
    place->f[rank] = p.f[i];
  }
}
inline Vec vkth(Vec a, int32_t k) {
  Vec place = a;
  vsort(&a, &place);
  return vset(a.f[k - 1]);
}
inline Vec vgather_n(const float* p, const Vec& place, int64_t n) {
  return each([&](int i) { return i < n ? p[static_cast<int32_t>(place.f[i])] : 0.0f; });
}
inline void vstore_ids(int32_t* p, const Vec& place, int64_t n) {
  for (int i = 0; i < 16 && i < n; ++i) p[i] = static_cast<int32_t>(place.f[i]);
}
inline void vsplit(const Vec& x, Vec* m, Vec* e) {
  for (int i = 0; i < 16; ++i) {
    const auto u = std::bit_cast<int32_t>(x.f[i]);
    const int32_t k = (u - 0x3f3504f3) >> 23;
    m->f[i] = std::bit_cast<float>(u - static_cast<int32_t>(static_cast<uint32_t>(k) << 23));
    e->f[i] = static_cast<float>(k);
  }
}
inline Vec vsqrt(const Vec& a) { return each([&](int i) { return std::sqrt(a.f[i]); }); }

inline void vstore_n(int8_t* p, const Vec& a, int64_t n) {
  for (int i = 0; i < 16 && i < n; ++i) p[i] = static_cast<int8_t>(std::nearbyint(a.f[i]));
}
inline Vec vload_units(const void* p) {
  Vec r;
  __builtin_memcpy(&r, p, sizeof(r));
  return r;
}
inline void vstream(float* p, const Vec& a) { vstore(p, a); }
inline void vstream_done() {}
inline void vtranspose(Vec* r) {
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < i; ++j) {
      const float t = r[i].f[j];
      r[i].f[j] = r[j].f[i];
      r[j].f[i] = t;
    }
  }
}
inline constexpr int kTileVecs = 1;

// Sixteen element codes, exact. e2m1 reads eight bytes, low nibble first.
struct E4m3Table {
  float value[256];
  constexpr E4m3Table() : value{} {
    for (int i = 0; i < 256; ++i) value[i] = e4m3_to_float(static_cast<uint8_t>(i));
  }
};
inline Vec vload_e4m3(const uint8_t* p) {
  static constexpr E4m3Table kTable;
  return each([&](int i) { return kTable.value[p[i]]; });
}
inline Vec vload_e5m2(const uint8_t* p) {
  return each([&](int i) { return to_float(f16{static_cast<uint16_t>(p[i] << 8)}); });
}
inline Vec vload_i8(const uint8_t* p) {
  return each([&](int i) { return static_cast<float>(static_cast<int8_t>(p[i])); });
}
inline Vec vload_e2m1(const uint8_t* p) {
  return each([&](int i) { return e2m1_to_float(static_cast<uint8_t>(p[i / 2] >> (i % 2 * 4))); });
}

// Stores as vstore does and returns what was stored. REQUIRES: denormals are flushed.
inline Vec vstore_rounded(bf16* p, Vec a) {
  vstore(p, a);
  return vload(p);
}

struct Pairs {
  float even[16], odd[16];
};
inline Pairs pload_n(const bf16* p, int64_t n) {
  Pairs r{};
  for (int i = 0; i < 16; ++i) {
    if (2 * i < n) r.even[i] = to_float(p[2 * i]);
    if (2 * i + 1 < n) r.odd[i] = to_float(p[2 * i + 1]);
  }
  return r;
}
inline Pairs pset(const bf16* p) {
  Pairs r;
  for (int i = 0; i < 16; ++i) r.even[i] = to_float(p[0]), r.odd[i] = to_float(p[1]);
  return r;
}
inline Pairs pload(const bf16* p) { return pload_n(p, 32); }
inline Pairs pkeep(Pairs a, uint32_t mask) {
  for (int i = 0; i < 16; ++i) {
    if ((mask & 0xffffu) == 0) a.even[i] = 0;
    if ((mask >> 16) == 0) a.odd[i] = 0;
  }
  return a;
}
inline Vec pdot(const Vec& acc, const Pairs& a, const Pairs& b) {
  return each([&](int i) { return std::fma(a.even[i], b.even[i], std::fma(a.odd[i], b.odd[i], acc.f[i])); });
}

// The bf16 dot product flushes denormals, as vdpbf16ps does.
struct FlushDenormals {
#if defined(__SSE__)
  unsigned int saved = _mm_getcsr();
  FlushDenormals() { _mm_setcsr(saved | 0x8040); }
  ~FlushDenormals() { _mm_setcsr(saved); }
#endif
};

}  // namespace
}  // namespace pointsman::ops
