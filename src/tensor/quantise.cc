// SPDX-License-Identifier: Apache-2.0
//
// Loops of fixed length over blocks of 32, without branches in them: the compiler makes vectors of them for any instruction set, and since
// every operation is a single correctly rounded one, the bits are the same.
#include "tensor/quantise.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/check.h"

namespace pointsman {
namespace {

constexpr int kN = static_cast<int>(kCodeBlock);

inline uint32_t bits_of(float f) { return std::bit_cast<uint32_t>(f); }
inline float float_of(uint32_t u) { return std::bit_cast<float>(u); }

// The largest magnitude and `most`, as bits: those of floats without sign are ordered like the floats.
inline uint32_t largest_bits(const float* v, uint32_t most = 0) {
  for (int i = 0; i < kN; ++i) most = std::max(most, bits_of(v[i]) & 0x7fffffffu);
  return most;
}

// The same of any number of values.
uint32_t largest_bits_of(const float* v, int64_t n) {
  uint32_t most = 0;
  const int64_t whole = n / kN * kN;
  for (int64_t i = 0; i < whole; i += kN) most = largest_bits(v + i, most);
  for (int64_t i = whole; i < n; ++i) most = std::max(most, bits_of(v[i]) & 0x7fffffffu);
  return most;
}

// 1.5 x 2^23: adding it rounds to an integer, ties to even, for magnitudes below 2^22.
constexpr float kRound = 12582912.0f;

struct BlockError {
  float max_abs = 0, errors = 0, values = 0;
};

// `decoded`: what the codes stand for.
inline BlockError block_error(const float* v, const float* decoded) {
  // Sixteen partial sums: a fixed order that vectors can follow.
  float errors[16] = {}, values[16] = {}, most[16] = {};
  for (int half = 0; half < 2; ++half) {
    for (int i = 0; i < 16; ++i) {
      const float x = v[half * 16 + i], d = x - decoded[half * 16 + i];
      errors[i] += d * d;
      values[i] += x * x;
      most[i] = std::max(most[i], std::fabs(d));
    }
  }
  BlockError e;
  for (int i = 0; i < 16; ++i) {
    e.errors += errors[i];
    e.values += values[i];
    e.max_abs = std::max(e.max_abs, most[i]);
  }
  return e;
}

void int8_block(const float* v, uint32_t amax, uint8_t* codes, uint8_t* scale_out, float* decoded) {
  const uint32_t up = bits_of(float_of(amax) / 127.0f);
  const uint32_t scale_bits = amax == 0 ? 0x3f80u : std::max((up + 0xffffu) >> 16, 1u);
  const float scale = float_of(scale_bits << 16);
  const auto half = static_cast<uint16_t>(scale_bits);
  std::memcpy(scale_out, &half, 2);
  for (int i = 0; i < kN; ++i) {
    const float shifted = v[i] / scale + kRound;
    codes[i] = static_cast<uint8_t>(bits_of(shifted));
    decoded[i] = (shifted - kRound) * scale;
  }
}

// Exponent of the scale of a block whose largest value has these bits; the largest code is `mantissa` x 2^exponent.
int scale_exponent(ScaleRule rule, uint32_t amax, uint32_t mantissa, int exponent) {
  if (amax == 0) return 0;
  int e;
  uint32_t fraction;
  if (amax < 0x00800000u) {
    const int shift = std::countl_zero(amax) - 8;
    fraction = (amax << shift) & 0x7fffffu;
    e = -126 - shift;
  } else {
    fraction = amax & 0x7fffffu;
    e = static_cast<int>(amax >> 23) - 127;
  }
  e -= exponent;
  if (rule == ScaleRule::kUp && fraction > mantissa) ++e;
  return std::clamp(e, -127, 127);
}

inline float power_of_two(int e) { return e >= -126 ? float_of(static_cast<uint32_t>(e + 127) << 23) : float_of(0x00400000u >> (-127 - e)); }

void mxfp8_block(const float* v, uint32_t amax, ScaleRule rule, uint8_t* codes, uint8_t* scale_out, float* decoded) {
  const int e = scale_exponent(rule, amax, 0x600000u, 8);  // 448 = 1.75 x 2^8
  *scale_out = static_cast<uint8_t>(e + 127);
  const float inverse = power_of_two(-e), scale = power_of_two(e);
  for (int i = 0; i < kN; ++i) {
    const uint32_t bits = bits_of(v[i] * inverse), sign = bits & 0x80000000u;
    const float a = std::min(float_of(bits & 0x7fffffffu), 448.0f);
    const uint32_t u = bits_of(a);
    const uint32_t normal = (u + 0x7ffffu + ((u >> 20) & 1)) >> 20;            // to four significant bits, ties to even
    const uint32_t small = bits_of(a + 16384.0f) & 15u;                        // in steps of 2^-9: 2^14 has ulp 2^-9
    const bool is_small = u < 0x3c800000u;                                     // below 2^-6
    const uint32_t code = is_small ? small : normal - (120u << 3);
    codes[i] = static_cast<uint8_t>(code | sign >> 24);
    const float magnitude = is_small ? (a + 16384.0f) - 16384.0f : float_of(normal << 20);
    decoded[i] = float_of(bits_of(magnitude) | sign) * scale;
  }
}

void mxfp4_block(const float* v, uint32_t amax, ScaleRule rule, uint8_t* codes, uint8_t* scale_out, float* decoded) {
  const int e = scale_exponent(rule, amax, 0x400000u, 2);  // 6 = 1.5 x 2^2
  *scale_out = static_cast<uint8_t>(e + 127);
  const float inverse = power_of_two(-e), scale = power_of_two(e);
  uint8_t one[kN];
  for (int i = 0; i < kN; ++i) {
    const uint32_t bits = bits_of(v[i] * inverse), sign = bits & 0x80000000u;
    const float a = float_of(bits & 0x7fffffffu);
    // Halfway values go to the even code: 0.25 down, 0.75 up, 1.25 down, ...
    const uint32_t code = uint32_t{a > 0.25f} + uint32_t{a >= 0.75f} + uint32_t{a > 1.25f} + uint32_t{a >= 1.75f} + uint32_t{a > 2.5f} + uint32_t{a >= 3.5f} +
                          uint32_t{a > 5.0f};
    const uint32_t doubled = code + (code > 4 ? code - 4 : 0) + (code > 6 ? 2 : 0);  // 0 1 2 3 4 6 8 12
    one[i] = static_cast<uint8_t>(code | sign >> 28);
    const float magnitude = static_cast<float>(static_cast<int32_t>(doubled)) * 0.5f;
    decoded[i] = float_of(bits_of(magnitude) | sign) * scale;
  }
  for (int i = 0; i < kN / 2; ++i) codes[i] = static_cast<uint8_t>(one[2 * i] | one[2 * i + 1] << 4);
}

struct E4m3Table {
  float value[256];
  constexpr E4m3Table() : value() {
    for (int i = 0; i < 256; ++i) value[i] = e4m3_to_float(static_cast<uint8_t>(i));
  }
};
constexpr E4m3Table kE4m3;

// Codes of one stored row, without scales.
void decode_codes(DType dtype, const uint8_t* row, int64_t cols, float* out) {
  switch (dtype) {
    case DType::kF32: std::memcpy(out, row, static_cast<size_t>(cols) * 4); return;
    case DType::kBF16:
      for (int64_t i = 0; i < cols; ++i) {
        uint16_t half;
        std::memcpy(&half, row + 2 * i, 2);
        out[i] = to_float(bf16{half});
      }
      return;
    case DType::kF16:
      for (int64_t i = 0; i < cols; ++i) {
        uint16_t half;
        std::memcpy(&half, row + 2 * i, 2);
        out[i] = to_float(f16{half});
      }
      return;
    case DType::kI8:
      for (int64_t i = 0; i < cols; ++i) out[i] = static_cast<float>(static_cast<int8_t>(row[i]));
      return;
    case DType::kF8E4M3:
      for (int64_t i = 0; i < cols; ++i) out[i] = kE4m3.value[row[i]];
      return;
    case DType::kF8E5M2:
      for (int64_t i = 0; i < cols; ++i) out[i] = e5m2_to_float(row[i]);
      return;
    case DType::kF4:
      for (int64_t i = 0; i < cols; ++i) out[i] = e2m1_to_float(static_cast<uint8_t>(row[i / 2] >> (i % 2 * 4)));
      return;
    default: PM_CHECK(false, "not a weight dtype");
  }
}

// Of every byte of codes: the square of its element, or of F4 of the sum of both.
using SquareTable = std::array<float, 256>;
SquareTable make_squares(DType dtype) {
  SquareTable t{};
  for (int i = 0; i < 256; ++i) {
    const auto b = static_cast<uint8_t>(i);
    const auto square = [](float v) { return v * v; };
    switch (dtype) {
      case DType::kF4: t[b] = square(e2m1_to_float(b & 15)) + square(e2m1_to_float(b >> 4)); break;
      case DType::kI8: t[b] = square(static_cast<float>(static_cast<int8_t>(b))); break;
      case DType::kF8E5M2: t[b] = square(e5m2_to_float(b)); break;
      default: t[b] = square(e4m3_to_float(b)); break;
    }
  }
  return t;
}
const SquareTable& squares_of(DType dtype) {
  static const SquareTable f4 = make_squares(DType::kF4), i8 = make_squares(DType::kI8), e5m2 = make_squares(DType::kF8E5M2),
                           e4m3 = make_squares(DType::kF8E4M3);
  return dtype == DType::kF4 ? f4 : dtype == DType::kI8 ? i8 : dtype == DType::kF8E5M2 ? e5m2 : e4m3;
}

}  // namespace

std::string_view block_code_name(BlockCode code) {
  switch (code) {
    case BlockCode::kInt8: return "int8";
    case BlockCode::kInt8Wide: return "int8-128";
    case BlockCode::kMxfp8: return "mxfp8";
    default: return "mxfp4";
  }
}
static bool is_int8(BlockCode code) { return code == BlockCode::kInt8 || code == BlockCode::kInt8Wide; }
DType code_dtype(BlockCode code) { return is_int8(code) ? DType::kI8 : code == BlockCode::kMxfp8 ? DType::kF8E4M3 : DType::kF4; }
BlockFormat code_format(BlockCode code) {
  return {.scale_dtype = is_int8(code) ? DType::kBF16 : DType::kF8E8M0,
          .block_rows = 1,
          .block_cols = static_cast<int32_t>(code == BlockCode::kInt8Wide ? kWideCodeBlock : kCodeBlock)};
}

void QuantisationError::add(const QuantisationError& other) {
  max_abs = std::max(max_abs, other.max_abs);
  sum_squares += other.sum_squares;
  value_squares += other.value_squares;
  count += other.count;
}
double QuantisationError::relative_rms() const { return value_squares > 0 ? std::sqrt(sum_squares / value_squares) : 0; }
double QuantisationError::value_rms() const { return count > 0 ? std::sqrt(value_squares / static_cast<double>(count)) : 0; }

int64_t quantise_row(BlockCode code, ScaleRule rule, const float* values, int64_t n, uint8_t* codes, uint8_t* scales, QuantisationError& error) {
  const bool fp4 = code == BlockCode::kMxfp4;
  PM_CHECK(!fp4 || n % 2 == 0);
  const int64_t scale_bytes = is_int8(code) ? 2 : 1, width = code_format(code).block_cols;
  uint32_t amax = 0;
  float padded[kN], decoded[kN];
  uint8_t spare[kN];
  // A wide block goes in pieces of kN under one scale.
  for (int64_t at = 0; at < n; at += kN) {
    const int64_t m = std::min<int64_t>(kN, n - at);
    const float* v = values + at;
    uint8_t* to = codes + (fp4 ? at / 2 : at);
    const bool partial = m < kN;
    if (partial) {
      std::fill(std::copy_n(v, m, padded), padded + kN, 0.0f);
      v = padded;
    }
    if (at % width == 0) amax = width == kN ? largest_bits(v) : largest_bits_of(values + at, std::min(width, n - at));
    if (amax >= 0x7f800000u) {
      for (int64_t i = 0; i < m; ++i) {
        if (!std::isfinite(v[i])) return at + i;
      }
    }
    uint8_t* const block_codes = partial ? spare : to;
    uint8_t* const scale = scales + at / width * scale_bytes;
    switch (code) {
      case BlockCode::kInt8:
      case BlockCode::kInt8Wide: int8_block(v, amax, block_codes, scale, decoded); break;
      case BlockCode::kMxfp8: mxfp8_block(v, amax, rule, block_codes, scale, decoded); break;
      case BlockCode::kMxfp4: mxfp4_block(v, amax, rule, block_codes, scale, decoded); break;
    }
    if (partial) std::copy_n(spare, fp4 ? m / 2 : m, to);
    const BlockError e = block_error(v, decoded);
    error.max_abs = std::max(error.max_abs, double{e.max_abs});
    error.sum_squares += double{e.errors};
    error.value_squares += double{e.values};
  }
  error.count += static_cast<uint64_t>(n);
  return -1;
}

void add_value_squares(const Weight& w, int64_t row, QuantisationError& error) {
  PM_CHECK(is_coded(w.dtype) && w.layout == WeightLayout::kOutIn && w.format);
  const SquareTable& squares = squares_of(w.dtype);
  const int64_t bits = dtype_bits(w.dtype);
  const auto* codes = static_cast<const uint8_t*>(w.data) + row * w.row_stride * bits / 8;
  for (int64_t c = 0; c < w.cols; c += w.format.block_cols) {
    const int64_t end = std::min<int64_t>(w.cols, c + w.format.block_cols);
    double in_block = 0;
    // Few enough at once for fp32 sums, four apart so that they do not wait for one another.
    for (int64_t at = c * bits / 8; at < end * bits / 8;) {
      const int64_t n = std::min<int64_t>(256, end * bits / 8 - at), whole = n / 4 * 4;
      float sums[4] = {};
      for (int64_t i = 0; i < whole; i += 4) {
        for (int64_t j = 0; j < 4; ++j) sums[j] += squares[codes[at + i + j]];
      }
      for (int64_t i = whole; i < n; ++i) sums[0] += squares[codes[at + i]];
      in_block += double{sums[0]} + double{sums[1]} + double{sums[2]} + double{sums[3]};
      at += n;
    }
    const double scale = scale_to_float(w.scales, w.format.scale_dtype, scale_index(w, row, c));
    error.value_squares += in_block * scale * scale;
  }
  error.count += static_cast<uint64_t>(w.cols);
}

void decode_rows(const Weight& w, int64_t first, int64_t count, float* out) {
  if (w.layout != WeightLayout::kOutIn) {
    for (int64_t r = 0; r < count; ++r) {
      for (int64_t c = 0; c < w.cols; ++c) out[r * w.cols + c] = weight_value(w, first + r, c);
    }
    return;
  }
  for (int64_t r = 0; r < count; ++r) {
    float* to = out + r * w.cols;
    decode_codes(w.dtype, static_cast<const uint8_t*>(w.data) + (first + r) * w.row_stride * dtype_bits(w.dtype) / 8, w.cols, to);
    if (!w.format) continue;
    for (int64_t c = 0; c < w.cols; c += w.format.block_cols) {
      const float scale = scale_to_float(w.scales, w.format.scale_dtype, scale_index(w, first + r, c));
      const int64_t end = std::min<int64_t>(w.cols, c + w.format.block_cols);
      for (int64_t i = c; i < end; ++i) to[i] *= scale;
    }
  }
}

}  // namespace pointsman
